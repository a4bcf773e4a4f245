/* For lstm.c: an LSTM of H units in double. */
#ifndef TIME_LSTM_H
#define TIME_LSTM_H

#include <math.h>

enum { N = 4, I = 1, H = 2, GATES = 4 * H };

/* The inputs, or the gradients of all of them. */
typedef struct Inputs {
    double x[N][I], W[GATES][I], U[GATES][H], b[GATES], h_0[H], c_0[H];
} Inputs;

/* Step 0 is the initial state; gates are i, f, c~, o. */
typedef struct Steps {
    double gates[N + 1][GATES], c[N + 1][H], h[N + 1][H];
    double dh[N + 1][H], dc[N + 1][H], from_h[N + 1][H]; /* of dc, the part by h_t */
} Steps;

static void lstm_forward(Steps *s, const Inputs *in)
{
    for (int j = 0; j < H; j++) {
        s->h[0][j] = in->h_0[j];
        s->c[0][j] = in->c_0[j];
    }
    for (int t = 1; t <= N; t++) {
        for (int k = 0; k < GATES; k++) {
            double a = in->b[k];
            for (int i = 0; i < I; i++)
                a += in->W[k][i] * in->x[t - 1][i];
            for (int j = 0; j < H; j++)
                a += in->U[k][j] * s->h[t - 1][j];
            s->gates[t][k] = k / H == 2 ? tanh(a) : 1 / (1 + exp(-a));
        }
        for (int j = 0; j < H; j++) {
            const double *gate = s->gates[t] + j;
            s->c[t][j] = gate[H] * s->c[t - 1][j] + gate[0] * gate[2 * H];
            s->h[t][j] = gate[3 * H] * tanh(s->c[t][j]);
        }
    }
}

/* g [N][H] is dL/dh_t as an output, dh_N and dc_N the gradients of the final state. */
static Inputs lstm_backward(Steps *s, const Inputs *in, const double (*g)[H], const double *dh_N,
                            const double *dc_N)
{
    Inputs d = { 0 };
    for (int j = 0; j < H; j++) {
        s->dh[N][j] = dh_N[j];
        s->dc[N][j] = dc_N[j];
    }
    for (int t = N; t >= 1; t--) {
        double da[GATES];
        for (int j = 0; j < H; j++) {
            const double i = s->gates[t][j], f = s->gates[t][H + j];
            const double candidate = s->gates[t][2 * H + j], o = s->gates[t][3 * H + j];
            const double tanh_c = tanh(s->c[t][j]), dh = s->dh[t][j] += g[t - 1][j];
            s->from_h[t][j] = dh * o * (1 - tanh_c * tanh_c);
            const double dc = s->dc[t][j] += s->from_h[t][j];
            da[j] = dc * candidate * i * (1 - i);
            da[H + j] = dc * s->c[t - 1][j] * f * (1 - f);
            da[2 * H + j] = dc * i * (1 - candidate * candidate);
            da[3 * H + j] = dh * tanh_c * o * (1 - o);
            s->dc[t - 1][j] = dc * f;
            s->dh[t - 1][j] = 0;
        }
        for (int k = 0; k < GATES; k++) {
            d.b[k] += da[k];
            for (int i = 0; i < I; i++) {
                d.W[k][i] += da[k] * in->x[t - 1][i];
                d.x[t - 1][i] += in->W[k][i] * da[k];
            }
            for (int j = 0; j < H; j++) {
                d.U[k][j] += da[k] * s->h[t - 1][j];
                s->dh[t - 1][j] += in->U[k][j] * da[k];
            }
        }
    }
    for (int j = 0; j < H; j++) {
        d.h_0[j] = s->dh[0][j];
        d.c_0[j] = s->dc[0][j];
    }
    return d;
}

#endif
