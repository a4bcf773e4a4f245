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

/* --------------------------------------------------------------------------------------- layout */

/* --------------------------------------------------------------------------------------- losses */

/* ------------------------------------------------------------------------------------ recurrent */

/* ------------------------------------------------------------------------------------- sampling */

/* ---------------------------------------------------------------------------- attention: linear */

/* out [B, N, H, M], its divisor den [B, N, H] (Real) and the final state [B, H, D, M + 1] (Real; may
 * be NULL) of causal linear attention */
KERNEL(causal_linear_attention_forward,
       (Real *out, Real *den, Real *final_state, const LinearScan *scan))
/* the gradients by query, key, value and state; dfinal_state (Real) may be NULL */
KERNEL(causal_linear_attention_backward,
       (LinearScanGradient d, const Real *dout, const Real *dfinal_state, const Real *out,
        const Real *den, const LinearScan *scan))
/* the same without a mask and without states */
KERNEL(linear_attention_forward, (Real *out, Real *den, const LinearScan *scan))
KERNEL(linear_attention_backward,
       (AttentionGradient d, const Real *dout, const Real *out, const Real *den,
        const LinearScan *scan))

/* --------------------------------------------------------------------------- attention: softmax */

/* ------------------------------------------------------------------------------- attention: lsh */

/* ---------------------------------------------------------------------- attention: feature maps */

/* out [R, 1 + D + D (D + 1) / 2] = the polynomial features of each row of x [R, D] */
KERNEL(polynomial_features_forward, (Real *out, const Real *x, int64_t R, int64_t F, int64_t D))
KERNEL(polynomial_features_backward,
       (Gradient dx, const Real *dout, const Real *x, int64_t R, int64_t F, int64_t D))
/* out [R, F] = e^(y_rf - |x_r|^2 / 2) / sqrt F;  y [R, F] (Real), x [R, D] */
KERNEL(random_features_forward,
       (Real *out, const Real *y, const Real *x, int64_t R, int64_t F, int64_t D))
/* h [R, F] = dout out;  dx [R, D] <- -(sum_f h_rf) x_r, unless dx.data is NULL */
KERNEL(random_features_backward,
       (Real *h, Gradient dx, const Real *dout, const Real *out, const Real *x, int64_t R, int64_t F,
        int64_t D))

/* -------------------------------------------------------------------- parameters and optimizers */

/* ------------------------------------------------------------------------------------- decoding */
