/* Exercise 10.1: the right state and output are those of op_delta_rule at a single position. */
#include "exercise.h"
#include "../grade.h"

#include <string.h>

enum { K, V, Q, STATE, BETA, MAX_D = 5 };

static void make(Case *c, int index)
{
    static const int sizes[CASES][2] = { { 3, 2 }, { 2, 4 }, { 5, 3 } };
    const int D = c->size[0] = sizes[index][0], M = c->size[1] = sizes[index][1];
    case_normal(c, index, K, D);
    case_normal(c, index, V, M);
    case_normal(c, index, Q, D);
    case_normal(c, index, STATE, D * M);
    c->in[BETA][0] = 0.3 + 0.4 * index;
    Tape *tape = tape_new(device_open("plain"));
    Tensor *after, *state = tape_input(tape, c->in[STATE], shape(1, 1, D, M));
    Tensor *out = op_delta_rule(tape, tape_input(tape, c->in[Q], shape(1, 1, 1, D)),
                                tape_input(tape, c->in[K], shape(1, 1, 1, D)),
                                tape_input(tape, c->in[V], shape(1, 1, 1, M)),
                                tape_input(tape, c->in[BETA], shape(1, 1, 1)),
                                (DeltaRuleOptions){ .state = state }, &after);
    case_right(c, 0, out->data, 1, M);
    case_right(c, 1, after->data, D, M);
    tape_free(tape);
}

/* The function gets S in its place among the results. A state that it leaves alone counts as not
 * written. */
static void student(const Case *c, const Gradient *out)
{
    const int D = c->size[0], M = c->size[1];
    Real *S = out[1].data, before = S[0];
    memcpy(S, c->in[STATE], (size_t)(D * M) * sizeof *S);
    delta_step(out[0].data, S, c->in[K], c->in[V], c->in[Q], c->in[BETA][0], D, M);
    if (memcmp(S, c->in[STATE], (size_t)(D * M) * sizeof *S) == 0)
        for (int i = 0; i < D * M; i++)
            S[i] = before;
}

static Real length_of(const Real *k, int D)
{
    Real squares = 0;
    for (int d = 0; d < D; d++)
        squares += k[d] * k[d];
    return squares;
}

/* S^T x; where it is flipped, of S read as if it had M rows of D elements */
static void answer(Real *out, const Real *S, const Real *x, int D, int M, bool flipped)
{
    for (int m = 0; m < M; m++) {
        out[m] = 0;
        for (int d = 0; d < D; d++)
            out[m] += S[flipped ? m * D + d : d * M + m] * x[d];
    }
}

/* S = keep S + k u^T with u_m = an expression of v, of the old answers of k and q, and of beta;
 * out = reads^T asks */
#define STEP(name, flipped, u, keep, reads, asks)                                                  \
    static void name(const Case *c, const Gradient *results)                                       \
    {                                                                                              \
        const int D = c->size[0], M = c->size[1];                                                  \
        const Real *k = c->in[K], *q = c->in[Q], *before = c->in[STATE], beta = c->in[BETA][0];    \
        Real *after = results[1].data, old[MAX_M], at_q[MAX_M];                                    \
        answer(old, before, k, D, M, flipped);                                                     \
        answer(at_q, before, q, D, M, false);                                                      \
        for (int m = 0; m < M; m++) {                                                              \
            const Real v = c->in[V][m], u_m = (u) + 0 * (v + beta + old[m] + at_q[m]);             \
            for (int d = 0; d < D; d++)                                                            \
                after[d * M + m] = keep * before[d * M + m] + k[d] * u_m;                          \
        }                                                                                          \
        answer(results[0].data, reads, asks, D, M, false);                                         \
    }
#define RULE(name, u) STEP(name, false, u, 1, after, q)
RULE(no_old, v)
RULE(sum_beta, beta *v)
RULE(no_beta, v - old[m])
RULE(beta_of_v, beta *v - old[m])
RULE(beta_of_old, v - beta * old[m])
RULE(beta_twice, beta *beta *(v - old[m]))
RULE(sign, beta *(old[m] - v))
RULE(at_query, beta *(v - at_q[m]))
RULE(divided, beta *(v - old[m]) / length_of(k, D))
STEP(other_indices, true, beta *(v - old[m]), 1, after, q)
STEP(early, false, beta *(v - old[m]), 1, before, q)
STEP(asks_key, false, beta *(v - old[m]), 1, after, k)
STEP(lost, false, beta *(v - old[m]), 0, after, q)
STEP(moved, false, beta *(v - old[m]), (1 - beta), after, q)

/* Results hold what the learner found in them. */
static void added(const Case *c, const Gradient *results)
{
    const int D = c->size[0], M = c->size[1];
    for (int m = 0; m < M; m++)
        results[0].data[m] += c->right[0][m];
    memcpy(results[1].data, c->right[1], (size_t)(D * M) * sizeof(Real));
}

/* All of it with S as M rows of D elements */
static void all_indices(const Case *c, const Gradient *results)
{
    const int D = c->size[0], M = c->size[1];
    const Real *k = c->in[K];
    Real *S = results[1].data, old[MAX_M];
    memcpy(S, c->in[STATE], (size_t)(D * M) * sizeof *S);
    answer(old, S, k, D, M, true);
    for (int m = 0; m < M; m++)
        for (int d = 0; d < D; d++)
            S[m * D + d] += c->in[BETA][0] * k[d] * (c->in[V][m] - old[m]);
    answer(results[0].data, S, c->in[Q], D, M, true);
}

/* Each row of S is changed before the next row's old answers are read. */
static void late(const Case *c, const Gradient *results)
{
    const int D = c->size[0], M = c->size[1];
    const Real *k = c->in[K];
    Real *S = results[1].data, old[MAX_M];
    memcpy(S, c->in[STATE], (size_t)(D * M) * sizeof *S);
    for (int d = 0; d < D; d++) {
        answer(old, S, k, D, M, false);
        for (int m = 0; m < M; m++)
            S[d * M + m] += c->in[BETA][0] * k[d] * (c->in[V][m] - old[m]);
    }
    answer(results[0].data, S, c->in[Q], D, M, false);
}

int main(void)
{
    return grade(&(Exercise){
        .name = "delta_step",
        .outputs = { "out", "S" },
        .fills = true,
        .make = make,
        .student = student,
        .mistakes = {
            { no_old, "v is added as it is: subtract the old answer S^T k and multiply by beta, or "
                   "this is a sum that never corrects" },
            { sum_beta, "beta v is added without subtracting the old answer: this is a sum, and "
                        "what was stored under k stays" },
            { no_beta, "beta is missing: the answer moves by the fraction beta of the error" },
            { beta_of_v, "beta multiplies v alone: it is the step size, and multiplies the whole "
                         "difference v - S^T k" },
            { beta_of_old, "beta multiplies the old answer alone: it is the step size, and "
                           "multiplies the whole difference v - S^T k" },
            { beta_twice, "beta is multiplied twice: u already contains it" },
            { sign, "the sign of u is wrong: v minus the old answer moves the answer to v, the "
                    "opposite moves it away" },
            { at_query, "the old answer is that to q: the error to correct is that of k, since v "
                        "belongs to k" },
            { divided, "u is divided by |k|^2: the rule has no divisor, and keys are normalized "
                       "before it, if at all" },
            { late, "S changes while old answers are still read from it: compute all of u first, "
                    "then add k u^T" },
            { other_indices, "S^T k reads the wrong elements: element m of it is the sum over d of "
                       "S[d * M + m] k[d]" },
            { all_indices, "S is read as M rows of D elements: row d, column m is S[d * M + m]" },
            { early, "out is read before the update: S_i^T q_i contains position i" },
            { added, "out is added to what the array held: begin with 0" },
            { asks_key, "out is the answer to k: read the changed state with q" },
            { lost, "S is replaced by k u^T: add it to what S holds" },
            { moved, "all of S is multiplied by 1 - beta: that forgets the other keys too. Only "
                     "the answer to k moves" },
        },
    });
}
