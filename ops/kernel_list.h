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

/* losses [B], Real, and the states and log_sums of ctc; ops/losses/ctc.h has the arguments */
KERNEL(ctc_forward, (Real *losses, Ctc ctc))
/* dlogits [B, T, C] <- from dlosses [B], Real; overwrites the states */
KERNEL(ctc_backward, (Gradient dlogits, const Real *dlosses, Ctc ctc))

/* ------------------------------------------------------------------------------------ recurrent */

/* The steps of a layer one after another; ops/recurrent/recurrence.h has the arguments, all Real.
 * From gates = x W_ih^T to out and the final state; backward to dgates and the initial state's
 * gradient. */
REAL_KERNEL(lstm_forward, (Recurrence r))
REAL_KERNEL(lstm_backward, (Recurrence r))
REAL_KERNEL(gru_forward, (Recurrence r))
REAL_KERNEL(gru_backward, (Recurrence r))
/* makes r.gates, of x W_ih^T the gradient, that of h W_hh^T */
REAL_KERNEL(gru_hidden_gates, (Recurrence r))
/* previous [B, N, H] = h of the step before, 0 after a sequence's end; initial [B, H], or NULL */
REAL_KERNEL(previous_hidden, (Real *previous, const Real *initial, Recurrence r))

/* ------------------------------------------------------------------------------------- sampling */

/* ---------------------------------------------------------------------------- attention: linear */

/* --------------------------------------------------------------------------- attention: softmax */

/* ------------------------------------------------------------------------------- attention: lsh */

/* ---------------------------------------------------------------------- attention: feature maps */

/* -------------------------------------------------------------------- parameters and optimizers */

/* ------------------------------------------------------------------------------------- decoding */
