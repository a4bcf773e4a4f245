/* Every kernel, declared once; ops/kernels.h says what a line makes. A comment states the shapes
 * and what the kernel computes; the derivation stands above its plain version. Operands are
 * activations, Real or bf16, unless the comment says otherwise.
 *
 * KERNEL        has a version for activations in bf16
 * REAL_KERNEL   has no activations as operands: one version per device
 * BACKEND_KERNEL  is a REAL_KERNEL that plain lacks: NULL there; its caller composes operations */
/* clang-format off */

/* ---------------------------------------------------------------------------------- elementwise */

/* ----------------------------------------------------------------------------------------- rows */

/* out [R, C] = softmax of each row of x [R, C], or its logarithm */
KERNEL(softmax_forward, (Real *out, const Real *x, bool logarithm, int64_t R, int64_t C))
/* dx [R, C] <- the gradient by x, from dout and out [R, C] */
KERNEL(softmax_backward,
       (Gradient dx, const Real *dout, const Real *out, bool logarithm, int64_t R, int64_t C))

/* ------------------------------------------------------------------------------------- products */

/* out (+)= a b, or several such products, whose dtypes, Real or bf16, are in the operands; operation:
 * the caller's name for error messages */
REAL_KERNEL(product, (const char *operation, Precision precision, Result out, Operand a, Operand b,
                      Product p))
/* out [R, O] = f(x weight^T + bias); dtype: pass->type */
REAL_KERNEL(linear_forward, (const LinearPass *pass))
/* y (if NULL: out) [R, O] += bias [O], which is Real, in each row; out [R, O] = f(y) */
KERNEL(linear_activate,
       (Real *out, Real *y, const Real *bias, Activation f, int64_t R, int64_t O))
/* h [R, O] = g f'(y), dbias [O] <- the column sums of h; dbias is Real; for relu y may be out */
KERNEL(linear_activate_backward, (Real *h, Gradient dbias, const Real *g, const Real *y,
                                  Activation f, int64_t R, int64_t O))

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
