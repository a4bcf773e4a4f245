/* Linear layers on the CPU: the product of the backend; the bias and the activation in one pass
 * over its result, and in the backward pass h and its column sums in one pass. */
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/columns.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

void linear_activate_bf16(Real *out, Real *y, const Real *bias, Activation f, int64_t R, int64_t O)
{
    BF16_BLOCKS(block, R, O, 2) {
        Real *y_rows = bf16_read(&block, y ? y : out, O), *out_rows = bf16_buffer(&block, O);
        linear_activate_plain(out_rows, y_rows, bias, f, block.rows, O);
        if (y)
            bf16_write(&block, y, y_rows, O);
        bf16_write(&block, out, out_rows, O);
    }
}

void linear_forward_cpu(const LinearPass *p)
{
    product_cpu(p->precision, (Result){ p->y ? p->y : p->out, p->type, false },
                (Operand){ p->x, p->type }, (Operand){ p->weight, p->type }, linear_product(p));
    if (p->bias)
        op_kernels_on(device_current(), p->type)
            ->linear_activate(p->out, p->y, p->bias, p->activation, p->R, p->O);
}

ALWAYS_INLINE void activate_row_backward(Activation f, int T, Real *h, Real *sum, const Real *g,
                                         const Real *y, int64_t O)
{
    PRAGMA(omp simd)
    for (int64_t o = 0; o < O; o++) {
        const Real value = activation_gradient(f, load(T, g, o), load(T, y, o));
        store(T, h, o, value);
        sum[o] += value;
    }
}

/* Each block of rows has column sums of its own, which are added in order. */
static void activate_backward(TensorType type, Real *h, Gradient dbias, const Real *g,
                              const Real *y, Activation f, int64_t R, int64_t O)
{
    Real *partial = device_workspace(sum_blocks(R) * O);
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads_for(R * O, 0.4)))
    for (int64_t i = 0; i < sum_blocks(R); i++) {
        Real *sum = partial + i * O;
        memset(sum, 0, (size_t)O * sizeof *sum);
        for (int64_t r = sum_block_start(i, R); r < sum_block_start(i + 1, R); r++)
            BY_STORAGE(type, T,
                       BY_ACTIVATION(f, activate_row_backward, T, elements_at(T, h, r * O), sum,
                                     elements_at(T, g, r * O), elements_at(T, y, r * O), O));
    }
    add_blocks(dbias, partial, sum_blocks(R), O);
    device_workspace_free(partial);
}

void linear_activate_backward_cpu(Real *h, Gradient dbias, const Real *g, const Real *y,
                                  Activation f, int64_t R, int64_t O)
{
    activate_backward(TENSOR_REAL, h, dbias, g, y, f, R, O);
}

void linear_activate_backward_bf16(Real *h, Gradient dbias, const Real *g, const Real *y,
                                   Activation f, int64_t R, int64_t O)
{
    activate_backward(TENSOR_BF16, h, dbias, g, y, f, R, O);
}
