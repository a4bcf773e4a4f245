/* The memory of a step with attention without a mask, forward and backward: by three operations,
 * which store the matrices of N x N numbers, and by one. */
#include <stdio.h>
#include <tapegrad.h>

enum { LARGEST = 1024, D = 16 };

static Tensor *three_operations(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    Tensor *s = op_scale(tape, op_matmul_nt(tape, q, k), 0.25); /* 1 / sqrt D */
    return op_matmul(tape, op_softmax(tape, s), v);
}

static Tensor *one_operation(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    return op_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ .mask = NULL });
}

typedef Tensor *Operation(Tape *tape, Tensor *q, Tensor *k, Tensor *v);

/* The most bytes that are allocated during the step */
static double peak(Operation *attention, Shape sizes)
{
    static Real values[3][LARGEST * D];
    Device *device = device_open("plain");
    Tape *tape = tape_new(device);
    Tensor *inputs[3];
    Random random = random_new(1, 1);
    device_reset_peak(device);
    for (int i = 0; i < 3; i++) {
        random_normal(&random, values[i], LARGEST * D);
        inputs[i] = tape_variable(tape, values[i], sizes);
    }
    tape_backward(tape, op_sum(tape, attention(tape, inputs[0], inputs[1], inputs[2]), ALL_AXES));
    const double result = (double)device_memory(device).peak;
    tape_free(tape);
    return result;
}

int main(void)
{
    double three = 0, one = 0;
    printf("[memory]\n   N  three operations  one operation\n");
    for (int n = LARGEST / 4; n <= LARGEST; n *= 2) {
        three = peak(three_operations, shape(n, D));
        one = peak(one_operation, shape(1, n, 1, D));
        printf("%4d  %12.2f MiB  %9.2f MiB\n", n, three / (1 << 20), one / (1 << 20));
    }
    return one > three / 10; /* the tables would no longer show what the page says */
}
