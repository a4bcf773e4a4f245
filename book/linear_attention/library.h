/* The same attention on the library's tape: by its elementary operations, and by one operation. */
#include "scan.h"

#include <tapegrad.h>

typedef Tensor *Attend(Tape *tape, Tensor *q, Tensor *k, Tensor *v);

/* q, k [n, d], v [n, m] */
static Tensor *elementary(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    const int64_t n = q->shape.size[0], d = q->shape.size[1], m = v->shape.size[1];
    Tensor *a = op_elu_plus_one(tape, q), *b = op_elu_plus_one(tape, k);
    Tensor *columns = op_reshape(tape, b, shape(n, d, 1)),
           *rows = op_reshape(tape, a, shape(n, 1, d));
    Tensor *products = op_matmul(tape, columns, op_reshape(tape, v, shape(n, 1, m)));
    Tensor *S = op_cumulative_sum(tape, products, 0); /* [n, d, m]: every S_i */
    Tensor *z = op_cumulative_sum(tape, b, 0);        /* [n, d] */
    Tensor *num = op_reshape(tape, op_matmul(tape, rows, S), shape(n, m));
    Tensor *den = op_sum(tape, op_multiply(tape, a, z), -1); /* [n] */
    return op_divide(tape, num, op_reshape(tape, op_add_scalar(tape, den, eps), shape(n, 1)));
}

static Tensor *fused(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    const int64_t n = q->shape.size[0], d = q->shape.size[1], m = v->shape.size[1];
    Tensor *out = op_causal_linear_attention(
        tape, op_reshape(tape, q, shape(1, n, 1, d)), op_reshape(tape, k, shape(1, n, 1, d)),
        op_reshape(tape, v, shape(1, n, 1, m)), (CausalLinearAttentionOptions){ .eps = eps }, NULL);
    return op_reshape(tape, out, shape(n, m));
}

static Tensor *variable(Tape *tape, Rows x, int columns)
{
    Real host[N * WIDTH];
    for (int i = 0; i < N; i++)
        for (int c = 0; c < columns; c++)
            host[i * columns + c] = (Real)x[i][c];
    return tape_variable(tape, host, shape(N, columns));
}

static void read_rows(Rows to, const Tensor *x)
{
    const int64_t columns = x->shape.size[1];
    for (int i = 0; i < N; i++)
        for (int c = 0; c < columns; c++)
            to[i][c] = (double)x->data[i * columns + c];
}

static void by_tape(Attend *attend, Rows out, Gradients *d, Rows q, Rows k, Rows v, Rows g)
{
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x[] = { variable(tape, q, D), variable(tape, k, D), variable(tape, v, M) };
    Tensor *result = tensor_keep(attend(tape, x[0], x[1], x[2]));
    tape_backward_from(tape, result, variable(tape, g, M));
    read_rows(out, result);
    read_rows(d->q, tensor_gradient(x[0]));
    read_rows(d->k, tensor_gradient(x[1]));
    read_rows(d->v, tensor_gradient(x[2]));
    tape_free(tape);
}

/* KiB that the tape saves for the backward pass, beside q, k and v. */
static double saved_memory(Attend *attend)
{
    enum { POSITIONS = 1024, SIZE = 32 };
    static const Real zeros[POSITIONS * SIZE];
    Device *device = device_open("plain");
    Tape *tape = tape_new(device);
    Tensor *x[3];
    for (int input = 0; input < 3; input++)
        x[input] = tape_variable(tape, zeros, shape(POSITIONS, SIZE));
    const size_t before = device_memory(device).current;
    attend(tape, x[0], x[1], x[2]);
    const size_t bytes = device_memory(device).current - before;
    tape_free(tape);
    return (double)bytes / 1024;
}
