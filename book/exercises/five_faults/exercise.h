/* Exercise 2.2: six operations on a row x of n elements. Five of their backward functions are
 * wrong. g is dL/dout, and dx <- dL/dx. */
#include <tapegrad.h>

#include <math.h>

typedef enum {
    UNKNOWN,
    RIGHT,
    SIGN,      /* a term of dx has the wrong sign */
    FACTOR,    /* a term of dx lacks a factor */
    SUM,       /* a sum is left out */
    UNWRITTEN, /* an element of dx is not written */
    STORED     /* dx is stored where it must be added */
} Fault;

enum { FUNCTIONS = 6 };

/* The learner's: the answer, and what is printed before it is graded. */
extern Fault faults[FUNCTIONS];
void look(void);

/* 0: out_i = sin(x_i^2) */
static inline void forward0(Real *out, const Real *x, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = sin(x[i] * x[i]);
}

static inline void backward0(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    (void)out;
    for (int i = 0; i < n; i++)
        gradient_add(dx, i, g[i] * cos(x[i] * x[i]));
}

/* 1: out_i = x_i / r, r = sqrt(1 + sum_j x_j^2) */
static inline void forward1(Real *out, const Real *x, int n)
{
    Real r = 1;
    for (int i = 0; i < n; i++)
        r += x[i] * x[i];
    for (int i = 0; i < n; i++)
        out[i] = x[i] / sqrt(r);
}

static inline void backward1(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    Real r = 1, dot = 0;
    for (int i = 0; i < n; i++) {
        r += x[i] * x[i];
        dot += g[i] * out[i];
    }
    for (int i = 0; i < n; i++)
        gradient_add(dx, i, (g[i] + dot * out[i]) / sqrt(r));
}

/* 2: out_i = x_i x_{i+1}, x_0 follows the last one */
static inline void forward2(Real *out, const Real *x, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = x[i] * x[(i + 1) % n];
}

static inline void backward2(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    (void)out;
    Gradient sum = { dx.data, false };
    for (int i = 0; i < n; i++)
        gradient_add(sum, i, g[i] * x[(i + 1) % n]);
    sum.accumulate = true;
    for (int i = 0; i < n; i++)
        gradient_add(sum, (i + 1) % n, g[i] * x[i]);
}

/* 3: of each pair a, b of neighbors the sum and the product; a last one without neighbor stays */
static inline void forward3(Real *out, const Real *x, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = i % 2 ? x[i - 1] * x[i] : i + 1 < n ? x[i] + x[i + 1] : x[i];
}

static inline void backward3(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    (void)out;
    for (int i = 0; i + 1 < n; i += 2) {
        gradient_add(dx, i, g[i] + g[i + 1] * x[i + 1]);
        gradient_add(dx, i + 1, g[i] + g[i + 1] * x[i]);
    }
}

/* 4: out_i = sin(x_i - m), m = sum_j x_j / n */
static inline void forward4(Real *out, const Real *x, int n)
{
    Real m = 0;
    for (int i = 0; i < n; i++)
        m += x[i] / n;
    for (int i = 0; i < n; i++)
        out[i] = sin(x[i] - m);
}

static inline void backward4(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    (void)out;
    Real m = 0;
    for (int i = 0; i < n; i++)
        m += x[i] / n;
    for (int i = 0; i < n; i++)
        gradient_add(dx, i, g[i] * cos(x[i] - m));
}

/* 5: out_i = |x_i| cos x_i */
static inline void forward5(Real *out, const Real *x, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = fabs(x[i]) * cos(x[i]);
}

static inline void backward5(Gradient dx, const Real *g, const Real *x, const Real *out, int n)
{
    (void)out;
    for (int i = 0; i < n; i++)
        gradient_add(dx, i, (x[i] < 0 ? -g[i] : g[i]) * (cos(x[i]) - x[i] * sin(x[i])));
}

/* The operations for the library's tape */
typedef struct Operation {
    void (*forward)(Real *out, const Real *x, int n);
    void (*backward)(Gradient dx, const Real *g, const Real *x, const Real *out, int n);
} Operation;

static inline const Operation *operation(int k)
{
    static const Operation operations[FUNCTIONS] = {
        { forward0, backward0 }, { forward1, backward1 }, { forward2, backward2 },
        { forward3, backward3 }, { forward4, backward4 }, { forward5, backward5 },
    };
    return &operations[k];
}

static inline void function_backward(Node *node)
{
    const Tensor *x = node->inputs[0], *out = node->outputs[0];
    const Gradient dx = tape_contribution(node, node->inputs[0]);
    operation(*(const int *)node->attributes)
        ->backward(dx, tape_upstream(node, 0), x->data, out->data, (int)tensor_count(x));
}

static inline Tensor *function(Tape *tape, int k, Tensor *x)
{
    Tensor *out = tape_tensor(tape, x->shape);
    operation(k)->forward(out->data, x->data, (int)tensor_count(x));
    tape_record(tape, (Node){ .name = "function",
                              .backward = function_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .attributes = tape_save(tape, &k, sizeof k) });
    return out;
}
