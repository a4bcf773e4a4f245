/* Every kernel, declared once; ops/kernels.h says what a line makes. A comment states the shapes
 * and what the kernel computes; the derivation stands above its plain version. Operands are
 * activations, Real or bf16, unless the comment says otherwise.
 *
 * KERNEL        has a version for activations in bf16
 * REAL_KERNEL   has no activations as operands: one version per device
 * BACKEND_KERNEL  is a REAL_KERNEL that plain lacks: NULL there; its caller composes operations */
/* clang-format off */

/* ---------------------------------------------------------------------------------- elementwise */

/* out [n] = f(x [n]), with the operation's constants k */
KERNEL(unary_forward, (UnaryFunction f, Real *out, const Real *x, Constants k, int64_t n))
/* dx [n] <- dout f'(x); read [n] is x or out, whichever the function's row names */
KERNEL(unary_backward, (UnaryFunction f, Gradient dx, const Real *dout, const Real *read,
                        Constants k, int64_t n))
/* out [n] = f(a, b), a and b broadcast */
KERNEL(binary_forward, (BinaryFunction f, Real *out, const Real *a, Broadcast a_view,
                        const Real *b, Broadcast b_view, int64_t n))
/* dx [n] <- dout df/da (side 0) or dout df/db (side 1), from dout and out [n]; read, broadcast, is
 * a or b, whichever the function's row names */
KERNEL(binary_backward, (BinaryFunction f, int side, Gradient dx, const Real *dout,
                         const Real *out, const Real *read, Broadcast view, int64_t n))
/* out [O, P, M, Q, I] <- factor x [P, Q], repeated; x is Real if real_x */
KERNEL(broadcast_copy, (Gradient out, Real factor, const Real *x, Broadcast b, bool real_x))
/* out [P, Q] <- factor sum over o, m, i of x [O, P, M, Q, I]; out is Real if real_out */
KERNEL(broadcast_sum, (Gradient out, Real factor, const Real *x, Broadcast b, bool real_out))
/* out [n] <- x with elements dropped: x is dropout's input or, backward, dout */
KERNEL(dropout, (Gradient out, const Real *x, DropoutDraw d, int64_t n))
/* out [n] <- x, one of them bf16, the other Real */
BACKEND_KERNEL(cast, (Gradient out, const Real *x, bool to_bf16, int64_t n))

/* ----------------------------------------------------------------------------------------- rows */

/* out [R, C] = softmax of each row of x [R, C], or its logarithm */
KERNEL(softmax_forward, (Real *out, const Real *x, bool logarithm, int64_t R, int64_t C))
/* dx [R, C] <- the gradient by x, from dout and out [R, C] */
KERNEL(softmax_backward,
       (Gradient dx, const Real *dout, const Real *out, bool logarithm, int64_t R, int64_t C))

/* ------------------------------------------------------------------------------------- products */

/* --------------------------------------------------------------------------------------- layout */

/* --------------------------------------------------------------------------------------- losses */

/* ------------------------------------------------------------------------------------ recurrent */

/* ------------------------------------------------------------------------------------- sampling */

/* ---------------------------------------------------------------------------- attention: linear */

/* --------------------------------------------------------------------------- attention: softmax */

/* ------------------------------------------------------------------------------- attention: lsh */

/* ---------------------------------------------------------------------- attention: feature maps */

/* -------------------------------------------------------------------- parameters and optimizers */

/* ------------------------------------------------------------------------------------- decoding */
