/* Linear attention without a mask (Katharopoulos et al. 2020, equations 4 to 7), in O(N)
 *
 * Of one sequence and one head, in the notation of causal_linear_attention.c: a_i = phi(q_i),
 * b_j = phi(k_j), phi(x) = x + 1 for x > 0 and e^x for x <= 0; j runs over the sequence's keys, all
 * or the first key_lengths of them.
 *
 * Forward
 *     S = sum_j b_j v_j^T      z = sum_j b_j
 *     den_i = a_i.z + eps      out_i = S^T a_i / den_i
 *
 * Backward, from g_i = dL/dout_i
 *   Through the quotient, as in the causal case:
 *     ghat_i = g_i / den_i       the derivative by S^T a_i
 *     delta_i = -ghat_i.out_i    the derivative by den_i
 *   a_i is in both:
 *     da_i = S ghat_i + delta_i z
 *   S and z are in those of every i:
 *     R = dL/dS = sum_i a_i ghat_i^T      r = dL/dz = sum_i delta_i a_i
 *   v_j and b_j are in S, and b_j in z:
 *     db_j = R v_j + r      dv_j = R^T b_j
 *   Through the map, phi' = min(1, phi):
 *     dq_i <- da_i min(1, a_i)      dk_j <- db_j min(1, b_j)      and nothing <- to keys left out
 *
 * Kept from the forward pass: den, a number a position. */
#include "ops/attention.h"
#include "ops/math.h"

#include <omp.h>

/* to = phi(x) */
static void map(Real *to, const Real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = real_exp(x[i] > 0 ? 0 : x[i]) + (x[i] > 0 ? x[i] : 0);
}

/* T <- T + x y^T, T [X, Y] */
static void add_outer(Real *T, const Real *x, const Real *y, int64_t X, int64_t Y)
{
    for (int64_t r = 0; r < X; r++)
#pragma omp simd
        for (int64_t c = 0; c < Y; c++)
            T[r * Y + c] += x[r] * y[c];
}

/* o <- o + T^T x, T [X, Y] */
static void add_product(Real *o, const Real *T, const Real *x, int64_t X, int64_t Y)
{
    for (int64_t r = 0; r < X; r++)
#pragma omp simd
        for (int64_t c = 0; c < Y; c++)
            o[c] += T[r * Y + c] * x[r];
}

/* to <- to + factor x */
static void add_multiple(Real *to, Real factor, const Real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] += factor * x[i];
}

static Real dot(const Real *x, const Real *y, int64_t n)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void transpose(Real *to, const Real *from, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

static void clear(Real *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof(Real));
}

/* dx <- dphi min(1, phi), phi = phi(x) */
static void contribute_through_map(Real *dx, bool accumulate, const Real *dphi, const Real *phi,
                                   int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        contribute(dx + i, accumulate, dphi[i] * (phi[i] > 1 ? 1 : phi[i]));
}

/* One head of one sequence, and a thread's memory for it. */
typedef struct Head {
    const Attention *x;
    int64_t sequence, head, keys; /* keys: those that count */
    Real *S, *R;                  /* [D, M] or transposed */
    Real *z, *r, *phi, *dphi;     /* [D] */
    Real *g;                      /* [M]: ghat or dv */
} Head;

static int64_t head_memory(const Attention *x)
{
    return 2 * x->D * x->M + 4 * x->D + x->M;
}

static Head head_at(const Attention *x, int64_t item, Real *memory)
{
    Head h = { .x = x, .sequence = item / x->H, .head = item % x->H };
    h.keys = x->key_lengths ? x->key_lengths[h.sequence] : x->keys;
    h.S = memory;
    h.R = h.S + x->D * x->M;
    h.z = h.R + x->D * x->M;
    h.r = h.z + x->D;
    h.phi = h.r + x->D;
    h.dphi = h.phi + x->D;
    h.g = h.dphi + x->D;
    return h;
}

/* Where the row of query i, or of key j, begins: rows are stride apart, with columns a head. */
static int64_t query_row(const Head *h, int64_t i, int64_t stride, int64_t columns)
{
    return (h->sequence * h->x->N + i) * stride + h->head * columns;
}

static int64_t key_row(const Head *h, int64_t j, int64_t stride, int64_t columns)
{
    return (h->sequence * h->x->keys + j) * stride + h->head * columns;
}

/* z, and S or its transpose */
static void sum_keys(const Head *h, bool transposed)
{
    const Attention *x = h->x;
    clear(h->S, x->D * x->M);
    clear(h->z, x->D);
    for (int64_t j = 0; j < h->keys; j++) {
        const Real *v = x->value + key_row(h, j, x->value_stride, x->M);
        map(h->phi, x->key + key_row(h, j, x->key_stride, x->D), x->D);
        add_multiple(h->z, 1, h->phi, x->D);
        if (transposed)
            add_outer(h->S, v, h->phi, x->M, x->D);
        else
            add_outer(h->S, h->phi, v, x->D, x->M);
    }
}

static void forward_head(Real *out, /* [B, N, H, M] */
                         Real *den, /* [B, N, H] */
                         const Head *h, Real eps)
{
    const Attention *x = h->x;
    sum_keys(h, false);
    for (int64_t i = 0; i < x->N; i++) {
        map(h->phi, x->query + query_row(h, i, x->query_stride, x->D), x->D);
        Real den_i = dot(h->phi, h->z, x->D) + eps;
        den[query_row(h, i, x->H, 1)] = den_i;
        clear(h->g, x->M);
        add_product(h->g, h->S, h->phi, x->D, x->M);
        Real *out_i = out + query_row(h, i, x->H * x->M, x->M);
        for (int64_t m = 0; m < x->M; m++)
            out_i[m] = h->g[m] / den_i;
    }
}

/* dq, R and r, from S^T and z */
static void backward_queries(Gradient dquery,  /* [B, N, H, D] */
                             const Real *dout, /* [B, N, H, M] */
                             const Real *out,  /* [B, N, H, M] */
                             const Real *den,  /* [B, N, H] */
                             const Head *h)
{
    const Attention *x = h->x;
    clear(h->R, x->D * x->M);
    clear(h->r, x->D);
    for (int64_t i = 0; i < x->N; i++) {
        const int64_t row = query_row(h, i, x->H * x->M, x->M);
        map(h->phi, x->query + query_row(h, i, x->query_stride, x->D), x->D);
        clear(h->g, x->M);
        add_multiple(h->g, 1 / den[query_row(h, i, x->H, 1)], dout + row, x->M);
        Real delta = -dot(h->g, out + row, x->M);
        add_outer(h->R, h->phi, h->g, x->D, x->M);
        add_multiple(h->r, delta, h->phi, x->D);
        if (!dquery.data)
            continue;
        clear(h->dphi, x->D);
        add_multiple(h->dphi, delta, h->z, x->D);
        add_product(h->dphi, h->S, h->g, x->M, x->D);
        contribute_through_map(dquery.data + query_row(h, i, x->query_stride, x->D),
                               dquery.accumulate, h->dphi, h->phi, x->D);
    }
}

/* dk and dv, from R and r; S becomes R^T */
static void backward_keys(Gradient dkey,   /* [B, keys, H, D] */
                          Gradient dvalue, /* [B, keys, H, M] */
                          const Head *h)
{
    const Attention *x = h->x;
    transpose(h->S, h->R, x->D, x->M);
    for (int64_t j = 0; j < x->keys; j++) {
        const int64_t key = key_row(h, j, x->key_stride, x->D);
        const int64_t value = key_row(h, j, x->value_stride, x->M);
        clear(h->phi, x->D);
        clear(h->dphi, x->D);
        clear(h->g, x->M);
        if (j < h->keys) {
            map(h->phi, x->key + key, x->D);
            add_multiple(h->dphi, 1, h->r, x->D);
            add_product(h->dphi, h->S, x->value + value, x->M, x->D);
            add_product(h->g, h->R, h->phi, x->D, x->M);
        }
        if (dkey.data)
            contribute_through_map(dkey.data + key, dkey.accumulate, h->dphi, h->phi, x->D);
        for (int64_t m = 0; dvalue.data && m < x->M; m++)
            contribute(dvalue.data + value + m, dvalue.accumulate, h->g[m]);
    }
}

static int64_t linear_attention_scratch_cpu(const Attention *x)
{
    return device_threads() * head_memory(x);
}

static void linear_attention_forward_cpu(Real *out, /* [B, N, H, M] */
                                         Real *den, /* [B, N, H] */
                                         Real *scratch, const Attention *x, Real eps)
{
#pragma omp parallel for schedule(static) num_threads(device_threads())
    for (int64_t item = 0; item < x->B * x->H; item++) {
        Head h = head_at(x, item, scratch + omp_get_thread_num() * head_memory(x));
        forward_head(out, den, &h, eps);
    }
}

static void linear_attention_backward_cpu(AttentionGradient d, const Real *dout, /* [B, N, H, M] */
                                          const Real *out,                       /* [B, N, H, M] */
                                          const Real *den,                       /* [B, N, H] */
                                          Real *scratch, const Attention *x)
{
#pragma omp parallel for schedule(static) num_threads(device_threads())
    for (int64_t item = 0; item < x->B * x->H; item++) {
        Head h = head_at(x, item, scratch + omp_get_thread_num() * head_memory(x));
        sum_keys(&h, true);
        backward_queries(d.query, dout, out, den, &h);
        if (d.key.data || d.value.data)
            backward_keys(d.key, d.value, &h);
    }
}

static Tensor *new_scratch(Tape *tape, const Attention *attention)
{
    int64_t count = DEVICE_CALL(tape_device(tape), linear_attention_scratch, (attention));
    return tape_scratch(tape, shape(count));
}

static void linear_attention_backward(Node *node)
{
    Tensor *const *inputs = node->inputs;
    Tensor *out = node->outputs[0], *den = node->kept[0];
    Attention attention = attention_of(inputs[0], inputs[1], inputs[2], inputs[3]);
    Tensor *scratch = new_scratch(node->tape, &attention);
    AttentionGradient d = attention_contributions(node);
    DEVICE_CALL(tape_device(node->tape), linear_attention_backward,
                (d, tape_upstream(node, 0), out->data, den->data, scratch->data, &attention));
    tape_scratch_free(node->tape, scratch);
}

Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            Tensor *key_lengths, Real eps)
{
    attention_check(tape, ATTENTION_LABELS("op_linear_attention"), query, key, value, key_lengths,
                    false);
    if (!(eps >= 0))
        tape_error(tape, "op_linear_attention: eps is %g, expected 0 or more", (double)eps);
    Attention attention = attention_of(query, key, value, key_lengths);
    Tensor *out = tape_tensor(tape, attention_out_shape(&attention));
    Tensor *den = tape_tensor(tape, attention_row_shape(&attention));
    Tensor *scratch = new_scratch(tape, &attention);
    DEVICE_CALL(tape_device(tape), linear_attention_forward,
                (out->data, den->data, scratch->data, &attention, eps));
    tape_scratch_free(tape, scratch);
    tape_record(tape, (Node){ .name = "op_linear_attention",
                              .backward = linear_attention_backward,
                              .inputs = { query, key, value, key_lengths },
                              .outputs = { out },
                              .kept = { den } });
    return out;
}
