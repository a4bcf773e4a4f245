/* The gradient's length against distance, by the library, with all its paths: L is the sum of the
 * last h of a layer with random weights, and dx_t is the gradient of an input k steps before. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { N = 101, H = 16, GATES = 4 * H };

static Real x[N], w[GATES], u[GATES * H], zeros[GATES], bias[GATES], g[N * H];

static void recurrence(Tape *tape, Tensor *in)
{
    Tensor *x_t[N], *h = tape_input(tape, zeros, shape(1, H));
    Tensor *W = tape_input(tape, w, shape(H, 1)), *U = tape_input(tape, u, shape(H, H));
    op_split(tape, op_reshape(tape, in, shape(N, 1)), 0, N, x_t);
    for (int t = 0; t < N; t++) {
        Tensor *a = op_linear(tape, x_t[t], W, NULL);
        h = op_tanh(tape, op_add(tape, a, op_linear(tape, h, U, NULL)));
    }
    tape_backward_from(tape, h, tape_input(tape, g + (N - 1) * H, shape(1, H)));
}

static void lstm(Tape *tape, Tensor *in, double forget_bias)
{
    for (int j = 0; j < H; j++)
        bias[H + j] = (Real)forget_bias;
    const RecurrentWeights weights = { tape_input(tape, w, shape(GATES, 1)),
                                       tape_input(tape, u, shape(GATES, H)),
                                       tape_input(tape, bias, shape(GATES)),
                                       tape_input(tape, zeros, shape(GATES)) };
    Tensor *out = op_lstm(tape, in, weights, (LstmOptions){ .reverse = false }, NULL, NULL);
    tape_backward_from(tape, out, tape_input(tape, g, shape(1, N, H)));
}

int main(void)
{
    Random random = random_new(/*seed*/ 1, random_stream("distance"));
    random_normal(&random, x, N);
    random_normal(&random, w, GATES);
    random_normal(&random, u, GATES * H);
    for (int k = 0; k < GATES * H; k++)
        u[k] /= 4; /* the root of H */
    for (int j = 0; j < H; j++)
        g[(N - 1) * H + j] = 1;
    Tape *tape = tape_new(device_open("plain"));
    static const double forget_bias[4] = { NAN, 0, 2, 5 };
    double size[4][N];
    for (int column = 0; column < 4; column++) {
        Tensor *in = tape_variable(tape, x, shape(1, N, 1));
        if (column == 0)
            recurrence(tape, in);
        else
            lstm(tape, in, forget_bias[column]);
        for (int t = 0; t < N; t++)
            size[column][t] = fabs((double)tensor_gradient(in)->data[t]);
        tape_reset(tape);
    }
    printf("[memory]\n           plain     LSTM with b of f\n                       0      2      "
           "5\n");
    for (int k = 1; k < N; k = k == 1 ? 10 : k == 10 ? 20 : k == 20 ? 50 : 2 * k)
        printf("k = %-3d %7.0e  %6.0e %6.0e %6.0e\n", k, size[0][N - 1 - k], size[1][N - 1 - k],
               size[2][N - 1 - k], size[3][N - 1 - k]);
    tape_free(tape);
    return !(size[0][0] < 1e-6 * size[3][0]);
}
