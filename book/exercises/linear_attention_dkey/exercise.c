/* Exercise 9.2: the right gradient is that of op_causal_linear_attention; the usual mistakes are
 * quadratic sums over other i, of other rows, times another derivative of phi. */
#include "exercise.h"
#include "../grade.h"

#include <stdlib.h>

enum { Q, K, V, G, OUT, DEN };
static const Real EPS = 0.25;

/* out and den; the right dk is the library's. */
static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 5, 2, 3 }, { 4, 3, 2 }, { 7, 3, 4 } };
    const int N = c->size[0] = sizes[index][0], D = c->size[1] = sizes[index][1];
    const int M = c->size[2] = sizes[index][2];
    case_normal(c, index, Q, N * D);
    case_normal(c, index, K, N * D);
    case_normal(c, index, V, N * M);
    case_normal(c, index, G, N * M);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *k = tape_variable(tape, c->in[K], shape(1, N, 1, D));
    Tensor *out = tensor_keep(
        op_causal_linear_attention(tape, tape_input(tape, c->in[Q], shape(1, N, 1, D)), k,
                                   tape_input(tape, c->in[V], shape(1, N, 1, M)),
                                   (CausalLinearAttentionOptions){ .eps = (double)EPS }, NULL));
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(1, N, 1, M)));
    tensor_read(out, c->in[OUT]);
    for (int i = 0; i < N; i++) {
        c->in[DEN][i] = EPS;
        for (int j = 0; j <= i; j++)
            for (int d = 0; d < D; d++)
                c->in[DEN][i] += phi(c->in[Q][i * D + d]) * phi(c->in[K][j * D + d]);
    }
    case_right(c, 0, tensor_gradient(k)->data, N, D);
    tape_free(tape);
}

/* Calls the learner's function for n positions; the numbers do not matter. */
static void run(int n)
{
    enum { D = 2, M = 3 };
    Real *ones = malloc((size_t)n * M * sizeof *ones), *dk = malloc((size_t)n * D * sizeof *dk);
    for (int i = 0; ones && i < n * M; i++)
        ones[i] = 1;
    linear_attention_dkey((Gradient){ dk, false }, ones, ones, ones, ones, ones, ones, n, D, M);
    free(ones);
    free(dk);
}

static void student(const Case *c, const Gradient *out)
{
    linear_attention_dkey(out[0], c->in[Q], c->in[K], c->in[V], c->in[G], c->in[OUT], c->in[DEN],
                          c->size[0], c->size[1], c->size[2]);
}

static Real dot(const Real *x, const Real *y, int count)
{
    Real sum = 0;
    for (int m = 0; m < count; m++)
        sum += x[m] * y[m];
    return sum;
}

static Real sum_of(const Real *x, int count)
{
    Real sum = 0;
    for (int m = 0; m < count; m++)
        sum += x[m];
    return sum;
}

/* dk_j = sum over i, first <= i < end, of `pair` times `feature` of q_i, times `derivative`. gv and
 * go are the products g_i.v_j and g_i.out_i, den is den_i. */
#define SUMS(name, first, end, pair, feature, derivative)                                          \
    static void name(const Case *c, const Gradient *to)                                            \
    {                                                                                              \
        const int N = c->size[0], D = c->size[1], M = c->size[2];                                  \
        for (int j = 0; j < N; j++)                                                                \
            for (int d = 0; d < D; d++) {                                                          \
                const Real b = phi(c->in[K][j * D + d]), *v = c->in[V] + j * M;                    \
                Real sum = 0;                                                                      \
                for (int i = first; i < end; i++) {                                                \
                    const Real *g = c->in[G] + i * M, *out = c->in[OUT] + i * M;                   \
                    const Real den = c->in[DEN][i], q = c->in[Q][i * D + d], a = phi(q);           \
                    const Real gv = dot(g, v, M), go = dot(g, out, M);                             \
                    sum += (pair) * (feature) + 0 * (gv + go + den + a);                           \
                }                                                                                  \
                gradient_add(to[0], j *D + d, sum * (derivative) + 0 * b);                         \
            }                                                                                      \
    }
#define RANGE(name, first, end) SUMS(name, first, end, (gv - go) / den, a, fmin(1, b))
#define PAIR(name, pair) SUMS(name, j, N, pair, a, fmin(1, b))
#define DERIVATIVE(name, derivative) SUMS(name, j, N, (gv - go) / den, a, derivative)
RANGE(past, 0, j + 1)
RANGE(all, 0, N)
RANGE(too_late, j + 1, N)
RANGE(own, j, j + 1)
PAIR(no_dden, gv / den)
PAIR(dden_sign, (gv + go) / den)
PAIR(no_den, gv - go)
PAIR(dnum_undivided, gv - go / den)
PAIR(dden_undivided, gv / den - go)
PAIR(dden_twice, gv / den - go / den / den)
PAIR(dden_alone, -go / den)
PAIR(sum_of_dnum, (gv + sum_of(g, M)) / den)
PAIR(den_of_j, (gv - go) / c->in[DEN][j])
PAIR(out_of_j, (gv - dot(g, c->in[OUT] + j * M, M)) / den)
PAIR(with_values, (gv - dot(g, c->in[V] + i * M, M)) / den)
DERIVATIVE(no_derivative, 1)
DERIVATIVE(phi_itself, b)
DERIVATIVE(of_value, c->in[K][j * D + d] > 0)
DERIVATIVE(of_query, fmin(1, phi(c->in[Q][j * D + d])))
SUMS(no_phi, j, N, (gv - go) / den, q, fmin(1, b))

/* dq_i <- sum_{j<=i} (dnum~_i.v~_j) b_j phi'(q_i) */
static void dquery(const Case *c, const Gradient *to)
{
    const int N = c->size[0], D = c->size[1], M = c->size[2];
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            const Real *g = c->in[G] + i * M;
            Real sum = 0;
            for (int j = 0; j <= i; j++)
                sum += (dot(g, c->in[V] + j * M, M) - dot(g, c->in[OUT] + i * M, M)) /
                       c->in[DEN][i] * phi(c->in[K][j * D + d]);
            gradient_add(to[0], i * D + d, sum * fmin(1, phi(c->in[Q][i * D + d])));
        }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "linear_attention_dkey",
        .outputs = { "dk" },
        .make = make,
        .student = student,
        .run = run,
        .slow = "the numbers are right, but the time grows with N^2: carry the sum over i along "
                "in a state, from the last position to the first",
        .mistakes = {
            { past, "the sum is over i <= j, the past: k_j is used by the positions i >= j, so "
                    "scan from the last position to the first" },
            { all, "the sum is over all i: positions i < j do not use k_j" },
            { too_late, "the sum is over i > j: add position j to the state before you read it, "
                        "since it attends to itself" },
            { own, "the sum has i = j alone: k_j is used by all positions i >= j, so set R to 0 "
                   "once, not at each position" },
            { no_dden, "dden is missing: k_j is in the divisor too, whose column of v~ is 1" },
            { dden_sign, "the sign of dden is wrong: a larger divisor makes out smaller" },
            { no_den, "nothing is divided by den_i: dnum_i = g_i / den_i, and dden_i = "
                      "-dnum_i.out_i" },
            { dnum_undivided, "dnum_i is not divided by den_i: out_i = num_i / den_i" },
            { dden_undivided, "dden_i is not divided by den_i: it is -(g_i.out_i) / den_i" },
            { dden_twice, "dden_i is divided by den_i twice: -(g_i.num_i) / den_i^2 has num_i, "
                          "and with out_i one division remains" },
            { dden_alone, "only the normalizer's column is there: the sum over m of dnum_im v_jm "
                          "is missing" },
            { sum_of_dnum, "the column of ones has the sum of dnum_i: its derivative is dden_i = "
                           "-dnum_i.out_i" },
            { den_of_j, "the sum is divided by den_j: each position i has its own den_i, within "
                        "the sum" },
            { out_of_j, "dden_i has out_j: the divisor den_i is in out_i, so it is "
                        "-dnum_i.out_i" },
            { with_values, "dden_i has v_i in place of out_i: the derivative of num_i / den_i by "
                           "den_i is -out_i / den_i" },
            { no_derivative, "phi' is missing: this is db, and dk_j = db_j min(1, phi(k_j))" },
            { phi_itself, "db is multiplied by phi(k): phi' is min(1, phi(k)), 1 where k > 0" },
            { of_value, "db is multiplied by 1 where k > 0 and by 0 elsewhere, the derivative of "
                        "relu: that of elu is e^k where k <= 0" },
            { of_query, "phi' is taken at q_j: it is the key that is mapped, so at k_j" },
            { no_phi, "the state has q_i: k_j meets the features phi(q_i)" },
            { dquery, "this is dq, a sum over j <= i of phi(k_j): for dk exchange the roles of "
                      "queries and keys" },
        },
    });
}
