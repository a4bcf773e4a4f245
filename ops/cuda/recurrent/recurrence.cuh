/* The loop over time on CUDA: per step one product of h and W_hh by cuBLAS, and one kernel for the
 * cells of all sequences, a thread per hidden unit and sequence. */
#ifndef TAPEGRAD_OPS_RECURRENT_RECURRENCE_CUH
#define TAPEGRAD_OPS_RECURRENT_RECURRENCE_CUH

#include "ops/kernels.h"
#include "ops/recurrent/kernels.h"
#include "ops/shared/math.h"

/* workspace [B, G H] = h W_hh^T */
static inline void multiply_hidden(const Recurrence *r)
{
    const Product size = { r->B, r->H, r->G * r->H, false, true, 1, 0, 0, 0 };
    const Result sums = { r->workspace, TENSOR_REAL, false };
    const Operand hidden = { r->hidden, TENSOR_REAL }, weight = { r->weight, TENSOR_REAL };
    product_cuda(r->operation, r->precision, sums, hidden, weight, size);
}

/* dhidden += workspace W_hh, where workspace [B, G H] holds the step's dgates */
static inline void multiply_dgates(const Recurrence *r)
{
    const Product size = { r->B, r->G * r->H, r->H, false, false, 1, 0, 0, 0 };
    const Result dhidden = { r->dhidden, TENSOR_REAL, true };
    const Operand dgates = { r->workspace, TENSOR_REAL }, weight = { r->weight, TENSOR_REAL };
    product_cuda(r->operation, r->precision, dhidden, dgates, weight, size);
}

/* Backward at a step after the sequence's end: all gradients of unit j are 0. */
__device__ static inline void clear_unit(const Recurrence *r, int64_t b, int64_t step, int64_t j)
{
    const int64_t row = b * r->N + step, H = r->H;
    for (int64_t g = 0; g < r->G; g++)
        r->gates[(row * r->G + g) * H + j] = r->workspace[(b * r->G + g) * H + j] = 0;
    r->saved[row * H + j] = 0;
}

#endif
