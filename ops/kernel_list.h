/* Every kernel, declared once; ops/kernels.h says what a line makes. A comment states the shapes
 * and what the kernel computes; the derivation stands above its plain version. Operands are
 * activations, Real or bf16, unless the comment says otherwise.
 *
 * KERNEL        has a version for activations in bf16
 * REAL_KERNEL   has no activations as operands: one version per device
 * FUSED_KERNEL, BACKEND_KERNEL  are a KERNEL and a REAL_KERNEL that plain lacks: NULL there; the
 *               caller composes operations
 *
 * An extension has typed tables in its kernels.c instead (ext/delta/kernels.c): it pays about five
 * lines per kernel, so that it can be deleted alone. Here one line declares a kernel for all
 * backends. */
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
/* dx [n] <- dout df/da (side 0) or dout df/db (side 1), from dout and out [n]; read, broadcast to n
 * elements by its view, is a or b, whichever the function's row names */
KERNEL(binary_backward, (BinaryFunction f, int side, Gradient dx, const Real *dout,
                         const Real *out, const Real *read, Broadcast view))
/* out [n] = a where c is not 0, else b; c, a and b broadcast */
KERNEL(where_forward, (Real *out, Choice in, int64_t n))
/* dx [n] <- dout where a (of_a) or b is chosen, else 0; c broadcast to n elements by its view */
KERNEL(where_backward, (Gradient dx, bool of_a, const Real *dout, const Real *c, Broadcast c_view))
/* out [O, P, M, Q, I] <- factor x [P, Q], repeated; x is Real if real_x */
KERNEL(broadcast_copy, (Gradient out, Real factor, const Real *x, Broadcast b, bool real_x))
/* out [P, Q] <- factor sum over o, m, i of x [O, P, M, Q, I]; out is Real if real_out */
KERNEL(broadcast_sum, (Gradient out, double factor, const Real *x, Broadcast b, bool real_out))
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
FUSED_KERNEL(residual_layernorm_forward, (Real *out, NormArguments norm, Residual residual))
FUSED_KERNEL(residual_layernorm_backward,
             (Gradient dx, Gradient dbranch, Gradient dweight, Gradient dbias, const Real *dout,
              NormArguments norm, Residual residual))
/* index [outer, inner] = the first j with the largest x[o, j, i]; NaN is larger than all numbers */
KERNEL(argmax, (int32_t *index, const Real *x, AxisView v))
/* out[o, n, i] <- the sum of x[o, j, i] over j <= n, or over j >= n if reverse */
KERNEL(cumulative_sum, (Gradient out, const Real *x, bool reverse, AxisView v))
/* sums [C] <- the sum over the rows of x [R, C]; sums are Real */
KERNEL(column_sums, (Gradient sums, const Real *x, int64_t R, int64_t C))

/* ------------------------------------------------------------------------------------- products */

/* out (+)= a b, or several such products, whose dtypes, Real or bf16, are in the operands;
 * operation: the caller's name for error messages */
REAL_KERNEL(product, (Precision precision, Result out, Operand a, Operand b,
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

/* to [rows, columns] <- from, with row strides in elements */
KERNEL(copy_rows, (Gradient to, int64_t to_stride, const Real *from, int64_t from_stride,
                   int64_t rows, int64_t columns))
/* to = from, at places by strides; integers */
REAL_KERNEL(copy_integers, (int32_t *to, const int32_t *from, IntegerCopy copy))
/* out [outer, q, middle, p, inner] <- x [outer, p, middle, q, inner] */
KERNEL(transpose, (Gradient out, const Real *x, int64_t outer, int64_t p, int64_t middle, int64_t q,
                   int64_t inner))
/* out [R, D] <- the rows of weight [V, D], Real, at indices [R] */
KERNEL(embedding_forward,
       (Gradient out, const Real *weight, const int32_t *indices, int64_t R, int64_t D))
/* dweight [V, D], Real, at indices <- the rows of dout [R, D] */
KERNEL(embedding_backward, (Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                            int64_t V, int64_t D))
/* out[o, k, i] = x[o, index[o, k, i], i], x [outer, size, inner], k < K */
KERNEL(gather_forward, (Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K))
/* dx[o, index[o, k, i], i] += dout[o, k, i], in the order of k */
KERNEL(gather_backward, (Real *dx, const Real *dout, const int32_t *index, AxisView v, int64_t K))
/* out [R, C], Real, = 1 at column indices [R], else 0 */
REAL_KERNEL(one_hot, (Real *out, const int32_t *indices, int64_t R, int64_t C))
/* to [R, N] at columns [R], or to [R] if columns is NULL, = from [R]; integers */
REAL_KERNEL(store_integers,
            (int32_t *to, const int32_t *columns, const int32_t *from, int64_t R, int64_t N))

/* --------------------------------------------------------------------------------------- losses */

/* losses [R] = w_r (l_r - logits_r,t_r), and l [R], of the rows; all but the logits are Real or
 * int32 */
KERNEL(cross_entropy_forward, (Real *losses, LogSumExp *l, CrossEntropy in))
/* out [] = the sum of losses [R] / weight_sum, weight_sum [] = that of weights [R]; NULL: all 1 */
REAL_KERNEL(mean_of_losses, (Real *out, Real *weight_sum, const Real *losses, const Real *weights,
                             int64_t R))
/* dlogits [R, C] <- the gradient by logits, from dout [] */
KERNEL(cross_entropy_backward, (Gradient dlogits, const Real *dout, const LogSumExp *l,
                                const Real *weight_sum, CrossEntropy in))
/* out [] = the weighted fraction of found = targets, all [R]; weights [R] or NULL: all 1 */
REAL_KERNEL(accuracy, (Real *out, const int32_t *found, const int32_t *targets,
                       const Real *weights, int64_t R))
/* out [], Real, = the mean of (p - t)^2, p [n], t [n] */
KERNEL(mean_squared_error_forward, (Real *out, const Real *p, const Real *t, int64_t n))
/* dx [n] <- sign 2 (p - t) dout / n, dout [] */
KERNEL(mean_squared_error_backward, (Gradient dx, Real sign, const Real *dout, const Real *p,
                                     const Real *t, int64_t n))
/* ---------------------------------------------------------------------------- attention: linear */

/* out [B, N, H, M], its divisor den [B, N, H] (Real; NULL if unnormalized) and the final state
 * [B, H, D, M + 1] (Real; may be NULL) of causal linear attention */
KERNEL(causal_linear_attention_forward,
       (Real *out, Real *den, Real *final_state, const LinearScan *scan))
/* the gradients by query, key, value, log decay and state; dfinal_state (Real) may be NULL */
KERNEL(causal_linear_attention_backward,
       (LinearScanGradient d, const Real *dout, const Real *dfinal_state, const Real *out,
        const Real *den, const LinearScan *scan))
/* the final state alone, from zeros; and the gradients by key, value and log decay, from dstate */
KERNEL(causal_linear_state_forward, (Real *state, const LinearScan *scan))
KERNEL(causal_linear_state_backward,
       (LinearScanGradient d, const Real *dstate, const LinearScan *scan))
/* the same without a mask and without states */
KERNEL(linear_attention_forward, (Real *out, Real *den, const LinearScan *scan))
KERNEL(linear_attention_backward,
       (AttentionGradient d, const Real *dout, const Real *out, const Real *den,
        const LinearScan *scan))

/* --------------------------------------------------------------------------- attention: softmax */

/* out [B, N, H, M] of softmax attention, and of each row of scores the max m and inverse = 1 / l
 * [B, N, H] (Real, saved for the backward pass, in the order of the backend); inverse is 0 if no
 * key is visible */
KERNEL(softmax_attention_forward,
       (Real *out, Real *m, Real *inverse, const AttentionInputs *attention, bool causal))
/* d <- the gradients by query, key and value, as far as their data is not NULL; unless it is NULL,
 * dc [B, N, H] (Real) = the gradient by the sums A of the log decays, and dsink [B, N, H] (Real) =
 * each row's contribution to the gradient by its head's sink logit */
KERNEL(softmax_attention_backward,
       (AttentionGradient d, Real *dc, Real *dsink, const Real *dout, const Real *out,
        const Real *m, const Real *inverse, const AttentionInputs *attention, bool causal))

/* -------------------------------------------------------------------- parameters and optimizers */

/* clipping->parts = partial sums of x_i^2; g [n] <- g min(1, max_norm / clipping->norm), of the
 * parts */
REAL_KERNEL(sum_squares, (struct Clipping *clipping, const Real *x, int64_t n))
REAL_KERNEL(clip_gradients, (Real *g, struct Clipping *clipping, Real max_norm, int64_t n))
/* to [n] <- to + weight (from - to) */
REAL_KERNEL(average_values, (Real *to, const Real *from, Real weight, int64_t n))
/* One step of the n weights p, from their gradients: optim/sgd.c, optim/adam.c. Frozen weights stay
 * unchanged. With scalars->bf16, CUDA stores p there too. */
REAL_KERNEL(sgd_step, (Real *p, Real *m, const Real *gradients, const struct StepScalars *scalars,
                       int64_t n))
REAL_KERNEL(adam_step, (Real *p, Real *m, Real *v, const Real *gradients,
                        const struct StepScalars *scalars, int64_t n))
