/* softmax of each of R rows of C elements
 *   out_c = e^(x_c - m) / sum_j e^(x_j - m)          m = max_j x_j cancels; it prevents overflow
 * Backward, g = dL/dout, with dout_c / dx_j = out_c ([c = j] - out_j):
 *   dx_j <- out_j (g_j - sum_c g_c out_c)
 *
 * log_softmax, its logarithm
 *   out_c = x_c - ln sum_j e^x_j = (x_c - m) - ln sum_j e^(x_j - m)
 * Backward, with dout_c / dx_j = [c = j] - e^out_j:
 *   dx_j <- g_j - e^out_j sum_c g_c */
#include <omp.h>

#include "ops/rows/kernels.h"
#include "ops/rows/rows.h"

/* power [C] is a buffer in Real; it may be out. */
ALWAYS_INLINE void softmax_row(int T, Real *out, Real *power, const Real *x, int64_t C)
{
    const Real m = row_max(T, x, C);
    const Real scale = 1 / row_sum(sum_of_powers, T, power, x, m, C);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        store(T, out, c, power[c] * scale);
}

ALWAYS_INLINE void log_softmax_row(int T, Real *out, const Real *x, int64_t C)
{
    const LogSumExp l = row_log_sum_exp(T, x, C);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        store(T, out, c, log_probability(load(T, x, c), l));
}

/* The length of a thread's buffer: C, padded so that no two threads share a cache line. */
static int64_t buffer_length(int64_t C)
{
    return C + 16;
}

/* out [R, C], x [R, C]. softmax stores its powers in out if it is Real; bf16 would round them, so
 * scratch then has a buffer per thread. */
void softmax_forward_cpu(TensorType type, Real *out, const Real *x, bool logarithm, Real *scratch,
                         int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.3))
    for (int64_t i = 0; i < R * C; i += C) {
        Real *row = elements_at((int)type, out, i);
        Real *power = scratch ? scratch + omp_get_thread_num() * buffer_length(C) : row;
        if (logarithm)
            BY_STORAGE(type, T, log_softmax_row(T, row, elements_at(T, x, i), C));
        else
            BY_STORAGE(type, T, softmax_row(T, row, power, elements_at(T, x, i), C));
    }
}

ALWAYS_INLINE void softmax_row_backward(int T, Real *dx, bool accumulate, const Real *g,
                                        const Real *out, int64_t C)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += load(T, g, c) * load(T, out, c);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(T, dx, c, accumulate, load(T, out, c) * (load(T, g, c) - sum));
}

ALWAYS_INLINE void log_softmax_row_backward(int T, Real *dx, bool accumulate, const Real *g,
                                            const Real *out, int64_t C)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += load(T, g, c);
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(T, dx, c, accumulate, load(T, g, c) - real_exp(load(T, out, c)) * sum);
}

/* dx [R, C], dout [R, C], out [R, C] */
void softmax_backward_cpu(TensorType type, Real *dx, bool accumulate, const Real *dout,
                          const Real *out, bool logarithm, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.2))
    for (int64_t i = 0; i < R * C; i += C)
        if (logarithm)
            BY_STORAGE(type, T,
                       log_softmax_row_backward(T, elements_at(T, dx, i), accumulate,
                                                elements_at(T, dout, i), elements_at(T, out, i),
                                                C));
        else
            BY_STORAGE(type, T,
                       softmax_row_backward(T, elements_at(T, dx, i), accumulate,
                                            elements_at(T, dout, i), elements_at(T, out, i), C));
}

static void softmax_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, softmax_backward,
                (dx.data, dx.accumulate, tape_upstream(node, 0), out->data,
                 *(const bool *)node->attributes, shape_rows(x->shape), shape_columns(x->shape)));
}

/* label: the operation's name and its argument's */
static Tensor *softmax(Tape *tape, const char *name, const char *label, Tensor *x, bool logarithm)
{
    tape_use(tape, label, x);
    const int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *scratch =
        x->type == TENSOR_BF16 && !logarithm ? thread_scratch(tape, x, buffer_length(C)) : NULL;
    KERNEL_CALL(out, softmax_forward,
                (out->data, x->data, logarithm, scratch ? scratch->data : NULL, R, C));
    tape_scratch_free(tape, scratch);
    tape_record(tape, (Node){ name, softmax_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &logarithm, sizeof logarithm) });
    return out;
}

Tensor *op_softmax(Tape *tape, Tensor *x)
{
    return softmax(tape, "op_softmax", "op_softmax: x", x, false);
}

Tensor *op_log_softmax(Tape *tape, Tensor *x)
{
    return softmax(tape, "op_log_softmax", "op_log_softmax: x", x, true);
}
