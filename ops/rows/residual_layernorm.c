/* residual_layernorm, of each of R rows of C elements: layernorm(x + dropout(branch)), the end of a
 * post-norm layer's branch (Vaswani et al. 2017, section 5.4), dropout with probability p
 *   s_c = x_c + m_c branch_c     m_c = k_c / (1 - p), k_c as in ops/elementwise/dropout.c
 *   n_c = (s_c - mean) r     out_c = n_c weight_c + bias_c
 * with mean and r of s, as in ops/rows/layernorm.c
 * Backward, g = dL/dout:
 *   dweight, dbias and ds as in ops/rows/layernorm.c, with s for x
 *   dx_c <- ds_c     dbranch_c <- m_c ds_c, because ds_c / dx_c = 1 and ds_c / dbranch_c = m_c
 * Saved for the backward pass: mean and r, two values per row (`statistics`), and the generator's
 * state. s and m are not saved: the backward pass has x and branch and draws m again anyway, so
 * recomputing s costs one more read, where saving s costs one write and the memory. */
#include "ops/cpu/elementwise/dropout.h"
#include <omp.h>

#include "ops/rows/kernels.h"
#include "ops/rows/layernorm.h"
#include "ops/rows/rows.h"

/* Approximate elements per tile of rows: a tile stays in L1 and uses whole Philox blocks. */
enum { TILE = 2048 };

static int64_t tile_rows(int64_t C)
{
    return C < TILE ? TILE / C : 1;
}

/* s [count] <- x + m branch, for the elements from `first` on; stores m [count]; m may be s. */
ALWAYS_INLINE void add_dropped(int T, Real *s, Real *m, const Real *x, const Real *branch,
                               const DropoutDraw *d, int64_t first, int64_t count)
{
    if (d->limit > 0) {
        dropout_factors(m, d, first, count);
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const Real b = load(T, branch, first + i);
            s[i] = load(T, x, first + i) + (m[i] != 0 ? m[i] * b : 0);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            s[i] = load(T, x, first + i) + load(T, branch, first + i);
    }
}

/* out [R, C], statistics [R], x, branch [R, C], weight [C], bias [C]. A tile of s is
 * stored in out if it is Real; bf16 would round s, so scratch then has a tile per thread. */
void residual_layernorm_forward_cpu(TensorType type, Real *out, Statistics *statistics,
                                    const Real *x, const Real *branch, DropoutDraw d,
                                    const Real *weight, const Real *bias, Real eps, Real *scratch,
                                    int64_t R, int64_t C)
{
    const int64_t rows = tile_rows(C);
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.5))
    for (int64_t start = 0; start < R; start += rows) {
        const int64_t end = start + rows < R ? start + rows : R;
        Real *tile = scratch ? scratch + omp_get_thread_num() * rows * C : out + start * C;
        BY_STORAGE(type, T,
                   add_dropped(T, tile, tile, x, branch, &d, start * C, (end - start) * C));
        for (int64_t row = start; row < end; row++)
            BY_STORAGE(type, T,
                       statistics[row] =
                           layernorm_row(T, elements_at(T, out, row * C), TENSOR_REAL,
                                         tile + (row - start) * C, weight, bias, eps, C));
    }
}

/* ds [count] <- m ds */
static void drop_again(Real *ds, const Real *m, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        ds[i] = m[i] != 0 ? m[i] * ds[i] : 0;
}

/* dx <- ds [count], for the elements from `first` on. */
ALWAYS_INLINE void contribute_rows(int T, Gradient dx, const Real *ds, int64_t first, int64_t count)
{
    if (dx.data && T == TENSOR_REAL && !dx.accumulate) {
        memcpy(dx.data + first, ds, (size_t)count * sizeof *ds);
    } else if (dx.data) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(T, dx.data, first + i, dx.accumulate, ds[i]);
    }
}

/* dx, dbranch [R, C], data NULL if no gradient is required; dweight, dbias [parts, C] or both NULL;
 * dout, x, branch [R, C], weight [C], statistics [R] */
void residual_layernorm_backward_cpu(TensorType type, Gradient dx, Gradient dbranch, Real *dweight,
                                     Real *dbias, int64_t parts, Real *scratch, const Real *dout,
                                     const Real *x, const Real *branch, DropoutDraw d,
                                     const Real *weight, const Statistics *statistics, int64_t R,
                                     int64_t C)
{
    const int64_t rows = tile_rows(C);
    const bool wanted = dx.data || dbranch.data;
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.8))
    for (int64_t i = 0; i < parts; i++) {
        Real *s = scratch + omp_get_thread_num() * 2 * rows * C, *m = s + rows * C;
        WeightRows sums = weight_rows(dweight, dbias, i, C);
        const int64_t last = part_start(i + 1, parts, R);
        for (int64_t start = part_start(i, parts, R); start < last; start += rows) {
            const int64_t end = start + rows < last ? start + rows : last;
            BY_STORAGE(type, T, add_dropped(T, s, m, x, branch, &d, start * C, (end - start) * C));
            for (int64_t row = start; row < end; row++) {
                Real *here = s + (row - start) * C;
                BY_STORAGE(type, T,
                           layernorm_row_backward(wanted ? here : NULL, false, sums, T,
                                                  elements_at(T, dout, row * C), TENSOR_REAL, here,
                                                  weight, statistics[row], C));
            }
            BY_STORAGE(type, T, contribute_rows(T, dx, s, start * C, (end - start) * C));
            if (d.limit > 0)
                drop_again(s, m, (end - start) * C);
            BY_STORAGE(type, T, contribute_rows(T, dbranch, s, start * C, (end - start) * C));
        }
    }
}

static void residual_layernorm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *branch = node->inputs[1];
    Tensor *weight = node->inputs[2], *bias = node->inputs[3];
    const int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    Tensor *scratch = thread_scratch(node->tape, x, 2 * tile_rows(C) * C);
    WeightSums sums = weight_sums_begin(node, x, weight, bias);
    Gradient dx = tape_contribution(node, x), dbranch = tape_contribution(node, branch);
    KERNEL_CALL(x, residual_layernorm_backward,
                (dx, dbranch, sums.dweight, sums.dbias, sums.parts, scratch ? scratch->data : NULL,
                 tape_upstream(node, 0), x->data, branch->data,
                 *(const DropoutDraw *)node->attributes, weight->data,
                 (const Statistics *)node->saved[0]->data, R, C));
    weight_sums_end(node, sums, weight, bias);
    tape_scratch_free(node->tape, scratch);
}

Tensor *op_residual_layernorm(Tape *tape, Tensor *x, Tensor *branch, double probability,
                              Tensor *weight, Tensor *bias, double eps)
{
    tape_use(tape, "op_residual_layernorm: x", x);
    tape_use(tape, "op_residual_layernorm: branch", branch);
    tape_use_real(tape, "op_residual_layernorm: weight", weight);
    tape_use_real(tape, "op_residual_layernorm: bias", bias);
    if (!shape_equal(x->shape, branch->shape))
        tape_error(tape, "op_residual_layernorm: shapes differ: x %s, branch %s",
                   tensor_text(x).text, tensor_text(branch).text);
    layernorm_check(tape, "op_residual_layernorm", x, weight, bias, eps);
    const int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    const DropoutDraw d = dropout_draw(tape, "op_residual_layernorm", (Real)probability, R * C);
    cast_alike(tape, &x, &branch);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *statistics = tape_tensor(tape, shape(R, 2));
    Tensor *scratch = x->type == TENSOR_BF16 ? thread_scratch(tape, x, tile_rows(C) * C) : NULL;
    KERNEL_CALL(out, residual_layernorm_forward,
                (out->data, (Statistics *)statistics->data, x->data, branch->data, d, weight->data,
                 bias->data, (Real)eps, scratch ? scratch->data : NULL, R, C));
    tape_scratch_free(tape, scratch);
    tape_record(tape,
                (Node){ "op_residual_layernorm", residual_layernorm_backward,
                        .inputs = { x, branch, weight, bias }, .outputs = { out },
                        .saved = { statistics }, .attributes = tape_save(tape, &d, sizeof d) });
    return out;
}
