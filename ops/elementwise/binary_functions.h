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
 * has constant derivatives: its gradients are sums of dout, without loops of their own. The rows
 * make the loops of binary.c and the kernels of ops/cuda/elementwise/binary.cu.
 *
 * add: out = a + b            d out / da = 1        d out / db = 1
 * subtract: out = a - b       d out / da = 1        d out / db = -1
 * multiply: out = a b         d out / da = b        d out / db = a
 * divide: out = a / b         d out / da = 1 / b    d out / db = -a / b^2 = -out / b
 * maximum: out = max(a, b)    d out / da = 1 where out = a, else 0    d out / db = 1 - d out / da
 * minimum: out = min(a, b)    likewise; the comparisons let a NaN pass */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H
#define TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H

/* clang-format off */
#define BINARY_ROWS(ROW, LINEAR)                                                                   \
    /*     op        out    dL/da     reads  dL/db            reads */                             \
    LINEAR(add,      a + b, 1,               1)                                                    \
    LINEAR(subtract, a - b, 1,               -1)                                                   \
    ROW(   multiply, a * b, dout * b, b,     dout * a,         a)                                  \
    ROW(   divide,   a / b, dout / b, b,     -dout * out / b,  b)                                  \
    ROW(   maximum,  a > b || a != a ? a : b,                                                      \
           a == out ? dout : 0, a,           a == out ? 0 : dout, a)                               \
    ROW(   minimum,  a < b || a != a ? a : b,                                                      \
           a == out ? dout : 0, a,           a == out ? 0 : dout, a)
/* clang-format on */

#define ROW(op, ...) BINARY_##op,
typedef enum BinaryFunction { BINARY_ROWS(ROW, ROW) } BinaryFunction; /* BINARY_add, ... */
#undef ROW

#endif
