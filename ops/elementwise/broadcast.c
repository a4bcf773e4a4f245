/* broadcast_to: x repeated along its axes of size 1 and along missing leading axes. With the view
 * of broadcast_view.h,
 *   out[o, p, m, q, i] = x[p, q]
 * Backward, g = dL/dout: x[p, q] contributes to all its copies,
 *   dx[p, q] <- sum over o, m, i of g[o, p, m, q, i]
 * So copy and sum are each other's gradients; binary operations, op_sum and op_mean use both. */
#include "ops/elementwise/kernels.h"
#include "ops/elementwise/broadcast.h"

Shape broadcast_shape(Tape *tape, const char *operation, const Tensor *a, const Tensor *b)
{
    const Shape large = a->shape.rank >= b->shape.rank ? a->shape : b->shape;
    const Shape small = a->shape.rank >= b->shape.rank ? b->shape : a->shape;
    Shape out = large;
    bool fits = true;
    for (int i = 1; i <= small.rank; i++) {
        int64_t *size = &out.size[out.rank - i], other = small.size[small.rank - i];
        fits &= *size == other || *size == 1 || other == 1;
        *size = *size == 1 ? other : *size;
    }
    if (!fits)
        tape_error(tape,
                   "%s: the shapes do not fit: a %s, b %s; expected sizes that are equal or 1, "
                   "aligned at the last axis",
                   operation, tensor_text(a).text, tensor_text(b).text);
    return out;
}

/* From the last axis on: repeated axes extend I, M, O; the others Q, P. */
Broadcast broadcast_of(Shape x, Shape out)
{
    int64_t sizes[] = { 1, 1, 1, 1, 1 }; /* I, Q, M, P, O */
    int part = 0;
    for (int i = 1; i <= out.rank; i++) {
        const int64_t size = out.size[out.rank - i];
        const bool repeated = i > x.rank || x.size[x.rank - i] < size;
        if (size == 1)
            continue;
        part += repeated == part % 2;
        sizes[part] *= size;
    }
    Broadcast b = { .I = sizes[0], .Q = sizes[1], .M = sizes[2], .P = sizes[3], .O = sizes[4] };
    if (b.P == 1)
        b.O *= b.M, b.M = 1;
    if (b.Q == 1)
        b.O *= b.I, b.I = 1;
    return b;
}

/* --------------------------------------------------------------------------------------- copies */

/* Doubles the copied part. */
const Real *repeat_into(int T, Real *buffer, const Real *x, int64_t Q, int64_t first, int64_t count)
{
    const size_t bytes = element_bytes(T);
    int64_t tail = count < Q - first ? count : Q - first;
    int64_t head = count - tail < first ? count - tail : first;
    memcpy(buffer, elements_at(T, x, first), (size_t)tail * bytes);
    memcpy(elements_at(T, buffer, tail), x, (size_t)head * bytes);
    for (int64_t done = tail + head, more; done < count; done += more) {
        more = count - done < done ? count - done : done;
        memcpy(elements_at(T, buffer, done), buffer, (size_t)more * bytes);
    }
    return buffer;
}

/* A run of equal elements (I > 1) or of a row x[p] (I = 1) at a time. */
ALWAYS_INLINE void fill(int T, Real *buffer, const Real *x, Broadcast b, int64_t start,
                        int64_t count)
{
    int64_t i = start % b.I, q = start / b.I % b.Q;
    int64_t m = start / (b.I * b.Q) % b.M, p = start / (b.I * b.Q * b.M) % b.P;
    for (int64_t done = 0, length; done < count; done += length) {
        const Real *from = elements_at(T, x, p * b.Q + q);
        const int64_t left = b.I > 1 ? b.I - i : b.Q - q;
        length = count - done < left ? count - done : left;
#pragma omp simd
        for (int64_t k = 0; k < length; k++)
            store(T, buffer, done + k, b.I > 1 ? load(T, from, 0) : load(T, from, k));
        i = 0;
        q = b.I > 1 ? q + 1 : b.Q;
        if (q == b.Q)
            q = 0, m++;
        if (m == b.M)
            m = 0, p++;
        if (p == b.P)
            p = 0;
    }
}

const Real *broadcast_into(int type, Real *buffer, const Real *x, Broadcast b, int64_t start,
                           int64_t count)
{
    BY_STORAGE(type, T, fill(T, buffer, x, b, start, count));
    return buffer;
}

/* out [count] <- value */
ALWAYS_INLINE void contribute_value(int T, Real *out, bool accumulate, Real value, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        contribute(T, out, i, accumulate, value);
}

/* Long runs of equal elements need no buffer. */
static void copy_runs(TensorType type, Real *out, bool accumulate, Real factor, TensorType x_type,
                      const Real *x, Broadcast b, int64_t n, int64_t run)
{
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_for(n, 0.1))
    for (int64_t r = 0; r < n / run; r++)
        for (int64_t start = 0; start < run; start += BLOCK) {
            const Real value = factor * load((int)x_type, x, r / (b.Q * b.M) % b.P * b.Q + r % b.Q);
            BY_STORAGE(type, T,
                       contribute_value(T, elements_at(T, out, r * run + start), accumulate, value,
                                        block_count(start, run)));
        }
}

ALWAYS_INLINE void copy_block(int T, Real *out, bool accumulate, Real factor, int X, const Real *x,
                              Broadcast b, int64_t start, int64_t n)
{
    _Alignas(64) Real buffer[BLOCK];
    const int64_t count = block_count(start, n);
    x = broadcast_block(X, buffer, x, b, start, count);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        contribute(T, out, start + i, accumulate, factor * load(X, x, i));
}

static void copy(TensorType type, Real *out, bool accumulate, Real factor, TensorType x_type,
                 const Real *x, Broadcast b)
{
    enum { LONG_RUN = 32 };
    const int64_t n = broadcast_count(b), run = b.P * b.Q == 1 ? n : b.I;
    if (run >= LONG_RUN) {
        copy_runs(type, out, accumulate, factor, x_type, x, b, n, run);
        return;
    }
    PARALLEL_BLOCKS(start, n)
        BY_STORAGE(
            type, T,
            BY_STORAGE(x_type, X, copy_block(T, out, accumulate, factor, X, x, b, start, n)));
}

void broadcast_copy_cpu(TensorType type, Real *out, bool accumulate, Real factor, const Real *x,
                        Broadcast b, bool real_x)
{
    copy(type, out, accumulate, factor, real_x ? TENSOR_REAL : type, x, b);
}

void broadcast_copy(const Tensor *like, Real *out, bool accumulate, Real factor, const Real *x,
                    Broadcast b, bool real_x)
{
    KERNEL_CALL(like, broadcast_copy, (out, accumulate, factor, x, b, real_x));
}

/* ----------------------------------------------------------------------------------------- sums */
enum { PARTS = 64, LEAST_CHUNK = 64, CHUNK = 256 };

/* sum[c] += sum_r x[r, c] in the order of r < rows, for c < count: four rows at a time, since loads
 * and stores of sum are the bottleneck. */
ALWAYS_INLINE void add_columns(int T, double *sum, const Real *x, int64_t rows, int64_t stride,
                               int64_t count)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x = elements_at(T, x, 4 * stride))
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            sum[c] = sum[c] + (double)load(T, x, c) + (double)load(T, x, stride + c) +
                     (double)load(T, x, 2 * stride + c) + (double)load(T, x, 3 * stride + c);
    for (; r < rows; r++, x = elements_at(T, x, stride))
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            sum[c] += (double)load(T, x, c);
}

/* x[first] + ... + x[end - 1] */
ALWAYS_INLINE double sum_run(int T, const Real *x, int64_t first, int64_t end)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; i++)
        sum += (double)load(T, x, i);
    return sum;
}

/* In PARTS parts for any number of threads: a fixed order of summation. */
static double sum_all(TensorType type, const Real *x, int64_t n)
{
    double part[PARTS], sum = 0;
#pragma omp parallel for schedule(static) num_threads(threads_for(n, 0.1))
    for (int p = 0; p < PARTS; p++)
        BY_STORAGE(type, T, part[p] = sum_run(T, x, n * p / PARTS, n * (p + 1) / PARTS));
    for (int p = 0; p < PARTS; p++)
        sum += part[p];
    return sum;
}

/* Adjacent sums that a thread computes at a time: many, so that it reads long contiguous pieces;
 * one for runs of I terms, which are contiguous by themselves. */
static int64_t chunk_of(Broadcast b)
{
    const int64_t share = b.P * b.Q / device_threads();
    return b.I > 1 ? 1 : share < LEAST_CHUNK ? LEAST_CHUNK : share < CHUNK ? share : CHUNK;
}

/* sum [count] <- the sums for out[p, q], ..., out[p, q + count - 1]; for runs, count is 1. */
ALWAYS_INLINE void sum_chunk(int T, double *sum, const Real *x, Broadcast b, int64_t p, int64_t q,
                             int64_t count)
{
    const int64_t plane = b.P * b.M * b.Q * b.I, row = b.Q * b.I;
    const int64_t first = (p * b.M * b.Q + q) * b.I;
    memset(sum, 0, (size_t)count * sizeof *sum);
    if (b.I > 1)
        for (int64_t k = 0; k < b.O * b.M; k++) {
            const int64_t start = first + k / b.M * plane + k % b.M * row;
            sum[0] += sum_run(T, x, start, start + b.I);
        }
    else if (b.M > 1)
        for (int64_t o = 0; o < b.O; o++)
            add_columns(T, sum, elements_at(T, x, first + o * plane), b.M, row, count);
    else
        add_columns(T, sum, elements_at(T, x, first), b.O, plane, count);
}

/* out [count] <- factor sum */
ALWAYS_INLINE void contribute_sums(int T, Real *out, bool accumulate, Real factor,
                                   const double *sum, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        contribute(T, out, c, accumulate, factor * (Real)sum[c]);
}

void broadcast_sum_cpu(TensorType type, Real *out, bool accumulate, Real factor, Real *scratch,
                       const Real *x, Broadcast b, bool real_out)
{
    (void)scratch;
    const int64_t n = broadcast_count(b), chunk = chunk_of(b);
    const TensorType out_type = real_out ? TENSOR_REAL : type;
    if (b.P * b.Q == n) {
        copy(out_type, out, accumulate, factor, type, x, b);
        return;
    }
    if (b.P * b.Q == 1) {
        const double sum = sum_all(type, x, n);
        BY_STORAGE(out_type, Out, contribute_sums(Out, out, accumulate, factor, &sum, 1));
        return;
    }
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads_for(n, 0.1))
    for (int64_t p = 0; p < b.P; p++)
        for (int64_t q = 0; q < b.Q; q += chunk) {
            const int64_t count = b.Q - q < chunk ? b.Q - q : chunk;
            double sum[CHUNK];
            BY_STORAGE(type, T, sum_chunk(T, sum, x, b, p, q, count));
            BY_STORAGE(out_type, Out,
                       contribute_sums(Out, elements_at(Out, out, p * b.Q + q), accumulate, factor,
                                       sum, count));
        }
}

void broadcast_sum(Tape *tape, const Tensor *like, Real *out, bool accumulate, Real factor,
                   const Real *x, Broadcast b, bool real_out)
{
    int64_t wanted = CUDA_CALL(like->device, broadcast_sum_scratch, (b), 0);
    Tensor *scratch = wanted ? tape_scratch(tape, shape(wanted)) : NULL;
    KERNEL_CALL(like, broadcast_sum,
                (out, accumulate, factor, scratch ? scratch->data : NULL, x, b, real_out));
    tape_scratch_free(tape, scratch);
}

/* ----------------------------------------------------------------- gradients of repeated inputs */
WideGradient wide_gradient_begin(Node *node, Tensor *x, Broadcast b)
{
    Gradient gradient = tape_contribution(node, x);
    if (!gradient.data || tensor_count(x) == broadcast_count(b))
        return (WideGradient){ .data = gradient.data, .accumulate = gradient.accumulate };
    Tensor *workspace = tape_tensor_of(node->tape, x->type, shape(broadcast_count(b)));
    return (WideGradient){ .data = workspace->data, .gradient = gradient, .workspace = workspace };
}

void wide_gradient_end(Node *node, Tensor *x, Broadcast b, WideGradient wide)
{
    if (!wide.workspace)
        return;
    broadcast_sum(node->tape, x, wide.gradient.data, wide.gradient.accumulate, 1, wide.data, b,
                  false);
    tape_scratch_free(node->tape, wide.workspace);
}

/* ------------------------------------------------------------------------------------ operation */
static void broadcast_to_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Broadcast b = broadcast_of(x->shape, node->outputs[0]->shape);
    Gradient dx = tape_contribution(node, x);
    broadcast_sum(node->tape, x, dx.data, dx.accumulate, 1, tape_upstream(node, 0), b, false);
}

Tensor *op_broadcast_to(Tape *tape, Tensor *x, Shape shape)
{
    tape_use(tape, "op_broadcast_to: x", x);
    shape = shape_new(shape.rank, shape.size);
    bool fits = x->shape.rank <= shape.rank;
    for (int i = 1; fits && i <= x->shape.rank; i++) {
        const int64_t size = x->shape.size[x->shape.rank - i];
        fits = size == 1 || size == shape.size[shape.rank - i];
    }
    if (!fits)
        tape_error(tape,
                   "op_broadcast_to: x %s, which does not fit %s; expected sizes that are equal or "
                   "1, aligned at the last axis",
                   tensor_text(x).text, shape_text(shape).text);
    Tensor *out = tape_tensor_of(tape, x->type, shape);
    broadcast_copy(x, out->data, false, 1, x->data, broadcast_of(x->shape, shape), false);
    tape_record(tape, (Node){ "op_broadcast_to", broadcast_to_backward, .inputs = { x },
                              .outputs = { out } });
    return out;
}
