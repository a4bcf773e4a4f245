/* ctc in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

/* The block's sequences, whose logits are in Real. */
static Ctc ctc_of_block(Ctc ctc, const Bf16Block *block, const Real *logits)
{
    ctc.B = block->rows;
    ctc.logits = logits;
    ctc.targets += block->first * ctc.S;
    ctc.lengths = ctc.lengths ? ctc.lengths + block->first : NULL;
    ctc.target_lengths = ctc.target_lengths ? ctc.target_lengths + block->first : NULL;
    ctc.states += block->first * (ctc.T + 2) * ctc_states(ctc.S);
    ctc.log_sums += block->first * ctc.T;
    return ctc;
}

void ctc_forward_bf16(Real *losses, Ctc ctc)
{
    const int64_t R = ctc.B, C = ctc.T * ctc.C;
    BF16_BLOCKS(block, R, C, 1) {
        const Real *logits = bf16_read(&block, ctc.logits, C);
        ctc_forward_plain(losses + block.first, ctc_of_block(ctc, &block, logits));
    }
}

void ctc_backward_bf16(Gradient dlogits, const Real *dlosses, Ctc ctc)
{
    const int64_t R = ctc.B, C = ctc.T * ctc.C;
    BF16_BLOCKS(block, R, C, 2) {
        const Gradient dlogits_rows = bf16_gradient(&block, dlogits, C);
        const Real *logits = bf16_read(&block, ctc.logits, C);
        ctc_backward_plain(dlogits_rows, dlosses + block.first, ctc_of_block(ctc, &block, logits));
        bf16_write(&block, dlogits.data, dlogits_rows.data, C);
    }
}
