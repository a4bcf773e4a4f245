/* The loop over time on CUDA: per step one product of h and W_hh by cuBLAS, and one kernel for the
 * cells of all sequences, a thread per hidden unit and sequence. */
#ifndef TAPEGRAD_OPS_RECURRENT_RECURRENCE_CUH
#define TAPEGRAD_OPS_RECURRENT_RECURRENCE_CUH

#include "ext/recurrent/kernels.h"

#include "tensor/cuda/kernel.cuh"

/* products [B, G H] = h W_hh^T */
static inline void multiply_hidden(const Recurrence *r, Real *products)
{
    const Product size = { r->B, r->H, r->G * r->H, false, true, 1, 0, 0, 0 };
    const Result sums = { products, TENSOR_REAL, false };
    const Operand hidden = { r->hidden, TENSOR_REAL }, weight = { r->weight, TENSOR_REAL };
    product_cuda(r->precision, sums, hidden, weight, size);
}

/* All steps: h W_hh^T, and launch(step, products) of the cells' kernel. */
template <typename Launch> static void recurrence_forward(const Recurrence &r, Launch launch)
{
    Real *products = device_workspace(r.B * r.G * r.H);
    for (int64_t step = 0; step < r.N; step++) {
        multiply_hidden(&r, products);
        launch(step, products);
    }
    device_workspace_free(products);
}

/* dhidden += dgates W_hh, of the step's dgates [B, G H] */
static inline void multiply_dgates(const Recurrence *r, const Real *dgates)
{
    const Product size = { r->B, r->G * r->H, r->H, false, false, 1, 0, 0, 0 };
    const Result dhidden = { r->dhidden, TENSOR_REAL, true };
    const Operand a = { dgates, TENSOR_REAL }, weight = { r->weight, TENSOR_REAL };
    product_cuda(r->precision, dhidden, a, weight, size);
}

/* All steps, from the last one on: launch(step, dgates) of the cells' kernel, and dgates W_hh. */
template <typename Launch> static void recurrence_backward(const Recurrence &r, Launch launch)
{
    Real *dgates = device_workspace(r.B * r.G * r.H);
    for (int64_t step = r.N - 1; step >= 0; step--) {
        launch(step, dgates);
        multiply_dgates(&r, dgates);
    }
    device_workspace_free(dgates);
}

/* Backward at a step after the sequence's end: all gradients of unit j are 0. */
__device__ static inline void clear_unit(const Recurrence *r, int64_t b, int64_t step, int64_t j,
                                         Real *dgates)
{
    const int64_t row = b * r->N + step, H = r->H;
    for (int64_t g = 0; g < r->G; g++)
        r->gates[(row * r->G + g) * H + j] = dgates[(b * r->G + g) * H + j] = 0;
    r->saved[row * H + j] = 0;
}

#endif
