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

/* ------------------------------------------------------------------------------- attention: lsh */

/* ---------------------------------------------------------------------- attention: feature maps */

/* -------------------------------------------------------------------- parameters and optimizers */

/* clipping->parts = partial sums of x_i^2; g [n] <- g min(1, max_norm / clipping->norm), of the
 * parts */
REAL_KERNEL(sum_squares, (struct Clipping *clipping, const Real *x, int64_t n))
REAL_KERNEL(clip_gradients, (Real *g, struct Clipping *clipping, Real max_norm, int64_t n))
/* One step of the n weights p, from their gradients: optim/sgd.c, optim/adam.c. Frozen weights stay
 * unchanged. With scalars->bf16, backends store p there too. */
REAL_KERNEL(sgd_step,
            (Real *p, const Real *gradients, const struct StepScalars *scalars, int64_t n))
REAL_KERNEL(sgd_momentum_step, (Real *p, Real *m, const Real *gradients,
                                const struct StepScalars *scalars, int64_t n))
REAL_KERNEL(adam_step, (Real *p, Real *m, Real *v, const Real *gradients,
                        const struct StepScalars *scalars, int64_t n))

/* ------------------------------------------------------------------------------------- decoding */

/* A KV cache <- the keys and values of some positions: nn/attention.c */
REAL_KERNEL(store_keys_values, (const struct KeysValues *positions))
/* out [B, width] = a decode step of x [B, width], which may be out: nn/decode/step.c. It
 * advances the layers' states, the counts and the positions; the result of a full sequence is
 * NaN. */
BACKEND_KERNEL(transformer_step, (Real *out, const Real *x, const struct TransformerStep *step))
/* weight_oi = scales_o q_oi: q [O, I] in 8 bits, for a transformer_step that reads such weights */
BACKEND_KERNEL(quantize_weight,
               (int8_t *q, Real *scales, const Real *weight, int64_t O, int64_t I))
