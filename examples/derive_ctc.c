/* The loss of ext/ctc/ctc.c, derived in book/time/page.md, by enumeration in double, compared
 * with op_ctc: all C^T paths of a symbol per frame, of which those count that emit the target. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

enum { T = 7, C = 3, S = 3, PATHS = 2187 /* C^T */, BLANK = 0 };

static const int32_t target[S] = { 1, 2, 2 };
static Real logits[T][C];
static double y[T][C], p, o[T][C], expected[T][C];

/* Merging equal neighbors of a path and then dropping blanks leaves the target. */
static bool emits_target(const int32_t *path)
{
    int32_t text[T];
    int length = 0;
    for (int t = 0; t < T; t++)
        if (path[t] != BLANK && (t == 0 || path[t] != path[t - 1]))
            text[length++] = path[t];
    return length == S && memcmp(text, target, sizeof target) == 0;
}

static void derive(void)
{
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int k = 0; k < C; k++)
            sum += exp((double)logits[t][k]);
        for (int k = 0; k < C; k++)
            y[t][k] = exp((double)logits[t][k]) / sum;
    }
    for (int number = 0; number < PATHS; number++) {
        int32_t path[T];
        double product = 1; /* of the probabilities of the path's symbols */
        for (int t = 0, rest = number; t < T; t++, rest /= C) {
            path[t] = rest % C;
            product *= y[t][path[t]];
        }
        if (!emits_target(path))
            continue;
        p += product;
        for (int t = 0; t < T; t++)
            o[t][path[t]] += product;
    }
    for (int t = 0; t < T; t++)
        for (int k = 0; k < C; k++)
            expected[t][k] = y[t][k] - o[t][k] / p;
}

int main(void)
{
    Random random = random_new(/*seed*/ 1, random_stream("derive_ctc"));
    random_normal(&random, logits[0], T * C);
    derive();
    Tape *tape = tape_new(device_open("cpu"));
    Tensor *x = tape_variable(tape, logits[0], shape(1, T, C));
    Tensor *loss = tensor_keep(op_ctc(tape, x, tape_input_i32(tape, target, shape(1, S)),
                                      (CtcOptions){ .ignore_infeasible = false }));
    tape_backward(tape, op_sum(tape, loss, ALL_AXES));
    Real found[T][C];
    double loss_error = fabs(tensor_item(loss) + log(p)), error = 0;
    tensor_read(tensor_gradient(x), found[0]);
    for (int t = 0; t < T; t++)
        for (int k = 0; k < C; k++)
            error += fabs((double)found[t][k] - expected[t][k]);
    printf("-ln p     %.6f, difference %.1e\n", -log(p), loss_error);
    printf("dlogits   sum of differences %.1e\n", error);
    tape_free(tape);
    return fflush(stdout) || ferror(stdout) || !(loss_error + error < 1e-5);
}
