/* The binary functions: one row per operation.
 *
 * out = f(a, b) with broadcasting: broadcast_view.h.
 * A row is the formula f, its gradients, and one of
 *
 *     BINARY(op, f, a_gradient, a_from, b_gradient, b_from)
 *     BINARY_LINEAR(op, f, da, db)
 *
 * a_gradient(dout, out, y) returns da = dout df/da, where y is the element of the input that a_from
 * names, FROM_A or FROM_B; b_gradient and b_from likewise. If the derivatives are constants da and
 * db, the gradients need no kernel. Each gradient is summed over the repeats of its input.
 *
 * binary.c defines both macros to make the CPU kernels and op_NAME, binary.cu the CUDA kernels. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H
#define TAPEGRAD_OPS_ELEMENTWISE_BINARY_FUNCTIONS_H

#include "ops/shared/math.h"

/* clang-format off */

/* add: out = a + b
 *   d out / da = 1     d out / db = 1 */
MATH_FUNCTION Real add(Real a, Real b)      { return a + b; }
BINARY_LINEAR(add, add, 1, 1)

/* subtract: out = a - b
 *   d out / da = 1     d out / db = -1 */
MATH_FUNCTION Real subtract(Real a, Real b) { return a - b; }
BINARY_LINEAR(subtract, subtract, 1, -1)

/* multiply: out = a b
 *   d out / da = b     d out / db = a */
MATH_FUNCTION Real multiply(Real a, Real b) { return a * b; }
MATH_FUNCTION Real multiply_gradient(Real dout, Real out, Real other)
{
    return (void)out, dout * other;
}
BINARY(multiply, multiply, multiply_gradient, FROM_B, multiply_gradient, FROM_A)

/* divide: out = a / b
 *   d out / da = 1 / b     d out / db = -a / b^2 = -out / b */
MATH_FUNCTION Real divide(Real a, Real b)   { return a / b; }
MATH_FUNCTION Real divide_gradient_a(Real dout, Real out, Real b)
{
    return (void)out, dout / b;
}
MATH_FUNCTION Real divide_gradient_b(Real dout, Real out, Real b)
{
    return -dout * out / b;
}
BINARY(divide, divide, divide_gradient_a, FROM_B, divide_gradient_b, FROM_B)

/* clang-format on */
#undef BINARY
#undef BINARY_LINEAR
#endif
