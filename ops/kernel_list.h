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

/* out [R, C] = softmax of each row of x [R, C] */
KERNEL(softmax_forward, (Real *out, const Real *x, int64_t R, int64_t C))
/* dx [R, C] <- the gradient by x, from dout and out [R, C] */
KERNEL(softmax_backward,
       (Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C))
/* out [R, C] = log softmax of each row of x [R, C] */
KERNEL(log_softmax_forward, (Real *out, const Real *x, int64_t R, int64_t C))
/* dx [R, C] <- the gradient by x, from dout and out [R, C] */
KERNEL(log_softmax_backward,
       (Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C))

/* out [R, C] = layernorm of each row of x; writes the statistics */
KERNEL(layernorm_forward, (Real *out, NormArguments norm))
/* dx [R, C], dweight, dbias [C] <- the gradients, from dout [R, C]; weight and bias are Real */
KERNEL(layernorm_backward,
       (Gradient dx, Gradient dweight, Gradient dbias, const Real *dout, NormArguments norm))
/* out [R, C] = layernorm of each row of x + dropout(branch) */
KERNEL(residual_layernorm_forward, (Real *out, NormArguments norm, Residual residual))
KERNEL(residual_layernorm_backward,
       (Gradient dx, Gradient dbranch, Gradient dweight, Gradient dbias, const Real *dout,
        NormArguments norm, Residual residual))
/* index [outer, inner] = the first j with the largest x[o, j, i]; NaN is larger than all numbers */
KERNEL(argmax, (int32_t *index, const Real *x, AxisView v))
/* out[o, n, i] <- the sum of x[o, j, i] over j <= n, or over j >= n if reverse */
KERNEL(cumulative_sum, (Gradient out, const Real *x, bool reverse, AxisView v))
/* sums [C] <- the sum over the rows of x [R, C]; sums are Real */
KERNEL(column_sums, (Gradient sums, const Real *x, int64_t R, int64_t C))

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
