/* The binary functions: one row per operation, with broadcasting (broadcast.h).
 *
 *     ROW(multiply, a * b, dout * b, b, dout * a, a)
 *
 * has the operation's name; out, an expression of a and b; dL/da, an expression of dout = dL/dout,
 * out and one of a and b; which of these, a or b; dL/db; which of a and b this reads. Each gradient
 * is summed over the repeats of its input.
 *
 *     LINEAR(subtract, a - b, 1, -1)
 *
 * has constant derivatives: its gradients are sums of dout, without loops of their own.
 *
 *     STEP(less, a < b ? 1 : 0)
 *
 * is piecewise constant: its derivatives are 0, out requires no gradient, no node is recorded.
 * The rows make the loops of binary.c and the kernels of ops/cuda/elementwise/binary.cu.
 *
 * add: out = a + b            d out / da = 1        d out / db = 1
 * subtract: out = a - b       d out / da = 1        d out / db = -1
 * multiply: out = a b         d out / da = b        d out / db = a
 * divide: out = a / b         d out / da = 1 / b    d out / db = -a / b^2 = -out / b
 * maximum: out = max(a, b)    d out / da = 1 where out is a, else 0   d out / db = 1 - d out / da
 * minimum: out = min(a, b)    likewise; the comparisons let a NaN pass, with its gradient
 * equal, less, less_equal: out = 1 where the comparison holds, else 0, as for a NaN */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H
#define TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H

/* clang-format off */
#define BINARY_ROWS(ROW, LINEAR, STEP)                                                             \
    /*     op        out    dL/da     reads  dL/db            reads */                             \
    LINEAR(add,      a + b, 1,               1)                                                    \
    LINEAR(subtract, a - b, 1,               -1)                                                   \
    ROW(   multiply, a * b, dout * b, b,     dout * a,         a)                                  \
    ROW(   divide,   a / b, dout / b, b,     -dout * out / b,  b)                                  \
    ROW(   maximum,  a > b || a != a ? a : b,                                                      \
           a == out || a != a ? dout : 0, a, a == out || a != a ? 0 : dout, a)                     \
    ROW(   minimum,  a < b || a != a ? a : b,                                                      \
           a == out || a != a ? dout : 0, a, a == out || a != a ? 0 : dout, a)                     \
    STEP(  equal,      a == b ? 1 : 0)                                                             \
    STEP(  less,       a < b ? 1 : 0)                                                              \
    STEP(  less_equal, a <= b ? 1 : 0)
/* clang-format on */

#define ROW(op, ...) BINARY_##op,
typedef enum BinaryFunction { BINARY_ROWS(ROW, ROW, ROW) } BinaryFunction; /* BINARY_add, ... */
#undef ROW

#endif
