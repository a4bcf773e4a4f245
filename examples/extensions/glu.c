/* An operation with kernels of its own, for an installed library: the gated linear unit (Dauphin,
 * Fan, Auli, Grangier 2017). Rows x = [a, b] of 2 C elements become rows of C, s = 1 / (1 + e^-b):
 *     out_c = a_c s_c
 *     da_c <- g_c s_c      db_c <- g_c a_c s_c (1 - s_c),      g = dL/dout */
#include <extend.h>
#include <tapegrad.h>

#include "run.h"

typedef struct GluKernels { /* R rows */
    void (*forward)(Real *out, const Real *x, int64_t R, int64_t C);
    void (*backward)(Gradient dx, const Real *g, const Real *x, int64_t R, int64_t C);
} GluKernels;

/* The definition, which "plain" runs */
static void forward_plain(Real *out, const Real *x, int64_t R, int64_t C)
{
    for (int64_t r = 0; r < R; r++)
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] = x[2 * r * C + c] / (1 + (Real)exp(-(double)x[(2 * r + 1) * C + c]));
}

static void backward_plain(Gradient dx, const Real *g, const Real *x, int64_t R, int64_t C)
{
    for (int64_t i = 0; i < R * C; i++) {
        const int64_t a = i / C * 2 * C + i % C, b = a + C;
        const Real s = 1 / (1 + (Real)exp(-(double)x[b]));
        gradient_add(dx, a, g[i] * s);
        gradient_add(dx, b, g[i] * x[a] * s * (1 - s));
    }
}

/* "cpu": rows divided among the threads, vectors of a row's elements */
static void forward_cpu(Real *out, const Real *x, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C) {
        const Real *a = x + 2 * r * C, *b = a + C;
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++)
            out[r * C + c] = real_times_sigmoid(a[c], b[c]);
    }
}

static void backward_cpu(Gradient dx, const Real *g, const Real *x, int64_t R, int64_t C)
{
    EACH_ROW(r, R, C) {
        const Real *a = x + 2 * r * C, *b = a + C;
        const Gradient da = gradient_from(dx, 2 * r * C), db = gradient_from(da, C);
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++) {
            const Real s = real_sigmoid(b[c]);
            gradient_add(da, c, g[r * C + c] * s);
            gradient_add(db, c, g[r * C + c] * a[c] * s * (1 - s));
        }
    }
}

static const GluKernels *glu_kernels(const Tensor *x)
{
    static const GluKernels plain = { forward_plain, backward_plain };
    static const GluKernels cpu = { forward_cpu, backward_cpu };
    static const GluKernels *const tables[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &plain, [KERNELS_CPU] = &cpu
    };
    return KERNELS_FOR(tables, x->device, x->type); /* raises on "cuda" */
}

static void glu_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    const Gradient dx = tape_contribution(node, x);
    if (dx.data)
        glu_kernels(x)->backward(dx, tape_upstream(node, 0), x->data, shape_rows(out->shape),
                                 shape_columns(out->shape));
}

static Tensor *glu(Tape *tape, Tensor *x)
{
    tape_use_real(tape, "glu: x", x);
    Shape shape = x->shape;
    if (shape.rank < 1 || shape_columns(shape) % 2)
        tape_error(tape, "glu: x %s, expected [..., 2 C]", tensor_text(x).text);
    shape.size[shape.rank - 1] /= 2;
    Tensor *out = tape_tensor(tape, shape);
    glu_kernels(x)->forward(out->data, x->data, shape_rows(shape), shape_columns(shape));
    tape_record(
        tape,
        (Node){ .name = "glu", .backward = glu_backward, .inputs = { x }, .outputs = { out } });
    return out;
}

/* ------------------------------------------------------------------------------------- its use
 * y = x1 x2, the product of two numbers, by two linear layers with glu between them. */
enum { POINTS = 64, HIDDEN = 16 };

static Optimizer *build(Params *params, void *model)
{
    Linear *layers = model;
    layers[0] = nn_linear(params, "first", 2, 2 * HIDDEN);
    layers[1] = nn_linear(params, "second", HIDDEN, 1);
    return optim_adam(params, optim_adam_config(1e-2));
}

static Tensor *loss(Tape *tape, const void *model, int step)
{
    const Linear *layers = model;
    Random random = random_new((uint64_t)step, random_stream("points"));
    Real x[POINTS][2], y[POINTS];
    random_normal(&random, x[0], 2 * POINTS);
    for (int i = 0; i < POINTS; i++)
        y[i] = x[i][0] * x[i][1];
    Tensor *h = nn_linear_forward(tape, &layers[0], tape_input(tape, x[0], shape(POINTS, 2)));
    Tensor *out = nn_linear_forward(tape, &layers[1], glu(tape, h));
    return op_mean_squared_error(tape, out, tape_input(tape, y, shape(POINTS, 1)));
}

/* Two uses of x, so that a store in place of an add is found. */
static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
{
    (void)context;
    return op_multiply(tape, glu(tape, inputs[0]), glu(tape, op_sin(tape, inputs[0])));
}

int main(void)
{
    Linear layers[2];
    const Task task = { "glu.safetensors", build, loss, layers, .max_loss = 0.01 };
    const bool right =
        checks("plain", checked, NULL, shape(5, 6)) && checks("cpu", checked, NULL, shape(5, 6));
    return !(trains_and_resumes(task) && right);
}
