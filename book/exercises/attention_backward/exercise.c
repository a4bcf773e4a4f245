/* Exercise 8.2: the right gradients are those of op_causal_softmax_attention; the usual mistakes
 * are backward passes that are wrong in one place. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <string.h>

enum { Q, K, V, G, OUT, ROWS }; /* inputs; ROWS: m, then 1 / l, of all rows */

static Real dot(const Real *x, const Real *y, int n)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 4, 2, 3 }, { 3, 5, 2 }, { 6, 3, 4 } };
    memcpy(c->size, sizes[index], sizeof sizes[index]);
    const int N = c->size[0], D = c->size[1], M = c->size[2];
    /* Twice the numbers that are needed: a wrong index reads none that is 0. */
    case_normal(c, index, Q, 2 * N * D);
    case_normal(c, index, K, 2 * N * D);
    case_normal(c, index, V, 2 * N * M);
    case_normal(c, index, G, 2 * N * M);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *q = tape_variable(tape, c->in[Q], shape(1, N, 1, D));
    Tensor *k = tape_variable(tape, c->in[K], shape(1, N, 1, D));
    Tensor *v = tape_variable(tape, c->in[V], shape(1, N, 1, M));
    Tensor *out =
        op_causal_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ .mask = NULL });
    tensor_keep(out);
    tape_backward_from(tape, out, tape_input(tape, c->in[G], shape(1, N, 1, M)));
    memcpy(c->in[OUT], out->data, (size_t)(N * M) * sizeof(Real));
    case_right(c, 0, tensor_gradient(q)->data, N, D);
    case_right(c, 1, tensor_gradient(k)->data, N, D);
    case_right(c, 2, tensor_gradient(v)->data, N, M);
    tape_free(tape);
    for (int i = 0; i < N; i++) {
        Real s[ELEMENTS], m = -INFINITY, l = 0;
        for (int j = 0; j <= i; j++) {
            s[j] = dot(c->in[Q] + i * D, c->in[K] + j * D, D) / sqrt(D);
            m = fmax(m, s[j]);
        }
        for (int j = 0; j <= i; j++)
            l += exp(s[j] - m);
        c->in[ROWS][i] = m;
        c->in[ROWS][N + i] = 1 / l;
    }
}

static void student(const Case *c, const Gradient *out)
{
    const int N = c->size[0];
    attention_backward(out[0].data, out[1].data, out[2].data, c->in[G], c->in[Q], c->in[K],
                       c->in[V], c->in[OUT], c->in[ROWS], c->in[ROWS] + N, N, c->size[1],
                       c->size[2]);
}

/* --------------------------------------------------------------------------- the usual mistakes */
typedef enum Mistaken {
    WITHOUT_DELTA,
    PLUS,
    OUTSIDE,
    RUNNING,
    DELTA_OF_V,
    WITHOUT_P,
    BEFORE_DIAGONAL,
    ONE_BEYOND,
    WITHOUT_MASK,
    WITHOUT_ROOT,
    ROOT_OF_SCORE,
    NO_ROOT,
    TWICE_ROOT,
    ROOT_IN_DV,
    WITHOUT_L,
    TIMES_L,
    WITHOUT_M,
    DV_OF_ROW,
    DV_BY_DS,
    DV_OF_OUT,
    DK_OF_ROW,
    DK_BY_Q_J,
    OWN_OPERAND,
    DK_STORED,
    ALL_STORED,
} Mistaken;

/* The contributions of query i and key j; running: the sum of P dP over the keys of i so far */
static void wrong_pair(const Case *c, const Gradient *out, int i, int j, Real *running)
{
    const Mistaken is = (Mistaken)c->fault;
    const int N = c->size[0], D = c->size[1], M = c->size[2];
    const Real *q = c->in[Q], *k = c->in[K], *v = c->in[V], *g = c->in[G];
    const Real m = c->in[ROWS][i], inverse = c->in[ROWS][N + i], root = 1 / sqrt(D);
    const Real s = dot(q + i * D, k + j * D, D) * (is == ROOT_OF_SCORE || is == NO_ROOT ? 1 : root);
    const Real power = exp(s - (is == WITHOUT_M ? 0 : m));
    const Real P = is == WITHOUT_L ? power : is == TIMES_L ? power / inverse : power * inverse;
    const Real dP = dot(g + i * M, v + j * M, M);
    *running += P * dP;
    const Real delta = is == WITHOUT_DELTA ? 0
                       : is == RUNNING     ? *running
                       : is == DELTA_OF_V  ? dot(g + i * M, v + i * M, M)
                                           : dot(g + i * M, c->in[OUT] + i * M, M);
    Real dS = P * (is == PLUS ? dP + delta : dP - delta);
    if (is == OUTSIDE)
        dS = P * dP - delta;
    else if (is == WITHOUT_P)
        dS = dP - delta;
    const Real scaled = dS * (is == WITHOUT_ROOT || is == NO_ROOT ? 1
                              : is == TWICE_ROOT                  ? root * root
                                                                  : root);
    for (int x = 0; x < D; x++) {
        Real *dq = &out[0].data[i * D + x], *dk = &out[1].data[(is == DK_OF_ROW ? i : j) * D + x];
        const Real q_i = q[i * D + x], q_j = q[j * D + x], k_j = k[j * D + x];
        *dq = (is == ALL_STORED ? 0 : *dq) + scaled * (is == OWN_OPERAND ? q_i : k_j);
        *dk = (is == ALL_STORED || is == DK_STORED ? 0 : *dk) +
              scaled * (is == OWN_OPERAND                    ? k_j
                        : is == DK_BY_Q_J || is == DK_OF_ROW ? q_j
                                                             : q_i);
    }
    for (int x = 0; x < M; x++) {
        Real *dv = &out[2].data[(is == DV_OF_ROW ? i : j) * M + x];
        const Real g_x = g[(is == DV_OF_ROW ? j : i) * M + x];
        const Real weight = is == DV_BY_DS ? dS : is == ROOT_IN_DV ? P * root : P;
        *dv = (is == ALL_STORED || is == DK_STORED ? 0 : *dv) +
              weight * (is == DV_OF_OUT ? c->in[OUT][i * M + x] : g_x);
    }
}

static void faulty(const Case *c, const Gradient *out)
{
    const Mistaken is = (Mistaken)c->fault;
    const int N = c->size[0];
    for (int i = 0; i < N; i++) {
        const int visible = is == WITHOUT_MASK      ? N
                            : is == ONE_BEYOND      ? i + 2
                            : is == BEFORE_DIAGONAL ? i
                                                    : i + 1;
        Real running = 0;
        for (int j = 0; j < visible && j < N; j++)
            wrong_pair(c, out, i, j, &running);
    }
}

int main(void)
{
    return grade(&(Exercise){
        .name = "attention_backward",
        .outputs = { "dq", "dk", "dv" },
        .adds = true,
        .make = make,
        .student = student,
        .faulty = faulty,
        .faults = {
            [WITHOUT_DELTA] = "delta_i is missing: dS_ij = P_ij (dP_ij - delta_i), since a score "
                              "moves all P of its row",
            [PLUS] = "the sign before delta_i is wrong: more of one P means less of the others of "
                     "its row",
            [OUTSIDE] = "P_ij multiplies dP_ij alone: it is a factor of delta_i, too",
            [RUNNING] = "delta_i is used before its sum over j is complete: take g_i.out_i, which "
                        "is known before the first j",
            [DELTA_OF_V] = "delta_i is g_i.v_i, expected g_i.out_i: out_i is the sum of P_ij v_j",
            [WITHOUT_P] = "the factor P_ij is missing in dS_ij = P_ij (dP_ij - delta_i)",
            [BEFORE_DIAGONAL] = "the mask is off by one: query i attends to itself as well, so j "
                                "runs while j <= i",
            [ONE_BEYOND] = "the mask is off by one: j = i + 1 is used, which the forward pass "
                           "masked, so j runs while j <= i",
            [WITHOUT_MASK] = "all keys are used: under the causal mask query i attends to j <= i "
                             "alone. Of other pairs P is 0, not e^(s - m) / l",
            [WITHOUT_ROOT] = "1 / sqrt D is missing in dq and dk: s_ij = q_i.k_j / sqrt D, so "
                             "ds_ij/dq_i is k_j / sqrt D",
            [ROOT_OF_SCORE] = "the scores are q.k without 1 / sqrt D: P is not the one of the "
                              "forward pass",
            [NO_ROOT] = "1 / sqrt D is missing everywhere: s_ij = q_i.k_j / sqrt D, in P and in "
                        "dq and dk",
            [TWICE_ROOT] = "1 / sqrt D is applied twice in dq and dk: s has this factor once",
            [ROOT_IN_DV] = "dv has the factor 1 / sqrt D: it belongs to the scores, and out_i = "
                           "sum of P_ij v_j has none",
            [WITHOUT_L] = "P is e^(s - m), not divided by l: multiply by inverse[i], so that a "
                          "row of P sums to 1",
            [TIMES_L] = "P is divided by inverse[i], which is 1 / l_i already: multiply",
            [WITHOUT_M] = "P is e^s / l: l is a sum of e^(s - m), so subtract m[i]",
            [DV_OF_ROW] = "dv = P g, expected P^T g: v_j is used with weight P_ij by each query "
                          "i, so P_ij g_i belongs to dv_j",
            [DV_BY_DS] = "dv_j is weighted by dS_ij, expected by P_ij: out_i is linear in v_j, "
                         "with the factor P_ij",
            [DV_OF_OUT] = "dv_j sums P_ij out_i: the upstream gradient g_i is missing",
            [DK_OF_ROW] = "dk = dS q, expected dS^T q: k_j is used by each query i, so dS_ij q_i "
                          "belongs to dk_j",
            [DK_BY_Q_J] = "dk_j multiplies dS_ij with q_j, expected with q_i: s_ij is the product "
                          "of q_i and k_j",
            [OWN_OPERAND] = "dq_i multiplies dS_ij with q_i, and dk_j with k_j: each gets the "
                            "other operand",
            [DK_STORED] = "= where += is needed, in dk and dv: each key is used by all later "
                          "queries, and = keeps the last use alone",
            [ALL_STORED] = "= where += is needed: each row of q, k and v is used several times, "
                           "and = keeps the last use alone",
        },
    });
}
