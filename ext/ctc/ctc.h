/* Connectionist temporal classification. */
#ifndef TAPEGRAD_CTC_H
#define TAPEGRAD_CTC_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct CtcOptions {
    Tensor *lengths;        /* NULL: T each; int32 [B], in [0, T]: later frames are ignored */
    Tensor *target_lengths; /* NULL: S each; int32 [B], in [0, S]: later symbols are ignored */
    bool ignore_infeasible; /* an infeasible target has loss 0 and gradient 0 instead of infinity
                             * and NaN: n symbols, r of which equal their predecessor, need n + r
                             * frames */
} CtcOptions;

/* out_b = -ln p(target_b | logits_b), in nats: connectionist temporal classification (Graves et al.
 * 2006, equation 12). A path emits one symbol or the blank per frame; merging equal neighbors, then
 * dropping blanks, gives its text. p is the sum over the paths whose text is the target of the
 * product over t of softmax(logits_bt)_path_t. logits [B, T, C], where symbol 0 is the blank;
 * targets: int32 [B, S], in [1, C) up to target_lengths, beyond in [0, C). Returns [B], Real;
 * op_mean gives the usual loss. Raises if a target is out of range or the blank; the latter is not
 * checked while a CUDA graph is captured. */
Tensor *op_ctc(Tape *tape, Tensor *logits, Tensor *targets, CtcOptions options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
