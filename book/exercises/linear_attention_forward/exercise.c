/* Exercise 9.1: the right outputs are those of op_causal_linear_attention; the usual mistakes are
 * quadratic sums with another weight, another range of j or another divisor. */
#include "exercise.h"
#include "../grade.h"

#include <stdlib.h>

enum { Q, K, V };
static const Real EPS = 0.25; /* large, so that it shows */

static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 5, 2, 3 }, { 4, 3, 2 }, { 7, 3, 4 } };
    const int N = c->size[0] = sizes[index][0], D = c->size[1] = sizes[index][1];
    const int M = c->size[2] = sizes[index][2];
    case_normal(c, index, Q, N * D);
    case_normal(c, index, K, N * D);
    case_normal(c, index, V, N * M);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *out =
        op_causal_linear_attention(tape, tape_input(tape, c->in[Q], shape(1, N, 1, D)),
                                   tape_input(tape, c->in[K], shape(1, N, 1, D)),
                                   tape_input(tape, c->in[V], shape(1, N, 1, M)),
                                   (CausalLinearAttentionOptions){ .eps = (double)EPS }, NULL);
    case_right(c, 0, out->data, N, M);
    tape_free(tape);
}

/* Calls the learner's function for n positions; the numbers do not matter. */
static void run(int n)
{
    enum { D = 2, M = 3 };
    const Real *zeros = calloc((size_t)n * M, sizeof *zeros);
    Real *out = calloc((size_t)n * M, sizeof *out);
    linear_attention_forward(out, zeros, zeros, zeros, n, D, M, EPS);
    free((void *)zeros);
    free(out);
}

static void student(const Case *c, const Gradient *out)
{
    linear_attention_forward(out[0].data, c->in[Q], c->in[K], c->in[V], c->size[0], c->size[1],
                             c->size[2], EPS);
}

typedef Real Map(Real x);

static Real itself(Real x)
{
    return x;
}

static Real dot(const Real *q, Map *of_q, const Real *k, Map *of_k, int D)
{
    Real sum = 0;
    for (int d = 0; d < D; d++)
        sum += of_q(q[d]) * of_k(k[d]);
    return sum;
}

static Real sum_of(const Real *k, int D)
{
    Real sum = 0;
    for (int d = 0; d < D; d++)
        sum += phi(k[d]);
    return sum;
}

/* num_i = sum over j, first <= j < end, of `weight` v_j; out_i = num_i / divisor. `before_i` and
 * `before_j` add something to the divisor for each i, and for each pair. */
#define SUMS(name, of_q, of_k, weight, first, end, before_i, before_j, divisor)                    \
    static void name(const Case *c, const Gradient *out)                                           \
    {                                                                                              \
        const int N = c->size[0], D = c->size[1], M = c->size[2];                                  \
        for (int i = 0; i < N; i++) {                                                              \
            Real num[MAX_M] = { 0 }, den = before_i;                                               \
            for (int j = first; j < end; j++) {                                                    \
                const Real *k = c->in[K] + j * D;                                                  \
                const Real ab = dot(c->in[Q] + i * D, of_q, k, of_k, D);                           \
                den += before_j;                                                                   \
                for (int m = 0; m < M; m++)                                                        \
                    num[m] += weight * c->in[V][j * M + m];                                        \
            }                                                                                      \
            for (int m = 0; m < M; m++)                                                            \
                out[0].data[i * M + m] = num[m] / (divisor);                                       \
        }                                                                                          \
    }
#define MAPS(name, of_q, of_k) SUMS(name, of_q, of_k, ab, 0, i + 1, EPS, ab, den)
#define RANGE(name, first, end) SUMS(name, phi, phi, ab, first, end, EPS, ab, den)
#define DIVISOR(name, before_i, before_j, divisor)                                                 \
    SUMS(name, phi, phi, ab, 0, i + 1, before_i, before_j + 0 * ab, divisor)
MAPS(phi_of_q_alone, phi, itself)
MAPS(phi_of_k_alone, itself, phi)
MAPS(no_phi, itself, itself)
SUMS(softmax, itself, itself, exp(ab), 0, i + 1, EPS, exp(ab), den)
RANGE(too_late, 0, i)
RANGE(future, 0, N)
RANGE(later, i, N)
RANGE(own, i, i + 1)
DIVISOR(no_divisor, 1, 0, den)
DIVISOR(no_eps, 0, ab, den)
DIVISOR(many_eps, 0, ab + EPS, den)
DIVISOR(own_divisor, EPS, (j == i) * ab, den)
DIVISOR(sum_of_k, EPS, sum_of(k, D), den)
DIVISOR(mean, i + 1, 0, den)

/* The divisors of positions are added up. */
static void kept_divisor(const Case *c, const Gradient *out)
{
    const int N = c->size[0], D = c->size[1], M = c->size[2];
    Real den = EPS;
    for (int i = 0; i < N; i++) {
        Real own_den = EPS;
        for (int j = 0; j <= i; j++)
            own_den += dot(c->in[Q] + i * D, phi, c->in[K] + j * D, phi, D);
        den += own_den - EPS;
        for (int m = 0; m < M; m++)
            out[0].data[i * M + m] = c->right[0][i * M + m] * own_den / den;
    }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "linear_attention_forward",
        .outputs = { "out" },
        .fills = true,
        .make = make,
        .student = student,
        .run = run,
        .slow = "the numbers are right, but the time grows with N^2: carry the sums over j along "
                "in a state",
        .mistakes = {
            { too_late, "position i does not attend to itself: add phi(k_i) v_i^T to the state "
                        "before you read it, since the sum is over j <= i" },
            { future, "all positions are in the sum, the future too: read the state as soon as "
                      "position i is added" },
            { later, "the sum is over j >= i: begin with the first position, not with the last" },
            { own, "the state has position i alone, and out_i is nearly v_i: set it to 0 once, "
                   "not at each position" },
            { phi_of_q_alone, "phi is applied to q alone: keys are features too, phi(k_j)" },
            { phi_of_k_alone, "phi is applied to k alone: queries are features too, phi(q_i)" },
            { no_phi, "phi is missing: the weight is phi(q_i).phi(k_j), and q_i.k_j may be "
                      "negative" },
            { softmax, "the weights are e^(q.k), those of softmax attention: here they are "
                       "phi(q_i).phi(k_j)" },
            { no_divisor, "the divisor is missing: the weights of a position must add up to 1" },
            { no_eps, "eps is missing: the divisor is the sum of the weights plus eps" },
            { many_eps, "eps is added once per position j: add it once to the divisor" },
            { own_divisor, "the divisor has phi(q_i).phi(k_i) alone: it sums over j <= i too, so "
                           "it needs a state z, the sum of phi(k_j)" },
            { sum_of_k, "the divisor is the sum of z's elements: it is phi(q_i).z + eps" },
            { mean, "the sum is divided by the number of positions: divide by the sum of the "
                    "weights plus eps" },
            { kept_divisor, "the divisor of one position continues in the next: begin with eps at "
                            "each position" },
        },
    });
}
