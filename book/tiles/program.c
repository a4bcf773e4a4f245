/* The numbers of chapter 8: attention, and its gradients beside central differences and the
 * library's. Returns 1 if they differ. row.c and memory.c print the others. */
#include "attention.h"

#include <stdio.h>
#include <tapegrad.h>

static const Head A = {
    .q = { { 1, 0 }, { 1, 1 }, { 2, -1 }, { 2, 1 } },
    .k = { { 1, 1 }, { -1, 1 }, { 1, 0 }, { 0, 1 } },
    .v = { { 1, 0 }, { 0, 1 }, { 2, 2 }, { -1, 1 } },
};
static const double G[N][M] = { { 1, 2 }, { 0, 1 }, { -1, 1 }, { 2, -1 } };
static bool failed;

/* Prints P and out, and delta in two ways: as a sum over a row of P, and as g_i.out_i. */
static void print_attention(const Head *a)
{
    double delta[N] = { 0 };
    printf("[attention]\n        key 1   key 2   key 3   key 4\n");
    for (int i = 0; i < N; i++) {
        printf("P_%d  ", i + 1);
        for (int j = 0; j <= i; j++) {
            const double P = exp(dot(a->q[i], a->k[j], D) / sqrt(D) - a->m[i]) * a->inverse[i];
            delta[i] += P * dot(G[i], a->v[j], M);
            printf("%8.4f", P);
        }
        printf("\n");
    }
    for (int i = 0; i < N; i++)
        printf("out_%d%8.4f%8.4f\n", i + 1, a->out[i][0], a->out[i][1]);
    printf("[delta]\n     sum_j P_ij dP_ij  g_i.out_i\n");
    for (int i = 0; i < N; i++) {
        printf("i = %d%16.4f%11.4f\n", i + 1, delta[i], dot(G[i], a->out[i], M));
        failed |= !(fabs(delta[i] - dot(G[i], a->out[i], M)) < 1e-12);
    }
}

static double loss_of(Head a) /* sum of g out */
{
    double loss = 0;
    attention_forward(&a);
    for (int i = 0; i < N; i++)
        loss += dot(G[i], a.out[i], M);
    return loss;
}

/* Prints dx by tiles beside differences along x, which is in a. The library's must be the same. */
static void compare(const char *name, double (*dx)[D], const Head *a, double (*x)[D],
                    Tensor *library)
{
    for (int i = 0; i < N; i++) {
        double differences[D];
        for (int c = 0; c < D; c++) {
            const double before = x[i][c], h = 1e-5;
            x[i][c] = before + h;
            differences[c] = loss_of(*a) / (2 * h);
            x[i][c] = before - h;
            differences[c] -= loss_of(*a) / (2 * h);
            x[i][c] = before;
            failed |= !(fabs(dx[i][c] - differences[c]) < 1e-9);
            failed |= !(fabs(dx[i][c] - (double)tensor_gradient(library)->data[i * D + c]) < 1e-5);
        }
        printf("%s_%d%9.4f%9.4f%11.4f%9.4f\n", name, i + 1, dx[i][0], dx[i][1], differences[0] + 0,
               differences[1] + 0);
    }
}

static Tensor *tensor(Tape *tape, const double (*x)[D])
{
    Real copy[N * D];
    for (int k = 0; k < N * D; k++)
        copy[k] = (Real)x[k / D][k % D];
    return tape_variable(tape, copy, shape(1, N, 1, D));
}

int main(void)
{
    Head a = A, d = { 0 };
    attention_forward(&a);
    attention_backward(&d, &a, G);
    print_attention(&a);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *q = tensor(tape, a.q), *k = tensor(tape, a.k), *v = tensor(tape, a.v);
    Tensor *out =
        op_causal_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ .mask = NULL });
    tape_backward_from(tape, out, tensor(tape, G));
    printf("[backward]\n            by tiles          differences\n");
    compare("dq", d.q, &a, a.q, q);
    compare("dk", d.k, &a, a.k, k);
    compare("dv", d.v, &a, a.v, v);
    tape_free(tape);
    return failed;
}
