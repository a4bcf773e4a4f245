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

/* to [rows, columns] <- from, with row strides in elements */
KERNEL(copy_rows, (Gradient to, int64_t to_stride, const Real *from, int64_t from_stride,
                   int64_t rows, int64_t columns))
/* out [outer, q, middle, p, inner] <- x [outer, p, middle, q, inner] */
KERNEL(transpose, (Gradient out, const Real *x, int64_t outer, int64_t p, int64_t middle, int64_t q,
                   int64_t inner))
/* out [R, D] = the rows of weight [V, D], Real, at indices [R] */
KERNEL(embedding_forward,
       (Real *out, const Real *weight, const int32_t *indices, int64_t R, int64_t D))
/* dweight [V, D], Real, at indices <- the rows of dout [R, D] */
KERNEL(embedding_backward, (Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                            int64_t V, int64_t D))
/* out[o, k, i] = x[o, index[o, k, i], i], x [outer, size, inner], k < K */
KERNEL(gather_forward, (Real *out, const Real *x, const int32_t *index, AxisView v, int64_t K))
/* dx[o, index[o, k, i], i] += dout[o, k, i], in the order of k */
KERNEL(gather_backward, (Real *dx, const Real *dout, const int32_t *index, AxisView v, int64_t K))
/* out [B, rows, columns, height, width, C] = the windows of x [B, H, W, C]; dx <- their sums */
KERNEL(unfold, (Real *out, const Real *x, Unfold u))
KERNEL(fold, (Gradient dx, const Real *dout, Unfold u))
/* to [R, N] at columns [R], or to [R] if columns is NULL, = from [R]; integers */
REAL_KERNEL(store_integers,
            (int32_t *to, const int32_t *columns, const int32_t *from, int64_t R, int64_t N))

/* --------------------------------------------------------------------------------------- losses */

/* ------------------------------------------------------------------------------------ recurrent */

/* ------------------------------------------------------------------------------------- sampling */

/* ---------------------------------------------------------------------------- attention: linear */

/* --------------------------------------------------------------------------- attention: softmax */

/* ------------------------------------------------------------------------------- attention: lsh */

/* ---------------------------------------------------------------------- attention: feature maps */

/* -------------------------------------------------------------------- parameters and optimizers */

/* ------------------------------------------------------------------------------------- decoding */
