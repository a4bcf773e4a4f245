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

/* --------------------------------------------------------------------------- attention: softmax */

/* out [B, N, H, M] and log_sum [B, N, H] (Real, saved for the backward pass) of softmax attention */
KERNEL(softmax_attention_forward,
       (Real *out, Real *log_sum, const AttentionInputs *attention, bool causal))
/* d <- the gradients by query, key and value, as far as their data is not NULL */
KERNEL(softmax_attention_backward,
       (AttentionGradient d, const Real *dout, const Real *out, const Real *log_sum,
        const AttentionInputs *attention, bool causal))

/* ------------------------------------------------------------------------------- attention: lsh */

/* out [B, N, H, M]; log_sum [B, N, H] (Real) and order (lsh.h), saved for the backward pass, of LSH
 * attention */
KERNEL(lsh_attention_forward,
       (Real *out, Real *log_sum, int32_t *order, const LshRounds *rounds))
/* d <- the gradients by query_key (d.query) and value, as far as their data is not NULL */
KERNEL(lsh_attention_backward,
       (AttentionGradient d, const Real *dout, const Real *out, const Real *log_sum,
        const int32_t *order, const LshRounds *rounds))

/* ---------------------------------------------------------------------- attention: feature maps */

/* -------------------------------------------------------------------- parameters and optimizers */

/* ------------------------------------------------------------------------------------- decoding */
