/* LSH attention (Kitaev, Kaiser, Levskaya 2020, Reformer, section 2 and appendix A), for one
 * sequence and one head. x_i, D elements, is both query and key of position i; v_i has M elements.
 *
 *   u_j = x_j / n_j,  n_j = sqrt(x_j.x_j + eps)        s_ij = x_i.u_j / sqrt D
 *
 * Round r hashes x_i with matrices R of normal random numbers (Andoni et al. 2015):
 * h(x) = argmax([xR; -xR]). It sorts the positions by (h, i); place_i is the rank of i. The sorted
 * order is cut into chunks of m places. P_i^(r) is the set of j in i's bucket and in i's chunk or
 * the one before (equations 4 and 5); under the causal mask also j < i. In the sorted order it is a
 * range, low_i <= place_j < high_i, without i: a position attends to itself only if it sees nothing
 * else, as the paper's mask of 10^5 has it.
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
 * places. The buckets are constants, and so are the N_ij. With P_ij = e^(s_ij - L_i), which sums to
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
#include "ops/shared/internal.h"

#include <limits.h>

/* ------------------------------------------------------------------------------------ arguments */

#define LABELS(operation)                                                                          \
    {                                                                                              \
        .name = operation, .query = operation ": query_key", .key = operation ": query_key",       \
        .value = operation ": value", .key_lengths = operation ": key_lengths"                     \
    }

enum { MOST_ROUNDS = 64, MOST_BUCKETS = 1 << 20 };

static int64_t whole_option(Tape *tape, AttentionLabels labels, const char *name, int64_t given,
                            int64_t otherwise, int64_t most)
{
    if (given < 0 || given > most)
        tape_error(tape, "%s: %s is %lld, expected 1 to %lld, or 0 for the default", labels.name,
                   name, (long long)given, (long long)most);
    return given ? given : otherwise;
}

static LshAttentionOptions checked_options(Tape *tape, AttentionLabels labels,
                                           LshAttentionOptions options, int64_t N)
{
    options.rounds = whole_option(tape, labels, "rounds", options.rounds, 1, MOST_ROUNDS);
    options.chunk = whole_option(tape, labels, "chunk", options.chunk, 32, INT_MAX / 2);
    int64_t chunks = (N + options.chunk - 1) / options.chunk;
    int64_t otherwise = 2 * chunks < MOST_BUCKETS ? 2 * chunks : MOST_BUCKETS;
    options.buckets =
        whole_option(tape, labels, "buckets", options.buckets, otherwise, MOST_BUCKETS);
    if (options.buckets != 1 && options.buckets % 2 != 0)
        tape_error(tape, "%s: buckets is %lld, expected an even number, or 1", labels.name,
                   (long long)options.buckets);
    return options;
}

/* One hash function, or two of about sqrt(buckets) buckets each: if buckets grow with N, a single
 * hash takes O(N^2) time. The authors' code does the same. */
static void set_factors(LshRounds *rounds, int64_t buckets)
{
    enum { MOST_OF_ONE_HASH = 64 };
    rounds->factor[0] = buckets;
    rounds->factor[1] = 1;
    if (buckets <= MOST_OF_ONE_HASH)
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

static Tensor *scratch_for(Tape *tape, const Tensor *out, const LshRounds *rounds, bool backward)
{
    return tape_scratch(tape, shape(KERNEL_CALL(out, lsh_attention_scratch, (rounds, backward))));
}

/* The attributes of a node. */
typedef struct LshAttributes {
    LshAttentionOptions options;
    bool causal;
} LshAttributes;

static void lsh_attention_backward(Node *node)
{
    const LshAttributes *attributes = node->attributes;
    Tensor **in = node->inputs, *out = node->outputs[0];
    Tensor *log_sum = node->saved[0], *places = node->saved[1];
    LshRounds rounds = rounds_of(in[0], in[2], in[3], attributes->options, attributes->causal);
    const Real *dout = tape_upstream(node, 0);
    AttentionGradient d = attention_contributions(node, PACKED_QUERY_KEY);
    Tensor *scratch = scratch_for(node->tape, out, &rounds, true);
    KERNEL_CALL(out, lsh_attention_backward,
                (d, dout, out->data, log_sum->data, places->integers, scratch->data, &rounds));
    tape_scratch_free(node->tape, scratch);
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
    Tensor *places =
        tape_tensor_i32(tape, shape(PLACES_KINDS, rounds.x.B * rounds.x.H, rounds.rounds, N));
    Tensor *scratch = scratch_for(tape, out, &rounds, false);
    KERNEL_CALL(out, lsh_attention_forward,
                (out->data, log_sum->data, places->integers, scratch->data, &rounds));
    tape_scratch_free(tape, scratch);
    const LshAttributes attributes = { options, causal };
    tape_record(tape, (Node){ .name = labels.name,
                              .backward = lsh_attention_backward,
                              .inputs = { query_key, NULL, value, options.key_lengths },
                              .outputs = { out },
                              .saved = { log_sum, places },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return out;
}

Tensor *op_causal_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value,
                                LshAttentionOptions options)
{
    const AttentionLabels labels = LABELS("op_causal_lsh_attention");
    return lsh_attention(tape, labels, query_key, value, options, true);
}

Tensor *op_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, LshAttentionOptions options)
{
    const AttentionLabels labels = LABELS("op_lsh_attention");
    return lsh_attention(tape, labels, query_key, value, options, false);
}
