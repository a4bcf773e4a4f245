/* The museum: operations whose backward functions repeat faults that other projects reported, and
 * what gradient_check says of each, as it was and mended. The forward passes are right. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { ROWS = 2, COLUMNS = 4, COUNT = ROWS * COLUMNS };

static bool mended;

static Tensor *record(Tape *tape, const char *name, void (*backward)(Node *), Tensor *x,
                      Tensor *out)
{
    tape_record(tape, (Node){ name, backward, .inputs = { x }, .outputs = { out } });
    return out;
}

static Real sigmoid(Real x)
{
    return 1 / (1 + (Real)exp(-(double)x));
}

/* ---- GELU: out = x s(1.702 x), with the derivative of x (1 + tanh u) / 2 */
static void gelu_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    const Real *g = tape_upstream(node, 0), a = (Real)0.7978846, b = (Real)0.044715;
    for (int i = 0; i < COUNT; i++) {
        const Real v = x->data[i], s = sigmoid((Real)1.702 * v);
        const Real t = (Real)tanh((double)(a * (v + b * v * v * v)));
        const Real du = a * (1 + 3 * b * v * v);
        const Real of_tanh = (1 + t) / 2 + v * (1 - t * t) / 2 * du;
        const Real of_sigmoid = s + (Real)1.702 * v * s * (1 - s);
        gradient_add(dx, i, g[i] * (mended ? of_sigmoid : of_tanh));
    }
}

static Tensor *gelu(Tape *tape, Tensor *const *inputs, void *context)
{
    (void)context;
    Tensor *x = inputs[0], *out = tape_tensor(tape, x->shape);
    for (int i = 0; i < COUNT; i++)
        out->data[i] = x->data[i] * sigmoid((Real)1.702 * x->data[i]);
    return record(tape, "gelu", gelu_backward, x, out);
}

/* ---- softplus: out = ln(1 + e^(beta x)) / beta, and x where beta x > limit */
static const Real beta = 3;
static Real limit;

static void softplus_backward(Node *node)
{
    const Tensor *out = node->outputs[0], *x = node->inputs[0];
    Gradient dx = tape_contribution(node, node->inputs[0]);
    const Real *g = tape_upstream(node, 0);
    for (int i = 0; i < COUNT; i++) {
        const bool linear = beta * (mended ? x : out)->data[i] > limit;
        gradient_add(dx, i, linear ? g[i] : g[i] * sigmoid(beta * x->data[i]));
    }
}

static Tensor *softplus(Tape *tape, Tensor *const *inputs, void *context)
{
    Tensor *x = inputs[0], *out = tape_tensor(tape, x->shape);
    limit = context ? 1 : 20;
    for (int i = 0; i < COUNT; i++) {
        const Real v = beta * x->data[i];
        out->data[i] = v > limit ? x->data[i] : (Real)log1p(exp((double)v)) / beta;
    }
    return record(tape, "softplus", softplus_backward, x, out);
}

/* ---- exp, whose contribution is stored */
static void exp_backward(Node *node)
{
    Gradient dx = tape_contribution(node, node->inputs[0]);
    const Real *g = tape_upstream(node, 0), *out = node->outputs[0]->data;
    for (int i = 0; i < COUNT; i++)
        if (mended)
            gradient_add(dx, i, g[i] * out[i]);
        else
            dx.data[i] = g[i] * out[i];
}

static Tensor *exponential(Tape *tape, Tensor *const *inputs, void *context)
{
    Tensor *x = inputs[0], *out = tape_tensor(tape, x->shape);
    for (int i = 0; i < COUNT; i++)
        out->data[i] = (Real)exp((double)x->data[i]);
    record(tape, "exp", exp_backward, x, out);
    return context ? op_add(tape, x, out) : out;
}

/* ---- the maximum of each row, with the gradient given to every element that is equal to it */
static void max_backward(Node *node)
{
    Tensor *x = node->inputs[0], *out = node->outputs[0];
    Gradient dx = tape_contribution(node, x);
    const Real *g = tape_upstream(node, 0);
    const int64_t R = tensor_count(out), C = tensor_count(x) / R;
    for (int64_t r = 0; r < R; r++) {
        bool found = false;
        for (int64_t i = r * C; i < (r + 1) * C; i++) {
            const bool is_max = x->data[i] == out->data[r] && !(mended && found);
            gradient_add(dx, i, is_max ? g[r] : 0);
            found |= is_max;
        }
    }
}

/* With a context, of each row beside its copy: two elements are equal to the maximum. */
static Tensor *row_max(Tape *tape, Tensor *const *inputs, void *context)
{
    Tensor *x = inputs[0], *out = tape_tensor(tape, shape(ROWS));
    if (context)
        x = op_concat(tape, (Tensor *[]){ x, x }, 2, 1);
    const int64_t C = tensor_count(x) / ROWS;
    for (int64_t r = 0; r < ROWS; r++) {
        out->data[r] = x->data[r * C];
        for (int64_t i = r * C; i < (r + 1) * C; i++)
            out->data[r] = x->data[i] > out->data[r] ? x->data[i] : out->data[r];
    }
    return record(tape, "max", max_backward, x, out);
}

/* ---- layer norm, where a register still holds the mean of h; here h = g */
static Real r[ROWS]; /* 1 / deviation */

static void norm_backward(Node *node)
{
    Gradient dx = tape_contribution(node, node->inputs[0]);
    const Real *h = tape_upstream(node, 0), *n = node->outputs[0]->data;
    for (int i = 0; i < COUNT; i += COLUMNS) {
        Real mean_h = 0, mean_hn = 0;
        for (int c = i; c < i + COLUMNS; c++) {
            mean_h += h[c] / COLUMNS;
            mean_hn += h[c] * n[c] / COLUMNS;
        }
        for (int c = i; c < i + COLUMNS; c++) {
            Real work = mean_h, value = h[c] - work;
            if (mended)
                work = 0;
            work += n[c] * mean_hn;
            gradient_add(dx, c, r[i / COLUMNS] * (value - work));
        }
    }
}

static Tensor *norm(Tape *tape, Tensor *const *inputs, void *context)
{
    (void)context;
    Tensor *x = inputs[0], *out = tape_tensor(tape, x->shape);
    for (int i = 0; i < COUNT; i += COLUMNS) {
        Real mean = 0, variance = 0;
        for (int c = i; c < i + COLUMNS; c++)
            mean += x->data[c] / COLUMNS;
        for (int c = i; c < i + COLUMNS; c++)
            variance += (x->data[c] - mean) * (x->data[c] - mean) / COLUMNS;
        r[i / COLUMNS] = 1 / (Real)sqrt((double)variance);
        for (int c = i; c < i + COLUMNS; c++)
            out->data[c] = (x->data[c] - mean) * r[i / COLUMNS];
    }
    return record(tape, "norm", norm_backward, x, out);
}

/* ---- L = -sum_i y_i ln p_i, whose forward pass leaves dL/dp in p */
static const Real y[COUNT] = { 0.125, 0.25, 0.5, 0.125, 0.5, 0.125, 0.25, 0.125 };

static void cross_entropy_backward(Node *node)
{
    Tensor *p = node->inputs[0];
    Gradient dp = tape_contribution(node, p);
    const Real g = tape_upstream(node, 0)[0];
    for (int i = 0; i < COUNT; i++)
        gradient_add(dp, i, mended ? g * -y[i] / p->data[i] : g * p->data[i]);
}

static Tensor *cross_entropy(Tape *tape, Tensor *p)
{
    Tensor *out = tape_tensor(tape, shape_scalar());
    out->data[0] = 0;
    for (int i = 0; i < COUNT; i++) {
        out->data[0] -= y[i] * (Real)log((double)p->data[i]);
        if (!mended)
            p->data[i] = -y[i] / p->data[i];
    }
    return record(tape, "cross_entropy", cross_entropy_backward, p, out);
}

/* With a context of softmax, else of 0.5 x: x is positive then. */
static Tensor *entropy_of(Tape *tape, Tensor *const *inputs, void *context)
{
    return cross_entropy(tape,
                         context ? op_softmax(tape, inputs[0]) : op_scale(tape, inputs[0], 0.5));
}

static const struct Exhibit {
    const char *section, *name;
    CheckedFunction *function;
    bool context, mended, passes;
} exhibits[] = {
    { "gelu", "as it was", gelu, false, false, false },
    { NULL, "mended", gelu, false, true, true },
    { "softplus", "limit 20", softplus, false, false, true },
    { NULL, "limit 1", softplus, true, false, false },
    { NULL, "limit 1, mended", softplus, true, true, true },
    { "exp", "e^x", exponential, false, false, true },
    { NULL, "x + e^x", exponential, true, false, false },
    { NULL, "x + e^x, mended", exponential, true, true, true },
    { "max", "without a tie", row_max, false, false, true },
    { NULL, "with a tie", row_max, true, false, false },
    { NULL, "tie, mended", row_max, true, true, true },
    { "norm", "as it was", norm, false, false, false },
    { NULL, "mended", norm, false, true, true },
    { "overwritten", "of 0.5 x", entropy_of, false, false, true },
    { NULL, "of softmax", entropy_of, true, false, false },
    { NULL, "softmax, mended", entropy_of, true, true, true },
};

int main(void)
{
    static const Real mixed[COUNT] = { 0.25, -1, 2, 1, -2, 0.5, 3, -0.5 };
    static const Real positive[COUNT] = { 0.5, 1, 0.75, 2, 1.5, 1, 0.5, 0.25 };
    bool right = true;
    for (size_t i = 0; i < sizeof exhibits / sizeof *exhibits; i++) {
        const struct Exhibit *e = &exhibits[i];
        const bool is_scaled = e->function == entropy_of && !e->context;
        const CheckInput x = { shape(ROWS, COLUMNS), is_scaled ? positive : mixed };
        mended = e->mended;
        GradientCheck c =
            gradient_check(device_open("plain"), e->function, e->context ? &right : NULL, &x, 1);
        const bool passes = c.error <= 2e-3;
        if (e->section)
            printf("[%s]\n", e->section);
        printf("%-15s  error %.1e\n", e->name, c.error);
        if (!passes)
            printf("  dx[%d] tape %.4f differences %.4f\n", (int)c.element, c.analytic, c.numeric);
        if (!passes && *c.pattern)
            printf("  %s\n", c.pattern);
        right &= passes == e->passes;
    }
    return !right;
}
