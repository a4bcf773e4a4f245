/* LSH attention (Kitaev, Kaiser, Levskaya 2020, Reformer, section 2 and appendix A), for one
 * sequence and one head. x_i, D elements, is both query and key of position i; v_i has M elements.
 *
 *   u_j = x_j / n_j,  n_j = sqrt(x_j.x_j + eps)        s_ij = x_i.u_j / sqrt D
 *
 * Round r hashes x_i with matrices R of normal random numbers (Andoni et al. 2015):
 * h(x) = argmax([xR; -xR]). It sorts the positions by (h, i); rank_i is i's rank. Each m ranks are a
 * chunk. P_i^(r) is the set of j in i's bucket and in i's chunk or the one before (equations 4 and
 * 5); under the causal mask also j < i. In the sorted order it is a range, visible_begin_i <= rank_j
 * < visible_end_i, without i: a position attends to itself only if nothing else is visible, as the
 * paper's mask of 10^5 has it.
 *
 * All rounds (equation 6, appendix A), where N_ij is the number of rounds r with j in P_i^(r):
 *   L_i = ln sum_r sum_{j in P_i^(r)} e^(s_ij - ln N_ij)
 *   out_i = sum_r sum_{j in P_i^(r)} e^(s_ij - ln N_ij - L_i) v_j
 * In the paper, z_i^(r) is the log-sum-exp of round r, o_i^(r) its softmax average of values, and
 * out_i = sum_r e^(z_i^(r) - L_i) o_i^(r). The normalizer z_i^(r) cancels:
 *   e^(z_i^(r) - L_i) e^(s_ij - ln N_ij - z_i^(r)) = e^(s_ij - ln N_ij - L_i)
 * so all rounds are one online softmax (see softmax.c): (L, out) of the previous rounds are the
 * sums l = 1, o = out at the maximum m = L. Each j counts N_ij times with weight 1 / N_ij: the
 * result is the softmax over the union of the P_i^(r). If the union is empty, out_i = v_i.
 *
 * Backward. g_i is the upstream gradient of out_i. Saved for the backward pass are out, L_i and the
 * order. The buckets are constants, and so are the N_ij. With P_ij = e^(s_ij - L_i), which sums to
 * 1 over the union, the contributions of the rounds are those of softmax attention, because a
 * constant ln N_ij changes no derivative:
 *   dv_j <- sum_r sum_i P_ij / N_ij g_i        dS_ij = P_ij / N_ij (g_i.v_j - g_i.out_i)
 * s_ij is linear in x_i and u_j; w_j is the gradient of u_j:
 *   dx_i <- sum_r sum_j dS_ij u_j / sqrt D     w_j = sum_r sum_i dS_ij x_i / sqrt D
 * The differential of u_j is dx_j / n_j - x_j (x_j.dx_j) / n_j^3 = (dx_j - u_j (u_j.dx_j)) / n_j,
 * and its matrix is symmetric:
 *   dx_j <- (w_j - u_j (u_j.w_j)) / n_j
 * If the union is empty, dv_i <- g_i is the only contribution. */
#include "ops/attention/lsh/lsh.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

#include <limits.h>

/* -------------------------------------------------------------------------------- plain kernels */

/* A head of a sequence, its sorted order, and the number of its positions that are not masked. */
typedef struct LshHead {
    const LshRounds *a;
    const int32_t *order;
    int64_t b, h, head, positions;
} LshHead;

/* The gradient of out, and what the forward pass saved */
typedef struct LshUpstream {
    const Real *dout, *out, *log_sum;
} LshUpstream;

static LshHead lsh_head(const LshRounds *a, const int32_t *order, int64_t head)
{
    const int64_t b = head / a->x.H, h = head % a->x.H;
    return (LshHead){ a, order, b, h, head, a->x.key_lengths ? a->x.key_lengths[b] : a->x.N };
}

static const Real *lsh_x(const LshHead *s, int64_t i)
{
    return s->a->x.query + attention_query_at(&s->a->x, s->b, s->h, i);
}

/* argmax([xR; -xR]), or 0 for one bucket; R is stored by columns */
static int64_t lsh_hash(const Real *x, const Real *R, int64_t D, int64_t buckets)
{
    int64_t bucket = 0, half = buckets / 2;
    double max = -INFINITY;
    for (int64_t k = 0; k < 2 * half; k++) {
        const double p = attention_dot(x, R + k % half * D, D) * (k < half ? 1 : -1);
        bucket = p > max ? k : bucket;
        max = p > max ? p : max;
    }
    return bucket;
}

/* Sorts by counting: start and end are the ranks of i's bucket. */
static void lsh_sort(int32_t *order, const LshHead *s, const Real *R, int64_t round)
{
    const LshRounds *a = s->a;
    const int64_t D = a->x.D, m = a->chunk;
    int32_t *array[ORDER_ARRAYS], *bucket = order + lsh_order_at(a, SORTED_INDEX, s->head, round);
    for (int k = 0; k < ORDER_ARRAYS; k++)
        array[k] = order + lsh_order_at(a, k, s->head, round);
    R += (round * a->x.H + s->h) * lsh_columns(a) * D;
    for (int64_t i = 0; i < s->positions; i++)
        bucket[i] = (int32_t)(lsh_hash(lsh_x(s, i), R, D, a->factor[0]) * a->factor[1] +
                              lsh_hash(lsh_x(s, i), R + a->factor[0] / 2 * D, D, a->factor[1]));
    for (int64_t i = 0; i < s->positions; i++) {
        int64_t start = 0, rank = 0, end = 0;
        for (int64_t j = 0; j < s->positions; j++) {
            start += bucket[j] < bucket[i];
            rank += bucket[j] < bucket[i] || (bucket[j] == bucket[i] && j < i);
            end += bucket[j] <= bucket[i];
        }
        const int64_t first = (rank / m - 1) * m, last = (rank / m + 1) * m;
        array[RANK][i] = (int32_t)rank;
        array[VISIBLE_BEGIN][i] = (int32_t)(start > first ? start : first);
        array[VISIBLE_END][i] = (int32_t)(a->causal ? rank : end < last ? end : last);
    }
    for (int64_t i = 0; i < s->positions; i++) /* replaces the buckets */
        array[SORTED_INDEX][array[RANK][i]] = (int32_t)i;
}

/* Whether j is in the union of the P_i^(r). */
static bool attends_to(const LshHead *s, int64_t i, int64_t j)
{
    bool any = false;
    for (int64_t r = 0; r < s->a->rounds && i != j; r++) {
        const int32_t rank = s->order[lsh_order_at(s->a, RANK, s->head, r) + j];
        any |= s->order[lsh_order_at(s->a, VISIBLE_BEGIN, s->head, r) + i] <= rank &&
               rank < s->order[lsh_order_at(s->a, VISIBLE_END, s->head, r) + i];
    }
    return any;
}

/* The keys that position p attends to, or the queries that attend to p; returns their number. */
static int64_t lsh_partners(int32_t *list, const LshHead *s, int64_t p, bool queries)
{
    int64_t n = 0;
    for (int64_t j = 0; j < s->positions && p < s->positions; j++)
        if (queries ? attends_to(s, j, p) : attends_to(s, p, j))
            list[n++] = (int32_t)j;
    return n;
}

/* sum_k factor_k x[list_k, c] */
static Real lsh_sum(const Real *factor, const int32_t *list, int64_t n, const Real *x,
                    int64_t stride, int64_t c)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++)
        sum += factor[k] * x[list[k] * stride + c];
    return (Real)sum;
}

/* 1 / n_j */
static double lsh_inverse_length(const LshHead *s, int64_t j)
{
    return 1 / sqrt(attention_dot(lsh_x(s, j), lsh_x(s, j), s->a->x.D) + LSH_EPS);
}

/* s_ij */
static Real lsh_score(const LshHead *s, int64_t i, int64_t j)
{
    return (Real)(attention_dot(lsh_x(s, i), lsh_x(s, j), s->a->x.D) * lsh_inverse_length(s, j) /
                  sqrt((double)s->a->x.D));
}

/* out and L of a head, which e, N Reals, and keys, N integers, are memory for */
static void lsh_forward_head(Real *out, Real *log_sum, const LshHead *s, Real *e, int32_t *keys)
{
    const AttentionInputs *x = &s->a->x;
    const Real *v = x->value + attention_value_at(x, s->b, s->h, 0);
    for (int64_t i = 0; i < x->N; i++) {
        const int64_t row = attention_row_at(x, s->b, s->h, i), n = lsh_partners(keys, s, i, false);
        const bool alone = i < s->positions && n == 0;
        Real m = -(Real)INFINITY;
        double l = 0;
        for (int64_t k = 0; k < n; k++) {
            e[k] = lsh_score(s, i, keys[k]);
            m = e[k] > m ? e[k] : m;
        }
        for (int64_t k = 0; k < n; k++)
            l += (e[k] = real_exp(e[k] - m));
        for (int64_t k = 0; k < n; k++)
            e[k] /= (Real)l;
        for (int64_t c = 0; c < x->M; c++)
            out[row * x->M + c] =
                alone ? v[i * x->value_stride + c] : lsh_sum(e, keys, n, v, x->value_stride, c);
        log_sum[row] = alone ? (Real)INFINITY : n == 0 ? 0 : m + (Real)log(l);
    }
}

void lsh_attention_forward_plain(Real *out, Real *log_sum, int32_t *order, const LshRounds *a)
{
    const int64_t N = a->x.N, heads = a->x.B * a->x.H, n = lsh_random_numbers(a);
    Real *R = device_workspace(n), *rows = device_workspace(heads * 2 * N);
    Random random = a->random;
    random_normal(&random, R, n);
    EACH_ROW(head, heads, N * N * a->x.D) {
        const LshHead s = lsh_head(a, order, head);
        Real *own = rows + head * 2 * N;
        for (int64_t round = 0; round < a->rounds; round++)
            lsh_sort(order, &s, R, round);
        lsh_forward_head(out, log_sum, &s, own, (int32_t *)(void *)(own + N));
    }
    device_workspace_free(rows);
    device_workspace_free(R);
}

/* P [n] and dS [n] / sqrt D of position p and its partners, its queries or its keys */
static void lsh_pairs(Real *P, Real *dS, const LshHead *s, const LshUpstream *up, int64_t p,
                      const int32_t *list, int64_t n, bool queries)
{
    const AttentionInputs *x = &s->a->x;
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = queries ? list[k] : p, j = queries ? p : list[k];
        const int64_t row = attention_row_at(x, s->b, s->h, i);
        const Real *g = up->dout + row * x->M, *v = x->value + attention_value_at(x, s->b, s->h, j);
        P[k] = real_exp(lsh_score(s, i, j) - up->log_sum[row]);
        dS[k] = (Real)(P[k] *
                       (attention_dot(g, v, x->M) - attention_dot(g, up->out + row * x->M, x->M)) /
                       sqrt((double)x->D));
    }
}

/* The gradients of position p of a head; memory: 3 N + D Reals */
static void lsh_backward_position(AttentionGradient d, const LshHead *s, const LshUpstream *up,
                                  Real *memory, int64_t p)
{
    const AttentionInputs *x = &s->a->x;
    const int64_t row = attention_row_at(x, s->b, s->h, p), N = x->N;
    const int64_t x_at = attention_query_at(x, s->b, s->h, p);
    const int64_t v_at = attention_value_at(x, s->b, s->h, p);
    const Real *x_0 = lsh_x(s, 0), *x_p = lsh_x(s, p);
    const Real *g = up->dout + attention_row_at(x, s->b, s->h, 0) * x->M;
    Real *P = memory, *dS = P + N, *dx = dS + N;
    int32_t *list = (int32_t *)(void *)(dx + x->D);
    int64_t n = lsh_partners(list, s, p, false);
    const bool alone = p < s->positions && n == 0;
    lsh_pairs(P, dS, s, up, p, list, n, false);
    for (int64_t k = 0; k < n; k++)
        dS[k] *= (Real)lsh_inverse_length(s, list[k]);
    for (int64_t c = 0; c < x->D; c++)
        dx[c] = lsh_sum(dS, list, n, x_0, x->query_stride, c);

    n = lsh_partners(list, s, p, true);
    lsh_pairs(P, dS, s, up, p, list, n, true);
    const Real r = n > 0 ? (Real)lsh_inverse_length(s, p) : 0; /* 1 / n_p */
    double u_w = 0;
    for (int64_t c = 0; c < x->D && n > 0; c++)
        u_w += x_p[c] * r * lsh_sum(dS, list, n, x_0, x->query_stride, c);
    for (int64_t c = 0; c < x->D && d.query.data; c++) {
        const Real w = lsh_sum(dS, list, n, x_0, x->query_stride, c);
        gradient_add(d.query, x_at + c, n > 0 ? dx[c] + r * (w - x_p[c] * r * (Real)u_w) : dx[c]);
    }
    for (int64_t c = 0; c < x->M && d.value.data; c++)
        gradient_add(d.value, v_at + c,
                     lsh_sum(P, list, n, g, x->H * x->M, c) +
                         (alone ? up->dout[row * x->M + c] : 0));
}

void lsh_attention_backward_plain(AttentionGradient d, const Real *dout, const Real *out,
                                  const Real *log_sum, const int32_t *order, const LshRounds *a)
{
    const LshUpstream up = { dout, out, log_sum };
    const int64_t N = a->x.N, heads = a->x.B * a->x.H, size = 3 * N + a->x.D;
    Real *rows = device_workspace(heads * size);
    EACH_ROW(head, heads, N * N * a->x.D) {
        const LshHead s = lsh_head(a, order, head);
        for (int64_t p = 0; p < N; p++)
            lsh_backward_position(d, &s, &up, rows + head * size, p);
    }
    device_workspace_free(rows);
}

/* ------------------------------------------------------------------------------------ arguments */

#define LSH_LABELS(operation)                                                                      \
    {                                                                                              \
        .name = operation, .query = operation ": query_key", .key = operation ": query_key",       \
        .value = operation ": value", .key_lengths = operation ": key_lengths"                     \
    }

enum { MAX_ROUNDS = 64, MAX_BUCKETS = 1 << 20 };

static int64_t whole_option(Tape *tape, AttentionLabels labels, const char *name, int64_t given,
                            int64_t otherwise, int64_t max)
{
    if (given < 0 || given > max)
        tape_error(tape, "%s: %s is %lld, expected 1 to %lld, or 0 for the default", labels.name,
                   name, (long long)given, (long long)max);
    return given ? given : otherwise;
}

static LshAttentionOptions checked_options(Tape *tape, AttentionLabels labels,
                                           LshAttentionOptions options, int64_t N)
{
    options.rounds = whole_option(tape, labels, "rounds", options.rounds, 1, MAX_ROUNDS);
    options.chunk = whole_option(tape, labels, "chunk", options.chunk, 32, INT_MAX / 2);
    int64_t chunks = (N + options.chunk - 1) / options.chunk;
    int64_t otherwise = 2 * chunks < MAX_BUCKETS ? 2 * chunks : MAX_BUCKETS;
    options.buckets =
        whole_option(tape, labels, "buckets", options.buckets, otherwise, MAX_BUCKETS);
    if (options.buckets != 1 && options.buckets % 2 != 0)
        tape_error(tape, "%s: buckets is %lld, expected an even number, or 1", labels.name,
                   (long long)options.buckets);
    return options;
}

/* One hash function, or two of about sqrt(buckets) buckets each: if buckets grow with N, a single
 * hash takes O(N^2) time. The authors' code does the same. */
static void set_factors(LshRounds *rounds, int64_t buckets)
{
    enum { MAX_OF_ONE_HASH = 64 };
    rounds->factor[0] = buckets;
    rounds->factor[1] = 1;
    if (buckets <= MAX_OF_ONE_HASH)
        return;
    int64_t first = 2 * (int64_t)(sqrt((double)buckets) / 2);
    rounds->factor[0] = first;
    rounds->factor[1] = (buckets + 2 * first - 1) / (2 * first) * 2;
}

static LshRounds rounds_of(Tensor *query_key, Tensor *value, Tensor *key_lengths,
                           LshAttentionOptions options, bool causal)
{
    LshRounds rounds = { .x = attention_of(query_key, NULL, value, key_lengths, PACKED_QUERY_KEY),
                         .rounds = options.rounds,
                         .chunk = options.chunk,
                         .causal = causal };
    set_factors(&rounds, options.buckets);
    return rounds;
}

/* ------------------------------------------------------------------------------------ operation */

/* The attributes of a node. */
typedef struct LshAttributes {
    LshAttentionOptions options;
    bool causal;
} LshAttributes;

static void lsh_attention_backward(Node *node)
{
    const LshAttributes *attributes = node->attributes;
    Tensor **in = node->inputs, *out = node->outputs[0];
    const Tensor *log_sum = node->saved[0], *order = node->saved[1];
    const LshRounds rounds =
        rounds_of(in[0], in[2], in[3], attributes->options, attributes->causal);
    const Real *dout = tape_upstream(node, 0);
    const AttentionGradient d = attention_contributions(node, PACKED_QUERY_KEY);
    kernels_of(out)->lsh_attention_backward(d, dout, out->data, log_sum->data, order->integers,
                                            &rounds);
}

static Tensor *lsh_attention(Tape *tape, AttentionLabels labels, Tensor *query_key, Tensor *value,
                             LshAttentionOptions options, bool causal)
{
    attention_check(tape, labels, query_key, NULL, value, options.key_lengths, causal,
                    PACKED_QUERY_KEY);
    const int64_t N = query_key->shape.size[1];
    if (N > INT_MAX / 2)
        tape_error(tape, "%s %s, expected at most %d positions", labels.query,
                   tensor_text(query_key).text, INT_MAX / 2);
    options = checked_options(tape, labels, options, N);
    if (value)
        cast_alike(tape, &query_key, &value);
    LshRounds rounds = rounds_of(query_key, value, options.key_lengths, options, causal);
    rounds.random = tape_draw(tape, (lsh_random_numbers(&rounds) + 3) / 4);
    rounds.start = tape_random_start(tape);
    Tensor *out = tape_tensor_of(tape, query_key->type, attention_out_shape(&rounds.x));
    Tensor *log_sum = tape_tensor(tape, attention_row_shape(&rounds.x));
    Tensor *order =
        tape_tensor_i32(tape, shape(ORDER_ARRAYS, rounds.x.B * rounds.x.H, rounds.rounds, N));
    kernels_of(out)->lsh_attention_forward(out->data, log_sum->data, order->integers, &rounds);
    const LshAttributes attributes = { options, causal };
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = lsh_attention_backward,
                              .inputs = { query_key, NULL, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { log_sum, order },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return out;
}

Tensor *op_causal_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value,
                                LshAttentionOptions options)
{
    const AttentionLabels labels = LSH_LABELS("op_causal_lsh_attention");
    return lsh_attention(tape, labels, query_key, value, options, true);
}

Tensor *op_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, LshAttentionOptions options)
{
    const AttentionLabels labels = LSH_LABELS("op_lsh_attention");
    return lsh_attention(tape, labels, query_key, value, options, false);
}
