/* Exercise 10.2: the right gradient is that of op_causal_linear_attention. The usual mistakes are
 * sums over pairs of a reading position t and a written position j, with wrong ranges or decays, or
 * the right numbers in wrong cumulative sums. */
#include "exercise.h"
#include "../grade.h"

enum { Q, K, V, G, L };

static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 5, 2, 3 }, { 4, 3, 2 }, { 6, 3, 4 } };
    const int N = c->size[0] = sizes[index][0], D = c->size[1] = sizes[index][1];
    const int M = c->size[2] = sizes[index][2];
    case_normal(c, index, Q, N * D);
    case_normal(c, index, K, N * D);
    case_normal(c, index, V, N * M);
    case_normal(c, index, G, N * M);
    case_normal(c, index, L, N);
    for (int i = 0; i < N; i++)
        c->in[L][i] = -0.1 - fabs(c->in[L][i]) / 2;
    Tape *tape = tape_new(device_open("plain"));
    Tensor *l = tape_variable(tape, c->in[L], shape(1, N, 1));
    Tensor *out = op_causal_linear_attention(
        tape, tape_input(tape, c->in[Q], shape(1, N, 1, D)),
        tape_input(tape, c->in[K], shape(1, N, 1, D)),
        tape_input(tape, c->in[V], shape(1, N, 1, M)),
        (CausalLinearAttentionOptions){
            .features = FEATURE_MAP_IDENTITY, .unnormalized = true, .log_decay = l },
        NULL);
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(1, N, 1, M)));
    case_right(c, 0, tensor_gradient(l)->data, 1, N);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    decay_gradient(out[0].data, c->in[Q], c->in[K], c->in[V], c->in[G], c->in[L], c->size[0],
                   c->size[1], c->size[2]);
}

/* (q_t.k_j) (v_j.g_t) */
static Real pair(const Case *c, int t, int j)
{
    const int D = c->size[1], M = c->size[2];
    return dot(c->in[Q] + t * D, c->in[K] + j * D, D) * dot(c->in[V] + j * M, c->in[G] + t * M, M);
}

/* The log decay from j to t, the sum of l over j < s <= t, or minus that over t < s <= j */
static Real from(const Case *c, int j, int t)
{
    Real sum = 0;
    for (int s = j + 1; s <= t; s++)
        sum += c->in[L][s];
    for (int s = t + 1; s <= j; s++)
        sum -= c->in[L][s];
    return sum;
}

static Real product_of_l(const Case *c, int j, int t)
{
    Real product = 1;
    for (int s = j + 1; s <= t; s++)
        product *= c->in[L][s];
    return product;
}

/* dl_i = the sum over first_t <= t < end_t and 0 <= j < end_j of weight times the pair */
#define PAIRS(name, first_t, end_t, end_j, weight)                                                 \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const int N = c->size[0];                                                                  \
        const Real *l = c->in[L];                                                                  \
        for (int i = 0; i < N; i++) {                                                              \
            out[0].data[i] = 0 * l[i];                                                             \
            for (int t = first_t; t < end_t; t++)                                                  \
                for (int j = 0; j < end_j; j++)                                                    \
                    out[0].data[i] += (weight)*pair(c, t, j);                                      \
        }                                                                                          \
    }
#define DECAYS(name, log_decay) PAIRS(name, i, N, i, exp(log_decay))
DECAYS(undecayed_R, from(c, j, i))
DECAYS(undecayed_S, l[i] + from(c, i, t))
DECAYS(undecayed, 0)
DECAYS(undecayed_but_i, l[i])
DECAYS(no_factor, from(c, j, t) - l[i])
DECAYS(growing, -from(c, j, t))
DECAYS(too_early, from(c, j, i) + from(c, i - 1, t - 1))
DECAYS(own_decay, from(c, j - 1, t))
DECAYS(twice, from(c, j, t) + l[i])
PAIRS(l_itself, i, N, i, product_of_l(c, j, t))
PAIRS(state_after, i, N, i + 1, exp(from(c, j, t)))
PAIRS(factor_state_after, i, N, i + 1, exp(from(c, j, t) + l[i]))
PAIRS(last_state, i, N, N, exp(from(c, j, N - 1) + from(c, i, t)))
PAIRS(own_output, i, i + 1, i, exp(from(c, j, t)))
PAIRS(later_outputs, i + 1, N, i, exp(from(c, j, t)))
PAIRS(forward_R, 0, i + 1, i, exp(from(c, j, i) + from(c, t, i)))
PAIRS(all_outputs, 0, N, i, exp(from(c, j, t)))

/* dl_i from the right numbers, where the one after the last is 0 */
#define SUMS(name, value)                                                                          \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        for (int i = 0; i < c->size[0]; i++) {                                                     \
            const Real dl = c->right[0][i], next = i + 1 < c->size[0] ? c->right[0][i + 1] : 0;    \
            out[0].data[i] = (value) + 0 * (dl + next);                                            \
        }                                                                                          \
    }
SUMS(terms, dl - next)
SUMS(minus_terms, next - dl)
SUMS(minus, -dl)
SUMS(shifted, next)
SUMS(from_the_first, -next)

int main(void)
{
    return grade(&(Exercise){
        .name = "decay_gradient",
        .outputs = { "dl" },
        .fills = true,
        .make = make,
        .student = student,
        .mistakes = {
            { undecayed_R, "R has no decay: S_i reaches S_{i+1} times e^(l_{i+1}), so R_{i+1} "
                           "comes back with the same factor" },
            { undecayed_S, "S has no decay but the last: multiply it by e^(l_i) at each position" },
            { undecayed, "there is no decay in it: S decays at each position, and R on its way "
                         "back" },
            { undecayed_but_i, "e^(l_i) is the only decay in it: S and R decay at each position" },
            { no_factor, "the factor e^(l_i) is missing: the derivative of e^(l_i) S_{i-1} by l_i "
                         "is e^(l_i) S_{i-1}, not S_{i-1}" },
            { growing, "the factors are e^(-l), which grow: multiply by e^(l_i)" },
            { too_early, "R_i takes R_{i+1} times e^(l_i): the factor between S_i and S_{i+1} is "
                         "e^(l_{i+1})" },
            { own_decay, "position i is added before the decay: e^(l_i) multiplies S_{i-1} alone, "
                         "not k_i v_i^T" },
            { twice, "e^(l_i) is in it twice: either Z_i = e^(l_i) S_{i-1} has it, or the "
                     "product" },
            { l_itself, "the state is multiplied by l_i: the decay is e^(l_i)" },
            { state_after, "S_i is used: it contains k_i v_i^T, which has no l_i. Take e^(l_i) "
                           "S_{i-1}" },
            { factor_state_after, "e^(l_i) S_i is used: l_i multiplies S_{i-1}, the state before "
                                  "position i is added" },
            { last_state, "each position uses the last state: store e^(l_i) S_{i-1} per "
                          "position" },
            { own_output, "only position i's own output is in it: later ones read S_i too, so add "
                          "e^(l_{i+1}) R_{i+1}" },
            { later_outputs, "position i's own output is missing: R_i contains q_i g_i^T" },
            { forward_R, "R is summed from the first position: it comes from the last, since "
                         "later outputs use S_i" },
            { all_outputs, "outputs before position i are in it: they do not depend on l_i" },
            { terms, "these are the terms of the cumulative sum: dl_i is the sum of them from i to "
                     "the last position" },
            { minus_terms, "these are dl_{i+1} - dl_i: add them up" },
            { minus, "the sign is wrong: from the last position, dl_i = dl_{i+1} + q_i.dq_i - "
                     "k_i.dk_i" },
            { shifted, "dl_i has the value of dl_{i+1}: add position i's term to the sum before "
                       "you store it" },
            { from_the_first, "q.dq - k.dk is summed from the first position: that sum begins at "
                              "the last, with dl_{N+1} = 0" },
        },
    });
}
