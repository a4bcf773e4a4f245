/* Muon: momentum whose matrices are orthogonalized. */
#ifndef TAPEGRAD_MUON_H
#define TAPEGRAD_MUON_H

#include "optim/optim.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* The factor of a matrix p [R, C]: sqrt(max(1, R / C)), or 0.2 sqrt(max(R, C)), with which the
 * update is as large as AdamW's, so that its learning rate and weight decay serve (Liu et al.
 * 2025). */
typedef enum { MUON_ORIGINAL, MUON_MATCH_RMS_ADAMW } MuonScale;

enum { MUON_MAX_NAMES = 8 };

typedef struct MuonConfig {
    double learning_rate;                   /* of the matrices; more than 0 */
    double momentum;                        /* default 0.95; in [0, 1) */
    bool nesterov;                          /* default true */
    int iterations;                         /* default 5; 1 or more */
    double weight_decay;                    /* of the matrices; default 0; 0 or more */
    MuonScale scale;                        /* default MUON_ORIGINAL */
    AdamConfig rest;                        /* of the other weights; without a schedule */
    const char *rest_names[MUON_MAX_NAMES]; /* default "*embedding*", "*head*"; up to a NULL */
    Schedule schedule;                      /* of all weights; default constant */
} MuonConfig;
MuonConfig optim_muon_config(double learning_rate, double rest_learning_rate);

/* Muon (Jordan et al. 2024), for the weights of rank 2 or more whose path names match none of
 * rest_names, as matrices [R, C] of the first and all further axes, joined weights singly:
 *   m = momentum m + (1 - momentum) g
 *   u = nesterov ? (1 - momentum) g + momentum m : m,    X = u / max(|u|, 1e-30)
 *   X = 3.4445 X - 4.775 X X^T X + 2.0315 X X^T X X^T X, iterations times (Newton-Schulz)
 *   p = (1 - lr weight_decay) p - lr scale X
 * and AdamW with the config `rest` for the others. The products are in float32. optim_learning_rate
 * and optim_set_learning_rate are of the matrices; the learning rate of the rest follows in
 * proportion; a checkpoint has the matrices' hyperparameters. Raises when no weight is such a
 * matrix. */
Optimizer *optim_muon(Params *params, MuonConfig config);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
