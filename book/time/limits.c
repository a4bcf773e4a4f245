/* CTC of long sequences and of short ones, by the library. Returns 1 if a loss is wrong. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { K = 3, T = 1000 };

/* -ln p of a target of two symbols in this many frames of equal probabilities, and, unless it is
 * NULL, the first element of its gradient */
static double loss_of(int frames, int first, int second, double *gradient)
{
    static const Real logits[T * K];
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_variable(tape, logits, shape(1, frames, K));
    Tensor *targets = tape_input_i32(tape, (int32_t[]){ first, second }, shape(1, 2));
    Tensor *loss =
        tensor_keep(op_ctc(tape, x, targets, (CtcOptions){ .ignore_infeasible = false }));
    tape_backward(tape, op_sum(tape, loss, ALL_AXES));
    if (gradient)
        *gradient = (double)tensor_gradient(x)->data[0];
    const double result = (double)tensor_item(loss);
    tape_free(tape);
    return result;
}

int main(void)
{
    static const int frames[4] = { 20, 80, 100, T };
    bool failed = false;
    printf("[underflow]\nframes  p in float  the library's -ln p\n");
    for (int i = 0; i < 4; i++) {
        float alpha[5] = { 1 }; /* - a - b -, before frame 1 */
        for (int t = 0; t < frames[i]; t++)
            for (int s = 4; s >= 0; s--) {
                const float next = s > 0 ? alpha[s - 1] : 0, skip = s == 3 ? alpha[1] : 0;
                alpha[s] = (alpha[s] + next + skip) / K;
            }
        const double n = frames[i], paths = (n + 2) * (n + 1) * n * (n - 1) / 24;
        const double loss = loss_of(frames[i], 1, 2, NULL);
        printf("%6d %11.1e %20.3f\n", frames[i], (double)(alpha[3] + alpha[4]), loss);
        failed |= !(fabs(loss - n * log(K) + log(paths)) < 1e-5 * loss);
    }
    double gradient[3];
    printf("[infeasible]\nframes  target  -ln p  gradient\n");
    const double two = loss_of(2, 1, 2, &gradient[0]), same = loss_of(2, 1, 1, &gradient[1]);
    const double three = loss_of(3, 1, 1, &gradient[2]);
    printf("     2  a b    %6.3f  %8.3f\n", two, gradient[0]);
    printf("     2  a a    %6.3f  %8.3f\n", same, fabs(gradient[1]));
    printf("     3  a a    %6.3f  %8.3f\n", three, gradient[2]);
    failed |= !isinf(same) || !isnan(gradient[1]);
    return failed;
}
