/* Linear attention without a causal mask on the CPU. A thread processes one head at a time, in
 * chunks of CHUNK positions: it packs their rows (tiles_cpu.h), multiplies and unpacks. */
#include "ops/attention/linear/tiles_cpu.h"
#include "ops/attention/linear/noncausal.h"

#include <omp.h>

/* ------------------------------------------------------------------------------------- products */

/* o_i <- o_i + T^T x_i, rows of o [CHUNK, W] and x [CHUNK, Y], T [Y, W] */
WHOLE_VECTORS static void add_read(Real *o, const Real *T, const Real *x, int64_t Y, int64_t W)
{
    add_product(o, x, Y, 1, T, CHUNK, Y, W);
}

/* --------------------------------------------------------------------------------------- a head */

/* One head of one sequence, and the thread's memory for it; D and M are padded. */
typedef struct Head {
    const AttentionInputs *x;
    FeatureMap features;
    int64_t sequence, head, D, M;
    int64_t keys;     /* unmasked */
    Real *S, *R;      /* [D, M], or [M, D] transposed */
    Real *z, *r;      /* [D] */
    Real *phi, *dphi; /* [CHUNK, D]: of queries or keys */
    Real *v, *g, *o;  /* [CHUNK, M]: v, dnum, and out or dv */
} Head;

static int64_t head_memory(const AttentionInputs *x)
{
    const int64_t D = padded_size(x->D), M = padded_size(x->M);
    return 2 * D * M + 2 * D + CHUNK * (2 * D + 3 * M);
}

static Head head_at(const LinearScan *scan, int64_t item, Real *memory)
{
    const AttentionInputs *x = &scan->x;
    const int64_t D = padded_size(x->D), M = padded_size(x->M);
    Head h = { .x = x,
               .features = scan->features,
               .sequence = item / x->H,
               .head = item % x->H,
               .D = D,
               .M = M };
    h.keys = x->key_lengths ? x->key_lengths[h.sequence] : x->keys;
    h.S = memory;
    h.R = h.S + D * M;
    h.z = h.R + D * M;
    h.r = h.z + D;
    h.phi = h.r + D;
    h.dphi = h.phi + CHUNK * D;
    h.v = h.dphi + CHUNK * D;
    h.g = h.v + CHUNK * M;
    h.o = h.g + CHUNK * M;
    zero_rows(memory, 1, head_memory(x));
    return h;
}

/* Offset of the row of query i, or key j, at this row stride with `columns` elements per head. */
static int64_t query_row(const Head *h, int64_t i, int64_t stride, int64_t columns)
{
    return (h->sequence * h->x->N + i) * stride + h->head * columns;
}

static int64_t key_row(const Head *h, int64_t j, int64_t stride, int64_t columns)
{
    return (h->sequence * h->x->keys + j) * stride + h->head * columns;
}

/* Also prefetches the next rows, as pack_mapped does. */
static void pack_ahead(Real *to, const Real *from, int64_t stride, int64_t count, int64_t columns,
                       int64_t padded)
{
    ask_for_rows(from + count * stride, stride, count, columns);
    pack(to, from, stride, count, columns, padded);
}

static void unpack_ahead(Gradient to, const Real *from, int64_t stride, int64_t count,
                         int64_t columns, int64_t padded)
{
    ask_for_rows(to.data + count * stride, stride, count, columns);
    unpack(to, from, stride, count, columns, padded);
}

static void pack_queries(const Head *h, int64_t i, int64_t count)
{
    const AttentionInputs *x = h->x;
    pack_mapped(h->features, h->phi, x->query + query_row(h, i, x->query_stride, x->D),
                x->query_stride, count, x->D, h->D);
}

static void pack_keys(const Head *h, int64_t j, int64_t count)
{
    const AttentionInputs *x = h->x;
    pack_mapped(h->features, h->phi, x->key + key_row(h, j, x->key_stride, x->D), x->key_stride,
                count, x->D, h->D);
    pack_ahead(h->v, x->value + key_row(h, j, x->value_stride, x->M), x->value_stride, count, x->M,
               h->M);
}

/* z = sum_j b_j, and S = sum_j b_j v_j^T or its transpose */
static void sum_keys(const Head *h, bool transposed)
{
    for (int64_t j = 0; j < h->keys; j += CHUNK) {
        const int64_t count = smaller(CHUNK, h->keys - j);
        pack_keys(h, j, count);
        add_rows(h->z, h->phi, count, h->D);
        if (transposed)
            add_outer(h->S, h->v, h->phi, count, h->M, h->D);
        else
            add_outer(h->S, h->phi, h->v, count, h->D, h->M);
    }
}

/* den_i = a_i.z + eps     out_i = S^T a_i / den_i */
static void forward_queries(Real *out, Real *den, const Head *h, Real eps)
{
    const AttentionInputs *x = h->x;
    const int64_t stride = x->H * x->M;
    for (int64_t i = 0; i < x->N; i += CHUNK) {
        const int64_t count = smaller(CHUNK, x->N - i);
        pack_queries(h, i, count);
        zero_rows(h->o, CHUNK, h->M);
        add_read(h->o, h->S, h->phi, h->D, h->M);
        for (int64_t n = 0; n < count; n++) {
            Real den_i = dot(h->phi + n * h->D, h->z, h->D) + eps;
            den[query_row(h, i + n, x->H, 1)] = den_i;
            multiply_row(h->o + n * h->M, 1 / den_i, h->M);
        }
        unpack_ahead((Gradient){ out + query_row(h, i, stride, x->M), false }, h->o, stride, count,
                     x->M, h->M);
    }
}

/* dnum_i = g_i / den_i     dden_i = -dnum_i.out_i     r <- r + dden_i a_i     da_i = dden_i z */
static void backward_quotient(const Real *dout, const Real *out, const Real *den, const Head *h,
                              int64_t i, int64_t count)
{
    const AttentionInputs *x = h->x;
    const int64_t stride = x->H * x->M, row = query_row(h, i, stride, x->M);
    pack_ahead(h->g, dout + row, stride, count, x->M, h->M);
    pack_ahead(h->o, out + row, stride, count, x->M, h->M);
    zero_rows(h->dphi, CHUNK, h->D);
    for (int64_t n = 0; n < count; n++) {
        multiply_row(h->g + n * h->M, 1 / den[query_row(h, i + n, x->H, 1)], h->M);
        Real delta = -dot(h->g + n * h->M, h->o + n * h->M, h->M);
        add_multiple(h->r, delta, h->phi + n * h->D, h->D);
        add_multiple(h->dphi + n * h->D, delta, h->z, h->D);
    }
}

/* R = sum_i a_i dnum_i^T     da_i <- da_i + S dnum_i, from S^T */
static void backward_queries(Gradient dquery, const Real *dout, const Real *out, const Real *den,
                             const Head *h)
{
    const AttentionInputs *x = h->x;
    for (int64_t i = 0; i < x->N; i += CHUNK) {
        const int64_t count = smaller(CHUNK, x->N - i);
        pack_queries(h, i, count);
        backward_quotient(dout, out, den, h, i, count);
        add_outer(h->R, h->phi, h->g, count, h->D, h->M);
        if (!dquery.data)
            continue;
        add_read(h->dphi, h->S, h->g, h->M, h->D);
        through_map(h->features, h->dphi, h->phi, count * h->D);
        Gradient rows = dquery;
        rows.data += query_row(h, i, x->query_stride, x->D);
        unpack_ahead(rows, h->dphi, x->query_stride, count, x->D, h->D);
    }
}

static void transpose(Real *to, const Real *from, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

/* db_j = r + R v_j     dv_j = R^T b_j     and 0 for masked keys */
static void backward_keys(Gradient dkey, Gradient dvalue, const Head *h)
{
    const AttentionInputs *x = h->x;
    Real *R_transposed = h->S;
    transpose(R_transposed, h->R, h->D, h->M);
    for (int64_t j = 0; j < x->keys; j += CHUNK) {
        const int64_t count = smaller(CHUNK, x->keys - j), counting = smaller(count, h->keys - j);
        zero_rows(h->dphi, CHUNK, h->D);
        zero_rows(h->o, CHUNK, h->M);
        if (counting > 0) {
            pack_keys(h, j, counting);
            for (int64_t n = 0; n < counting; n++)
                add_multiple(h->dphi + n * h->D, 1, h->r, h->D);
            add_read(h->dphi, R_transposed, h->v, h->M, h->D);
            add_read(h->o, h->R, h->phi, h->D, h->M);
            through_map(h->features, h->dphi, h->phi, counting * h->D);
            zero_rows(h->dphi + counting * h->D, CHUNK - counting, h->D);
            zero_rows(h->o + counting * h->M, CHUNK - counting, h->M);
        }
        if (dkey.data) {
            Gradient rows = dkey;
            rows.data += key_row(h, j, x->key_stride, x->D);
            unpack_ahead(rows, h->dphi, x->key_stride, count, x->D, h->D);
        }
        if (dvalue.data) {
            Gradient rows = dvalue;
            rows.data += key_row(h, j, x->value_stride, x->M);
            unpack_ahead(rows, h->o, x->value_stride, count, x->M, h->M);
        }
    }
}

/* -------------------------------------------------------------------------------------- kernels */

int64_t linear_attention_scratch_cpu(const LinearScan *scan)
{
    const AttentionInputs *x = &scan->x;
    return device_threads() * head_memory(x);
}

void linear_attention_forward_cpu(Real *out, Real *den, Real *scratch, const LinearScan *scan)
{
    const AttentionInputs *x = &scan->x;
    const Real eps = scan->eps;
#pragma omp parallel for schedule(static) num_threads(device_threads())
    for (int64_t item = 0; item < x->B * x->H; item++) {
        Head h = head_at(scan, item, scratch + omp_get_thread_num() * head_memory(x));
        sum_keys(&h, false);
        forward_queries(out, den, &h, eps);
    }
}

void linear_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                   const Real *den, Real *scratch, const LinearScan *scan)
{
    const AttentionInputs *x = &scan->x;
#pragma omp parallel for schedule(static) num_threads(device_threads())
    for (int64_t item = 0; item < x->B * x->H; item++) {
        Head h = head_at(scan, item, scratch + omp_get_thread_num() * head_memory(x));
        sum_keys(&h, true);
        backward_queries(d.query, dout, out, den, &h);
        if (d.key.data || d.value.data)
            backward_keys(d.key, d.value, &h);
    }
}
