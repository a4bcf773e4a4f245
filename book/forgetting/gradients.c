/* Prints the chapter's gradients beside central differences and the library's. Returns 1 if two
 * differ. */
#include "gradients.h"

static void differences(bool delta, Inputs x, Inputs *d)
{
    State S[N + 1], Z[N];
    double u[N][M], *value = (double *)&x;
    for (int e = 0; e < INPUTS; e++) {
        const double h = 1e-5, saved = value[e];
        value[e] = saved + h;
        const double above = forward(delta, &x, S, Z, u);
        value[e] = saved - h;
        ((double *)d)[e] = (above - forward(delta, &x, S, Z, u)) / (2 * h);
        value[e] = saved;
    }
}

static void library(bool delta, const Inputs *x, Inputs *d)
{
    const double *const from[5] = { x->q[0], x->k[0], x->v[0], x->beta, x->l };
    double *const to[5] = { d->q[0], d->k[0], d->v[0], d->beta, d->l };
    Tape *tape = tape_new(device_open("plain"));
    Tensor *t[6];
    for (int input = 0; input < 6; input++) {
        const Shape s = input < 3   ? shape(1, N, 1, 2)
                        : input < 5 ? shape(1, N, 1)
                                    : shape(1, N, 1, M);
        Real host[2 * N];
        for (int e = 0; e < shape_count(s); e++)
            host[e] = (Real)(input < 5 ? from[input][e] : G[0][e]);
        t[input] = tape_variable(tape, host, s);
    }
    Tensor *out =
        delta ? op_delta_rule(tape, t[0], t[1], t[2], t[3], (DeltaRuleOptions){ .log_decay = t[4] },
                              NULL)
              : op_causal_linear_attention(
                    tape, t[0], t[1], t[2],
                    (CausalLinearAttentionOptions){
                        .features = FEATURE_MAP_IDENTITY, .unnormalized = true, .log_decay = t[4] },
                    NULL);
    tape_backward_from(tape, out, t[5]);
    for (int input = 0; input < 5; input++)
        for (int e = 0; (delta || input != 3) && e < tensor_count(t[input]); e++)
            to[input][e] = (double)tensor_gradient(t[input])->data[e];
    tape_free(tape);
}

static void compare(const char *what, const Inputs *a, const Inputs *b, double allowed)
{
    double largest = 0;
    for (int e = 0; e < INPUTS; e++)
        largest = fmax(largest, fabs(((const double *)a)[e] - ((const double *)b)[e]));
    printf("all, %-22s %9.0e\n", what, largest);
    failed |= !(largest <= allowed);
}

static void print_pairs(const char *name, const double *formula, const double *by_differences,
                        const double *by_library, int count)
{
    for (int c = 0; c < count; c++)
        printf("%-9s %8.4f %12.4f %8.4f\n", name, formula[c], by_differences[c], by_library[c]);
}

int main(void)
{
    Inputs d = { 0 }, n = { 0 }, library_d = { 0 };
    double telescoped[N], strict[N];
    decay_backward(&X, &d, telescoped, strict);
    differences(false, X, &n);
    library(false, &X, &library_d);
    printf("[decay]\n i    l  <Z,R>    sum strict central library\n");
    for (int i = 0; i < N; i++) {
        printf("%2d %4.1f %6.3f %6.3f %6.3f %7.3f %7.3f\n", i + 1, X.l[i], d.l[i], telescoped[i],
               strict[i], n.l[i], library_d.l[i]);
        failed |= !(fabs(telescoped[i] - d.l[i]) < 1e-12 && fabs(strict[i] - d.l[i]) < 1e-12);
    }
    compare("from differences", &d, &n, 1e-8);
    compare("from the library", &d, &library_d, 1e-5);
    delta_backward(&X, &d);
    differences(true, X, &n);
    library(true, &X, &library_d);
    printf("[delta]\n%-9s %8s %12s %8s\n", "i = 2", "formula", "differences", "library");
    print_pairs("dq", d.q[1], n.q[1], library_d.q[1], D);
    print_pairs("dk", d.k[1], n.k[1], library_d.k[1], D);
    print_pairs("dv", d.v[1], n.v[1], library_d.v[1], M);
    print_pairs("dbeta", &d.beta[1], &n.beta[1], &library_d.beta[1], 1);
    print_pairs("dl", &d.l[1], &n.l[1], &library_d.l[1], 1);
    compare("from differences", &d, &n, 1e-8);
    compare("from the library", &d, &library_d, 1e-5);
    return failed;
}
