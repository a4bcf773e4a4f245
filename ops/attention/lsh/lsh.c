/* LSH attention (Kitaev, Kaiser, Levskaya 2020, Reformer, section 2 and appendix A), for one
 * sequence and one head. x_i, D elements, is both query and key of position i; v_i has M elements.
 *
 *   u_j = x_j / n_j,  n_j = sqrt(x_j.x_j + eps)        s_ij = x_i.u_j / sqrt D
 *
 * Round r hashes x_i with matrices R of normal random numbers (Andoni et al. 2015):
 * h(x) = argmax([xR; -xR]). It sorts the positions by (h, i); rank_i is i's rank. Each m ranks are
 * a chunk. P_i^(r) is the set of j in i's bucket and in i's chunk or the one before (equations 4
 * and 5); under the causal mask also j < i. A position attends to itself only if nothing else is
 * visible, as the paper's mask of 10^5 has it. In the sorted order P_i^(r) is a range without i,
 * visible_begin_i <= rank_j < visible_end_i.
 *
 * All rounds (equation 6, appendix A). N_ij is the number of rounds r with j in P_i^(r), and U_i
 * the union of the P_i^(r):
 *   lse_i = ln sum_{j in U_i} e^s_ij        out_i = sum_{j in U_i} e^(s_ij - lse_i) v_j
 * with e^(s_ij - lse_i) = e^(s_ij - m_i) / l_i, where m_i and l_i are those of softmax.c over U_i.
 * If U_i is empty, out_i = v_i. The paper sums by rounds, with z_i^(r) the logarithm of the sum
 * over j in P_i^(r) of e^s_ij / N_ij, and o_i^(r) the round's softmax average of values:
 *   out_i = sum_r e^(z_i^(r) - lse_i) o_i^(r)
 *         = sum_r sum_{j in P_i^(r)} e^(s_ij - lse_i) / N_ij v_j
 * since z_i^(r) cancels. So to the backends all rounds are one online softmax (see softmax.c) with
 * weights 1 / N_ij, which starts from m, l and o = l out of the previous rounds.
 *
 * Backward. g_i is the upstream gradient of out_i. Saved are out, m_i, 1 / l_i and the order. The
 * buckets are constants, so with P_ij = e^(s_ij - lse_i), as in softmax attention:
 *   dv_j <- sum_i P_ij g_i        dS_ij = P_ij (g_i.v_j - g_i.out_i)
 * s_ij is linear in x_i and u_j; w_j is the gradient of u_j:
 *   dx_i <- sum_j dS_ij u_j / sqrt D        w_j = sum_i dS_ij x_i / sqrt D
 * A backend's round contributes P_ij / N_ij in place of P_ij. The differential of u_j is
 * dx_j / n_j - x_j (x_j.dx_j) / n_j^3 = (dx_j - u_j (u_j.dx_j)) / n_j, and its matrix is symmetric:
 *   dx_j <- (w_j - u_j (u_j.w_j)) / n_j = sum_i dS_ij (x_i / sqrt D - s_ij u_j) / n_j
 * If U_i is empty, dv_i <- g_i is the only contribution. */
#include "ops/attention/lsh/lsh.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

#include <limits.h>

/* -------------------------------------------------------------------------------- plain kernels */

static int64_t lsh_positions(const AttentionInputs *x, int64_t b)
{
    return x->key_lengths ? x->key_lengths[b] : x->N;
}

/* argmax([xR; -xR]) of both hash functions; R is stored by columns */
static int32_t lsh_hash(const Real *x, const Real *R, const LshRounds *a)
{
    int64_t bucket = 0;
    for (int f = 0; f < 2; f++) {
        const int64_t D = a->x.D, half = a->factor[f] / 2;
        int64_t argmax = 0;
        double max = -INFINITY;
        for (int64_t k = 0; k < 2 * half; k++) {
            const double p = attention_dot(x, R + k % half * D, D) * (k < half ? 1 : -1);
            argmax = p > max ? k : argmax;
            max = p > max ? p : max;
        }
        bucket = bucket * a->factor[f] + argmax;
        R += half * D;
    }
    return (int32_t)bucket;
}

/* A position's rank is the number of positions before it in the order of (bucket, i). */
static void lsh_sort(int32_t *order, const Real *x, const Real *R, const LshRounds *a, int64_t head,
                     int64_t round)
{
    int32_t *bucket = order + lsh_order_at(a, BUCKET, head, round);
    int32_t *rank = order + lsh_order_at(a, RANK, head, round);
    const int64_t n = lsh_positions(&a->x, head / a->x.H);
    R += (round * a->x.H + head % a->x.H) * lsh_columns(a) * a->x.D;
    for (int64_t i = 0; i < n; i++)
        bucket[i] = lsh_hash(x + i * a->x.query_stride, R, a);
    for (int64_t i = 0; i < n; i++) {
        rank[i] = 0;
        for (int64_t j = 0; j < n; j++)
            rank[i] += bucket[j] < bucket[i] || (bucket[j] == bucket[i] && j < i);
    }
}

/* Whether j is in U_i. */
static bool attends_to(const int32_t *order, const LshRounds *a, int64_t head, int64_t i, int64_t j)
{
    bool any = false;
    for (int64_t r = 0; r < a->rounds && j != i && !(a->causal && j > i); r++) {
        const int32_t *bucket = order + lsh_order_at(a, BUCKET, head, r);
        const int32_t *rank = order + lsh_order_at(a, RANK, head, r);
        const int64_t chunks = rank[i] / a->chunk - rank[j] / a->chunk;
        any |= bucket[i] == bucket[j] && (chunks == 0 || chunks == 1);
    }
    return any;
}

/* 1 / n_j */
static double lsh_inverse_length(const Real *x_j, int64_t D)
{
    return 1 / sqrt(attention_dot(x_j, x_j, D) + LSH_EPS);
}

/* s_ij, rounded as m_i is, so that e^(s_ij - m_i) is 1 for a single key */
static double lsh_score(const Real *x_i, const Real *x_j, int64_t D)
{
    const double x_u = attention_dot(x_i, x_j, D) * lsh_inverse_length(x_j, D);
    return (double)(Real)(x_u / sqrt((double)D));
}

void lsh_attention_forward_plain(Real *out, Real *maxima, Real *inverse, int32_t *order,
                                 const LshRounds *a)
{
    const int64_t N = a->x.N, D = a->x.D, M = a->x.M, H = a->x.H, n = lsh_random_numbers(a);
    const int64_t x_stride = a->x.query_stride, v_stride = a->x.value_stride;
    Real *R = device_workspace(n);
    double *scratch = attention_workspace(a->x.B * H * N);
    Random random = a->random;
    random_normal(&random, R, n);
    EACH_ROW(head, a->x.B * H, N * N * D) {
        const int64_t b = head / H, h = head % H, positions = lsh_positions(&a->x, b);
        const Real *x = a->x.query + attention_query_at(&a->x, b, h, 0);
        const Real *v = a->x.value + attention_value_at(&a->x, b, h, 0);
        double *e = scratch + head * N;
        for (int64_t r = 0; r < a->rounds; r++)
            lsh_sort(order, x, R, a, head, r);
        for (int64_t i = 0; i < N; i++) {
            const int64_t row = attention_row_at(&a->x, b, h, i);
            const int64_t keys = i < positions ? positions : 0;
            double m = -INFINITY, l = 0;
            for (int64_t j = 0; j < keys; j++) {
                e[j] = attends_to(order, a, head, i, j)
                           ? lsh_score(x + i * x_stride, x + j * x_stride, D)
                           : -INFINITY;
                m = e[j] > m ? e[j] : m;
            }
            for (int64_t j = 0; j < keys; j++)
                l += e[j] = e[j] == -INFINITY ? 0 : exp(e[j] - m);
            for (int64_t c = 0; c < M; c++) {
                double o = 0;
                for (int64_t j = 0; j < keys; j++)
                    o += e[j] != 0 ? e[j] / l * (double)v[j * v_stride + c] : 0;
                out[row * M + c] = keys > 0 && l == 0 ? v[i * v_stride + c] : (Real)o;
            }
            maxima[row] = (Real)m;
            inverse[row] = l == 0 ? 0 : (Real)(1 / l); /* 0 if U_i is empty */
        }
    }
    attention_workspace_free(scratch);
    device_workspace_free(R);
}

void lsh_attention_backward_plain(AttentionGradient d, const Real *dout, const Real *out,
                                  const Real *m, const Real *inverse, const int32_t *order,
                                  const LshRounds *a)
{
    const int64_t N = a->x.N, D = a->x.D, M = a->x.M, H = a->x.H, size = N * (D + M);
    const int64_t x_at = a->x.query_stride, v_at = a->x.value_stride;
    double *sums = attention_workspace(a->x.B * H * size);
    EACH_ROW(head, a->x.B * H, N * N * D) {
        const int64_t b = head / H, h = head % H, positions = lsh_positions(&a->x, b);
        const int64_t x_first = attention_query_at(&a->x, b, h, 0);
        const int64_t v_first = attention_value_at(&a->x, b, h, 0);
        double *dx = sums + head * size, *dv = dx + N * D;
        memset(dx, 0, (size_t)size * sizeof *dx);
        for (int64_t i = 0; i < positions; i++)
            for (int64_t j = 0; j < positions; j++) {
                const int64_t row = attention_row_at(&a->x, b, h, i);
                const bool alone = i == j && inverse[row] == 0;
                if (!alone && !attends_to(order, a, head, i, j))
                    continue;
                const Real *x_i = a->x.query + x_first + i * x_at, *g = dout + row * M;
                const Real *x_j = a->x.query + x_first + j * x_at;
                const double s = lsh_score(x_i, x_j, D), r = lsh_inverse_length(x_j, D);
                const double P = alone ? 1 : exp(s - (double)m[row]) * (double)inverse[row];
                const double dP = attention_dot(g, a->x.value + v_first + j * v_at, M);
                const double dS = P * (dP - attention_dot(g, out + row * M, M));
                for (int64_t c = 0; c < D; c++) {
                    dx[i * D + c] += dS * x_j[c] * r / sqrt((double)D);
                    dx[j * D + c] += dS * (x_i[c] / sqrt((double)D) - s * x_j[c] * r) * r;
                }
                for (int64_t c = 0; c < M; c++)
                    dv[j * M + c] += P * g[c];
            }
        attention_contribute(d.query, x_first, x_at, dx, N, D);
        attention_contribute(d.value, v_first, v_at, dv, N, M);
    }
    attention_workspace_free(sums);
}

/* ------------------------------------------------------------------------------------ operation */

enum { MAX_ROUNDS = 64, MAX_BUCKETS = 1 << 20, MAX_OF_ONE_HASH = 64 };

/* One hash function, or two of about sqrt(buckets) buckets each: if buckets grow with N, a single
 * hash takes O(N^2) time. The authors' code does the same. */
static LshRounds lsh_rounds(Tape *tape, const char *operation, AttentionInputs x,
                            LshAttentionOptions options)
{
    shape_need_size(operation, "rounds", &options.rounds, 1, MAX_ROUNDS);
    shape_need_size(operation, "chunk", &options.chunk, 32, INT_MAX / 2);
    LshRounds a = { .x = x, .rounds = options.rounds, .chunk = options.chunk };
    const int64_t chunks = (x.N + a.chunk - 1) / a.chunk;
    const int64_t otherwise = 2 * chunks < MAX_BUCKETS ? 2 * chunks : MAX_BUCKETS;
    shape_need_size(operation, "buckets", &options.buckets, otherwise, MAX_BUCKETS);
    const int64_t buckets = options.buckets;
    if (buckets != 1 && buckets % 2 != 0)
        tape_error(tape, "%s: buckets is %lld, expected an even number, or 1", operation,
                   (long long)buckets);
    const int64_t first = 2 * (int64_t)(sqrt((double)buckets) / 2);
    const bool one = buckets <= MAX_OF_ONE_HASH;
    a.factor[0] = one ? buckets : first;
    a.factor[1] = one ? 1 : (buckets + 2 * first - 1) / (2 * first) * 2;
    return a;
}

static void lsh_attention_backward(Node *node)
{
    const Tensor *out = node->outputs[0];
    Tensor *const *saved = node->saved;
    const AttentionGradient d = op_attention_contributions(node, PACKED_QUERY_KEY);
    kernels_of(out)->lsh_attention_backward(d, tape_upstream(node, 0), out->data, saved[0]->data,
                                            saved[1]->data, saved[2]->integers, node->attributes);
}

static Tensor *lsh_attention(Tape *tape, AttentionLabels labels, Tensor *query_key, Tensor *value,
                             LshAttentionOptions options, bool causal)
{
    op_attention_check(tape, labels, query_key, NULL, value, options.key_lengths, causal,
                       PACKED_QUERY_KEY);
    const int64_t N = query_key->shape.size[1];
    if (N > INT_MAX / 2)
        tape_error(tape, "%s %s, expected at most %d positions", labels.query,
                   tensor_text(query_key).text, INT_MAX / 2);
    if (value)
        op_cast_alike(tape, &query_key, &value);
    const AttentionInputs x =
        op_attention_of(query_key, NULL, value, options.key_lengths, NULL, PACKED_QUERY_KEY);
    LshRounds a = lsh_rounds(tape, labels.name, x, options);
    a.causal = causal;
    a.random = tape_draw(tape, (lsh_random_numbers(&a) + 3) / 4);
    a.start = tape_random_start(tape);
    Tensor *out = tape_tensor_of(tape, query_key->type, shape(x.B, N, x.H, x.M));
    Tensor *m = tape_tensor(tape, shape(x.B, N, x.H)), *inverse = tape_tensor(tape, m->shape);
    Tensor *order = tape_tensor_i32(tape, shape(ORDER_ARRAYS, x.B * x.H, a.rounds, N));
    kernels_of(out)->lsh_attention_forward(out->data, m->data, inverse->data, order->integers, &a);
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = lsh_attention_backward,
                              .inputs = { query_key, NULL, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { m, inverse, order },
                              .attributes = tape_save(tape, &a, sizeof a) });
    return out;
}

Tensor *op_causal_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value,
                                LshAttentionOptions options)
{
    const AttentionLabels labels =
        ATTENTION_LABELS("op_causal_lsh_attention", "query_key", "query_key");
    return lsh_attention(tape, labels, query_key, value, options, true);
}

Tensor *op_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, LshAttentionOptions options)
{
    const AttentionLabels labels = ATTENTION_LABELS("op_lsh_attention", "query_key", "query_key");
    return lsh_attention(tape, labels, query_key, value, options, false);
}
