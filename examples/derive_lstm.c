/* The formulas of ext/recurrent/lstm.c, derived in book/time/page.md, as plain loops in double,
 * compared with op_lstm: one sequence of N positions, inputs of I elements, H hidden units. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { N = 5, I = 2, H = 3, GATES = 4 * H };

static Real x[N][I], w_ih[GATES][I], w_hh[GATES][H], b_ih[GATES], b_hh[GATES], dout[N][H];
static double out[N][H], dx[N][I], dw_ih[GATES][I], dw_hh[GATES][H], db[GATES];

static void derive(void)
{
    double a[N][GATES] = { 0 }, c[N + 1][H] = { 0 }, h[N + 1][H] = { 0 };
    for (int t = 0; t < N; t++) {
        for (int k = 0; k < GATES; k++) {
            double sum = b_ih[k] + b_hh[k];
            for (int i = 0; i < I; i++)
                sum += w_ih[k][i] * x[t][i];
            for (int j = 0; j < H; j++)
                sum += w_hh[k][j] * h[t][j];
            a[t][k] = k / H == 2 ? tanh(sum) : 1 / (1 + exp(-sum)); /* i, f, c~, o */
        }
        for (int j = 0; j < H; j++) {
            c[t + 1][j] = a[t][H + j] * c[t][j] + a[t][j] * a[t][2 * H + j];
            out[t][j] = h[t + 1][j] = a[t][3 * H + j] * tanh(c[t + 1][j]);
        }
    }
    double dh[H] = { 0 }, dc[H] = { 0 }, da[GATES];
    for (int t = N - 1; t >= 0; t--) {
        for (int j = 0; j < H; j++) {
            const double i = a[t][j], f = a[t][H + j], candidate = a[t][2 * H + j],
                         o = a[t][3 * H + j];
            const double tanh_c = tanh(c[t + 1][j]);
            dh[j] += dout[t][j];
            dc[j] += dh[j] * o * (1 - tanh_c * tanh_c);
            da[j] = dc[j] * candidate * i * (1 - i);
            da[H + j] = dc[j] * c[t][j] * f * (1 - f);
            da[2 * H + j] = dc[j] * i * (1 - candidate * candidate);
            da[3 * H + j] = dh[j] * tanh_c * o * (1 - o);
            dc[j] *= f;
            dh[j] = 0;
        }
        for (int k = 0; k < GATES; k++) {
            db[k] += da[k];
            for (int i = 0; i < I; i++) {
                dx[t][i] += w_ih[k][i] * da[k];
                dw_ih[k][i] += da[k] * x[t][i];
            }
            for (int j = 0; j < H; j++) {
                dh[j] += w_hh[k][j] * da[k];
                dw_hh[k][j] += da[k] * h[t][j];
            }
        }
    }
}

int main(void)
{
    const char *const names[] = { "dx", "dW_ih", "dW_hh", "db_ih", "db_hh", "out" };
    const Shape shapes[] = { shape(1, N, I), shape(GATES, I), shape(GATES, H),
                             shape(GATES),   shape(GATES),    shape(1, N, H) };
    Real *const values[] = { x[0], w_ih[0], w_hh[0], b_ih, b_hh, dout[0] }, found[GATES * H];
    const double *const expected[] = { dx[0], dw_ih[0], dw_hh[0], db, db, out[0] };
    Random random = random_new(/*seed*/ 1, random_stream("derive_lstm"));
    Tape *tape = tape_new(device_open("cpu"));
    Tensor *v[6]; /* the inputs and dout */
    for (int k = 0; k < 6; k++) {
        random_normal(&random, values[k], shape_count(shapes[k]));
        v[k] = tape_variable(tape, values[k], shapes[k]);
    }
    derive();
    Tensor *result = tensor_keep(op_lstm(tape, v[0], (RecurrentWeights){ v[1], v[2], v[3], v[4] },
                                         (LstmOptions){ .lengths = NULL }, NULL, NULL));
    tape_backward_from(tape, result, v[5]);
    double sum = 0;
    for (int k = 0; k < 6; k++) {
        double error = 0;
        tensor_read(k < 5 ? tensor_gradient(v[k]) : result, found);
        for (int64_t e = 0; e < shape_count(shapes[k]); e++)
            error += fabs((double)found[e] - expected[k][e]);
        printf("%-5s sum of differences %.1e\n", names[k], error);
        sum += error;
    }
    tape_free(tape);
    return fflush(stdout) || ferror(stdout) || !(sum < 1e-4);
}
