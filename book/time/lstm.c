/* The numbers of an LSTM: every gradient of the page beside central differences and the library's.
 * Returns 1 if some differ. */
#include "lstm.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

enum { INPUTS = sizeof(Inputs) / sizeof(double) };

static bool failed;
static const double G[N][H] = { { 0 }, { 0 }, { 0, 0.5 }, { 1, 0 } }, DH[H] = { 0, -1 },
                    DC[H] = { 0.5, 0 };

static double loss_of(const Inputs *in)
{
    static Steps s;
    lstm_forward(&s, in);
    double loss = 0;
    for (int j = 0; j < H; j++) {
        loss += DH[j] * s.h[N][j] + DC[j] * s.c[N][j];
        for (int t = 1; t <= N; t++)
            loss += G[t - 1][j] * s.h[t][j];
    }
    return loss;
}

static void print_steps(const Steps *s)
{
    printf("[lstm]\nt     i     f    c~     o      c      h\n");
    for (int t = 1; t <= N; t++) {
        const double *gate = s->gates[t];
        printf("%d %5.2f %5.2f %5.2f %5.2f %6.3f %6.3f\n", t, gate[0], gate[H], gate[2 * H],
               gate[3 * H], s->c[t][0], s->h[t][0]);
    }
    printf("[lstm_backward]\nt      dh  dc: by h_t  by c_{t+1}   sum\n");
    for (int t = N; t >= 1; t--)
        printf("%d %7.3f %11.3f %9.3f %7.3f\n", t, s->dh[t][0], s->from_h[t][0],
               s->dc[t][0] - s->from_h[t][0], s->dc[t][0]);
}

static Tensor *variable(Tape *tape, const double *values, Shape shape)
{
    Real copy[GATES * H];
    for (int64_t i = 0; i < shape_count(shape); i++)
        copy[i] = (Real)values[i];
    return tape_variable(tape, copy, shape);
}

static Tensor *dot(Tape *tape, Tensor *a, const double *b)
{
    return op_sum(tape, op_multiply(tape, a, variable(tape, b, a->shape)), ALL_AXES);
}

/* Compares all elements of one gradient, and prints the first of them. */
static void compare(const char *name, size_t offset, const double *mine, const double *differences,
                    const Tensor *gradient)
{
    for (int64_t e = 0; e < tensor_count(gradient); e++) {
        const double expected = mine[(int64_t)offset + e];
        failed |= !(fabs(differences[(int64_t)offset + e] - expected) < 1e-8);
        failed |= !(fabs((double)gradient->data[e] - expected) < 1e-5);
    }
    printf("%-5s%9.5f%12.5f%12.5f\n", name, mine[offset], differences[offset],
           (double)gradient->data[0]);
}

static void print_check(Inputs *in, const Inputs *d)
{
    double differences[INPUTS], *moved = (double *)in;
    for (int e = 0; e < INPUTS; e++) {
        const double before = moved[e], step = 1e-5;
        moved[e] = before + step;
        const double right = loss_of(in);
        moved[e] = before - step;
        differences[e] = (right - loss_of(in)) / (2 * step);
        moved[e] = before;
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = variable(tape, in->x[0], shape(1, N, I)), *h, *c;
    const RecurrentWeights weights = { variable(tape, in->W[0], shape(GATES, I)),
                                       variable(tape, in->U[0], shape(GATES, H)),
                                       variable(tape, in->b, shape(GATES)),
                                       variable(tape, (double[GATES]){ 0 }, shape(GATES)) };
    const LstmOptions options = { .hidden = variable(tape, in->h_0, shape(1, H)),
                                  .cell = variable(tape, in->c_0, shape(1, H)) };
    Tensor *out = op_lstm(tape, x, weights, options, &h, &c);
    Tensor *final = op_add(tape, dot(tape, h, DH), dot(tape, c, DC));
    tape_backward(tape, op_add(tape, dot(tape, out, G[0]), final));
    printf("[lstm_check]\n       formula differences the library\n");
#define COMPARE(name, field, tensor)                                                               \
    compare(name, offsetof(Inputs, field) / sizeof(double), (const double *)d, differences,        \
            tensor_gradient(tensor))
    COMPARE("dx", x, x);
    COMPARE("dW", W, weights.weight_ih);
    COMPARE("dU", U, weights.weight_hh);
    COMPARE("db", b, weights.bias_ih);
    COMPARE("dh_0", h_0, options.hidden);
    COMPARE("dc_0", c_0, options.cell);
    tape_free(tape);
}

int main(void)
{
    Inputs in;
    Real random_values[INPUTS];
    Random random = random_new(/*seed*/ 1, random_stream("lstm"));
    random_normal(&random, random_values, INPUTS);
    for (int e = 0; e < INPUTS; e++)
        ((double *)&in)[e] = (double)random_values[e];
    for (int j = 0; j < H; j++)
        in.b[H + j] += 2; /* forget less */
    static Steps s;
    lstm_forward(&s, &in);
    const Inputs d = lstm_backward(&s, &in, G, DH, DC);
    print_steps(&s);
    print_check(&in, &d);
    return failed;
}
