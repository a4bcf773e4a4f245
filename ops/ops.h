/* ops/: operations on tensors. Each source file holds one operation or a family: derivation,
 * forward and backward.
 *
 * An operation returns a new tensor of the tape, and records a node if the tape is recording. The
 * tensor is valid until tape_backward; tensor_keep extends this to tape_reset. An operation raises
 * if an argument is on another device, is released, has the wrong dtype or a shape other than its
 * comment states. "[..., C]" has any number of leading axes; a scalar has no axes. A negative axis
 * counts from the end; an axis that x lacks raises. Integers are int32 tensors. Scalars of type
 * double are rounded to Real. A field of options left 0 means its default, which its comment states
 * first. */
#ifndef TAPEGRAD_OPS_H
#define TAPEGRAD_OPS_H

#include "autograd/tape.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------ matrix products */

/* out = a b: a [..., n, k], b [..., k, m]; returns [..., n, m]. The leading axes are equal, or b
 * has none and is shared by all matrices of a. Raises if the inner sizes k differ. */
Tensor *op_matmul(Tape *tape, Tensor *a, Tensor *b);
/* out = a b^T, likewise: b [..., m, k] */
Tensor *op_matmul_nt(Tape *tape, Tensor *a, Tensor *b);
/* out = a^T b, likewise: a [..., k, n] */
Tensor *op_matmul_tn(Tape *tape, Tensor *a, Tensor *b);

/* out = x weight^T + bias: x [..., in], weight [out, in], bias [out] or NULL; returns
 * [..., out]. */
Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

/* out = f(x weight^T + bias), shapes as op_linear: op_linear and then op_relu, op_gelu,
 * op_gelu_tanh or op_silu in fewer passes over memory. Saves x weight^T + bias; for relu only out,
 * on CUDA also one bit per element. ACTIVATION_NONE is op_linear. Raises if bias is NULL. */
typedef enum {
    ACTIVATION_RELU,
    ACTIVATION_GELU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_SILU,
    ACTIVATION_NONE
} Activation;
Tensor *op_linear_activation(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                             Activation activation);

/* ---------------------------------------------------------------------------------- elementwise
 * Unary operations return x's shape. The shapes of a and b are aligned at the last axis; where
 * sizes differ, one is 1 or missing and is broadcast, as in NumPy: [B, N, C] and [C], [B, 1, C] or
 * a scalar; other shapes raise. A function outside its domain gives NaN or infinity. */

/* out = a + b */
Tensor *op_add(Tape *tape, Tensor *a, Tensor *b);
/* out = a - b */
Tensor *op_subtract(Tape *tape, Tensor *a, Tensor *b);
/* out = a b */
Tensor *op_multiply(Tape *tape, Tensor *a, Tensor *b);
/* out = a / b */
Tensor *op_divide(Tape *tape, Tensor *a, Tensor *b);
/* out = max(a, b), min(a, b); NaN if either is NaN. The gradient goes to the operand that out
 * equals, to a if both are equal. */
Tensor *op_maximum(Tape *tape, Tensor *a, Tensor *b);
Tensor *op_minimum(Tape *tape, Tensor *a, Tensor *b);
/* out = 1 where a = b, a < b, a <= b, else 0, also if an operand is NaN. Not differentiable: no
 * gradient flows, and out alone is no loss. a > b is op_less(tape, b, a). */
Tensor *op_equal(Tape *tape, Tensor *a, Tensor *b);
Tensor *op_less(Tape *tape, Tensor *a, Tensor *b);
Tensor *op_less_equal(Tape *tape, Tensor *a, Tensor *b);
/* out = a where condition is not 0 (a NaN is not 0), else b, all three broadcast together. A NaN
 * that is not chosen reaches neither out nor a gradient of a or b. But what computed a multiplies
 * that gradient, 0, by its derivative: NaN where this is infinite, as at sqrt 0 or ln 0. So choose
 * before: sqrt of op_where(x > 0, x, 1). condition, such as a comparison or a mask, gets no
 * gradient. */
Tensor *op_where(Tape *tape, Tensor *condition, Tensor *a, Tensor *b);

/* out = factor x */
Tensor *op_scale(Tape *tape, Tensor *x, double factor);
/* out = x + value */
Tensor *op_add_scalar(Tape *tape, Tensor *x, double value);
/* out = min(max(x, low), high); its derivative is 1 for low <= x <= high. Infinite bounds are
 * allowed. Raises unless low <= high. */
Tensor *op_clamp(Tape *tape, Tensor *x, double low, double high);
/* out = x^exponent; NaN for finite x < 0 unless the exponent is an integer, and for infinite x as
 * pow of C. Exponent 0: out is 1 and the derivative 0, everywhere. Exponents below 1 but 0: the
 * derivative at 0 is infinite. */
Tensor *op_pow(Tape *tape, Tensor *x, double exponent);
/* out = sqrt x, x >= 0; the derivative at 0 is infinite, and dx NaN where also dout is 0: see
 * op_where */
Tensor *op_sqrt(Tape *tape, Tensor *x);
/* out = x^2 */
Tensor *op_square(Tape *tape, Tensor *x);
/* out = |x|; its derivative at 0 is 0 */
Tensor *op_abs(Tape *tape, Tensor *x);
/* out = sin x */
Tensor *op_sin(Tape *tape, Tensor *x);
/* out = cos x */
Tensor *op_cos(Tape *tape, Tensor *x);
/* out = e^x */
Tensor *op_exp(Tape *tape, Tensor *x);
/* out = ln x, x > 0 */
Tensor *op_log(Tape *tape, Tensor *x);
/* out = tanh x */
Tensor *op_tanh(Tape *tape, Tensor *x);
/* out = 1 / (1 + e^-x) */
Tensor *op_sigmoid(Tape *tape, Tensor *x);
/* out = max(x, 0); its derivative at 0 is 0 */
Tensor *op_relu(Tape *tape, Tensor *x);
/* out = x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2  (Hendrycks and Gimpel 2016) */
Tensor *op_gelu(Tape *tape, Tensor *x);
/* out = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, their approximation of gelu */
Tensor *op_gelu_tanh(Tape *tape, Tensor *x);
/* out = x for x > 0, e^x - 1 for x <= 0  (Clevert et al. 2016) */
Tensor *op_elu(Tape *tape, Tensor *x);
/* out = elu(x) + 1 = x + 1 for x > 0, e^x for x <= 0: a feature map of linear attention
 * (Katharopoulos et al. 2020, equation 7) */
Tensor *op_elu_plus_one(Tape *tape, Tensor *x);
/* out = ln(1 + e^x) */
Tensor *op_softplus(Tape *tape, Tensor *x);
/* out = x sigmoid(x)  (Hendrycks and Gimpel 2016; Elfwing, Uchibe, Doya 2018) */
Tensor *op_silu(Tape *tape, Tensor *x);
/* out = ln sigmoid(x) = -ln(1 + e^-x), without overflow */
Tensor *op_log_sigmoid(Tape *tape, Tensor *x);
/* out = max(x, 0)^2 */
Tensor *op_squared_relu(Tape *tape, Tensor *x);

/* out_i = k_i x_i / (1 - p), k_i = 0 with probability p, else 1, p = probability  (Srivastava et
 * al. 2014). x has any shape. Draws from the tape's generator; the backward pass draws the same
 * numbers, so no mask is stored. Returns x itself if training is off (tape_set_training) or p = 0.
 * Raises unless 0 <= p < 1. */
Tensor *op_dropout(Tape *tape, Tensor *x, double probability);

/* ----------------------------------------------------------------- along the last axis, [..., C]
 * Normalizations square x in Real: in float32, elements beyond about 1e19 give NaN. */

/* out_c = e^x_c / sum_j e^x_j, in each row of x [..., C]; returns [..., C]. */
Tensor *op_softmax(Tape *tape, Tensor *x);
/* out_c = x_c - ln sum_j e^x_j, likewise. */
Tensor *op_log_softmax(Tape *tape, Tensor *x);
/* out_c = (x_c - mean) / sqrt(variance + eps) weight_c + bias_c, in each row of x [..., C], with
 * the biased variance; weight, bias [C], or NULL: ones, zeros; returns [..., C]  (Ba, Kiros, Hinton
 * 2016). Raises unless eps > 0. */
Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, double eps);
/* out = layernorm(x + dropout(branch)), the end of a post-norm transformer branch: x, branch
 * [..., C]; the other arguments, random numbers and errors as in op_dropout and op_layernorm. On
 * "cpu" and "cuda" it is one pass over memory, which stores neither the sum nor a mask. */
Tensor *op_residual_layernorm(Tape *tape, Tensor *x, Tensor *branch, double probability,
                              Tensor *weight, Tensor *bias, double eps);

/* -------------------------------------------------------------------------------------- storage */

/* out = x in the dtype `type`: TENSOR_REAL or, on a tape of PRECISION_BF16, TENSOR_BF16; x itself
 * if it has that dtype. Casts are automatic elsewhere: products, convolutions and embeddings return
 * bf16; mixed inputs are converted to bf16. Raises for another type. */
Tensor *op_cast(Tape *tape, Tensor *x, TensorType type);

/* ----------------------------------------------------------------------------------- reductions
 * Along one axis, which the result lacks unless stated; ALL_AXES: of all elements, to a scalar. */
enum { ALL_AXES = INT32_MAX };

/* out = sum_j x_j, of dtype Real */
Tensor *op_sum(Tape *tape, Tensor *x, int axis);
/* out = sum_j x_j / n over n elements, of dtype Real */
Tensor *op_mean(Tape *tape, Tensor *x, int axis);
/* out = sum_j (x_j - mean)^2 / n over n elements, the biased variance, of dtype Real */
Tensor *op_variance(Tape *tape, Tensor *x, int axis);
/* out = max_j x_j, or NaN if an element is NaN. The first maximum gets the gradient. */
Tensor *op_max(Tape *tape, Tensor *x, int axis);
/* out = the first j with the largest x_j, int32, not differentiable; NaN counts as the largest.
 * With ALL_AXES, j counts the elements in row-major order. */
Tensor *op_argmax(Tape *tape, Tensor *x, int axis);
/* out_i = sum_{j<=i} x_j along the axis; returns x's shape. */
Tensor *op_cumulative_sum(Tape *tape, Tensor *x, int axis);
/* out_i = sum_{j>=i} x_j, likewise. */
Tensor *op_reverse_cumulative_sum(Tape *tape, Tensor *x, int axis);

/* --------------------------------------------------------------------------------------- losses */

/* out = sum_r w_r (ln sum_c e^logits_rc - logits_r,target_r) / sum_r w_r, a scalar in nats, over
 * rows r of logits [..., C]. targets: int32 [...], in [0, C). weights: [...], dtype Real, such as a
 * mask, finite, 0 or more, not all 0, or NULL for all 1; they get no gradient. A row of weight 0 is
 * ignored, even if it holds NaN. Raises if a target or weight is out of range; weights are not
 * checked while a CUDA graph is captured. */
Tensor *op_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights);
/* out = sum_r w_r [op_argmax(logits_r) = target_r] / sum_r w_r, a scalar of dtype Real: the part of
 * the rows whose largest logit is the target's. Not differentiable; the arguments of
 * op_cross_entropy. NaN if the weights are all 0. */
Tensor *op_accuracy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights);
/* out = sum_i (prediction_i - target_i)^2 / n, a scalar; equal shapes of n elements. Both inputs
 * get gradients. */
Tensor *op_mean_squared_error(Tape *tape, Tensor *prediction, Tensor *target);

/* ------------------------------------------------------------------------- indexing and layout
 * op_reshape, op_broadcast_to, op_transpose, op_permute, op_concat, op_stack, op_slice, op_select
 * and op_split also take int32 tensors, such as token ids, and then return int32; op_concat and
 * op_stack no mixture. */

/* out_rd = weight_(indices_r)d: weight [V, D], indices int32 [...]; returns [..., D]. Raises if an
 * index is outside [0, V), or indices has 4 axes. */
Tensor *op_embedding(Tape *tape, Tensor *weight, Tensor *indices);
/* out_rc = sum of x_ec over the e with indices_e = r, the transpose of op_embedding: x [..., C],
 * indices int32 [...]; returns [rows, C], Real, 0 where no index is r. In a graph with E edges from
 * source_e to target_e, both int32 [E], the sum over the neighbors of each node of x [nodes, C] is
 *     op_scatter_add(tape, op_embedding(tape, x, source), target, nodes)
 * and a graph convolution (Kipf and Welling 2017) has, with weights [E, 1] of the edges,
 *     op_scatter_add(tape, op_multiply(tape, op_embedding(tape, x, source), weights), ...)
 * Raises if an index is outside [0, rows), or rows is below 1. */
Tensor *op_scatter_add(Tape *tape, Tensor *x, Tensor *indices, int64_t rows);
/* out[.., k] = x[.., indices[.., k]]: x [..., C], indices int32 [..., K]; returns [..., K], in
 * x's dtype. One index per row, the [...] of op_argmax or of op_sample, becomes [..., 1] by
 * op_reshape. Raises if an index is outside [0, C). If x is bf16 on CUDA, the gradients of an index
 * that occurs often are rounded at each addition. */
Tensor *op_gather(Tape *tape, Tensor *x, Tensor *indices);
/* out[.., c] = 1 where c = indices[..], else 0: indices int32 [...]; returns [..., classes], Real,
 * not differentiable. Raises if an index is outside [0, classes), or indices has 4 axes. */
Tensor *op_one_hot(Tape *tape, Tensor *indices, int64_t classes);
/* out = x with another shape, in row-major order; shares storage and gradient with x. Raises unless
 * both have the same number of elements. */
Tensor *op_reshape(Tape *tape, Tensor *x, Shape shape);
/* out = x with shape `shape`, repeated along its axes of size 1 and along missing leading axes (a
 * copy): x [..., 1, C] to [..., N, C]. Raises unless x's sizes, aligned at the last axis, are equal
 * to those of shape or 1. */
Tensor *op_broadcast_to(Tape *tape, Tensor *x, Shape shape);
/* out[b, n, g times + r] = x[b, n, g] for 0 <= r < times: x [B, N, G, D] to [B, N, G times, D] (a
 * copy), so that a key or value head serves `times` query heads: grouped-query attention (Ainslie
 * et al. 2023). Raises if times is below 1. */
Tensor *op_repeat_heads(Tape *tape, Tensor *x, int64_t times);
/* out[.., j, .., i, ..] = x[.., i, .., j, ..]: swaps two axes of x (a copy). */
Tensor *op_transpose(Tape *tape, Tensor *x, int axis_a, int axis_b);
/* out's axis i is x's axis axes[i], for the rank of x in axes (copies): op_transpose at most three
 * times. Returns x itself if the order is x's own. Raises unless axes has each axis of x once. */
Tensor *op_permute(Tape *tape, Tensor *x, const int *axes);
/* out = `count` tensors joined along `axis` in their order (a copy): [.., n_0, ..], [.., n_1, ..]
 * and so on; returns [.., n_0 + n_1 + ..., ..]. Raises unless the other axes are equal. */
Tensor *op_concat(Tape *tape, Tensor *const *tensors, int count, int axis);
/* out[.., t, ..] = tensors_t[.., ..], t < count, a new axis that is `axis` of the result (a copy).
 * Raises unless all have one shape, of 3 axes at most. */
Tensor *op_stack(Tape *tape, Tensor *const *tensors, int count, int axis);
/* out[.., j, ..] = x[.., start + j, ..], j < count, along `axis` of x (a copy). Raises unless
 * 0 <= start, 1 <= count and start + count <= the size of the axis. */
Tensor *op_slice(Tape *tape, Tensor *x, int axis, int64_t start, int64_t count);
/* out[.., ..] = x[.., index, ..], without the axis (a copy). Raises unless 0 <= index < the size of
 * the axis. */
Tensor *op_select(Tape *tape, Tensor *x, int axis, int64_t index);
/* parts_i[.., j, ..] = x[.., i n / count + j, ..], j < n / count: x's axis `axis` of size n in
 * `count` equal parts (copies), which are stored in the array parts. Raises unless count divides
 * n. */
void op_split(Tape *tape, Tensor *x, int axis, int count, Tensor **parts);
/* to <- from, two tensors of one shape, Real or bf16. This hands a recurrent state, or a copy of
 * weights, to a later step without the host, in a replayed step too. to is a tape_persistent tensor
 * or a weight. Returns to. No gradient flows. Raises while recorded operations wait for their
 * backward pass, which may need to's old values: keep from with tensor_keep and store after
 * tape_backward. */
Tensor *op_store(Tape *tape, Tensor *to, Tensor *from);
/* to_r <- from_r, int32 tensors of one shape; or, if columns is not NULL, to_{r, columns_r} <-
 * from_r: to [..., N], columns int32 [...] in [0, N), from [...]. So a replayed step passes its
 * choices to the next step, and records them, without the host; to is a tape_persistent_i32.
 * Returns to. Raises as op_store does, and if a value exceeds the bounds of an operation that used
 * `to` as indices (see tensor_write_i32). */
Tensor *op_store_i32(Tape *tape, Tensor *to, Tensor *columns, Tensor *from);

/* ------------------------------------------------------------------------------------- attention
 * query, key [B, N, H, D] and value [B, N, H, M]: B sequences of N positions, H heads of query size
 * D and value size M; returns [B, N, H, M]. Or query holds all three packed, [B, N, 3 H, D] (H
 * query heads, then the key heads, then the value heads), and key and value are NULL: one matrix
 * product computes them, and the backward pass writes one gradient. */

/* The feature map phi of linear attention, applied to each element. */
typedef enum {
    FEATURE_MAP_ELU_PLUS_ONE, /* elu(x) + 1 (Katharopoulos et al. 2020, equation 7) */
    FEATURE_MAP_RELU,         /* max(x, 0) */
    FEATURE_MAP_SOFTPLUS,     /* ln(1 + e^x) (Buckman and Gelada 2024) */
    FEATURE_MAP_IDENTITY,     /* x: other operations have mapped queries and keys */
} FeatureMap;

/* The algorithm for the sums over earlier positions. All forms give equal results up to rounding;
 * N, D, M as above, C positions per chunk. On CUDA the chunked forms use tensor cores for heads up
 * to 128, float32 as three bf16 products, with an error of about 1e-5 of the summands;
 * FORM_RECURRENT and FORM_QUADRATIC are computed chunk by chunk too, with float32 products. */
typedef enum {
    FORM_BEST,           /* one of the others, by device, dtype, threads and sizes */
    FORM_RECURRENT,      /* position by position: 4 N D M operations per head, D M state elements */
    FORM_CHUNKED,        /* chunk by chunk, as matrix products: 2 N C (D + M) operations more */
    FORM_CHUNK_PARALLEL, /* chunked, with segments of a sequence in parallel: few long sequences */
    FORM_QUADRATIC,      /* no state: N^2 (D + M) operations, the fewest for short sequences */
} AttentionForm;

typedef struct CausalLinearAttentionOptions {
    FeatureMap features; /* FEATURE_MAP_ELU_PLUS_ONE */
    double eps;          /* 0, as in the paper, or more: added to the normalizer (the denominator).
                          * The authors' code adds 1e-6, which keeps out finite where all products
                          * phi(q).phi(k) are 0 */
    Tensor *key_lengths; /* NULL; int32 [B], in [1, N]: keys j >= key_lengths[b] are masked */
    AttentionForm form;  /* FORM_BEST */
    int64_t chunk;       /* from form and sizes: positions per chunk; on CUDA always 64 */
    Tensor *offsets;     /* NULL; int32 [S + 1], 0 = o_0 <= ... <= o_S = N, B = 1: S sequences are
                          * stored one after another, sequence s from position o_s on, and do not
                          * attend to each other. Excludes key_lengths. */
    Tensor *state;       /* NULL: zeros; [B, H, D, M + 1] (with offsets [S, H, D, M + 1]):
                          * sum_j phi(k_j) [v_j, 1]^T over the positions before these; unnormalized
                          * [.., M], of v_j */
    Tensor *log_decay;   /* NULL: none; Real [B, N, H], l_i <= 0, or [H], one per head: before
                          * position i is added, the sums are multiplied by e^(l_i), but not at
                          * masked positions; -infinity: nothing before i. On CUDA l_i > 0 gives
                          * NaN. */
    bool unnormalized;   /* false; true: out_i is the numerator alone; eps is not used */
} CausalLinearAttentionOptions;

/* out_i = sum_{j<=i} (phi(q_i).phi(k_j)) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps) (Katharopoulos
 * et al. 2020, equations 8 to 12), with a decay each product times e^(l_{j+1} + .. + l_i), as in
 * Mamba-2 (Dao and Gu 2024) and, constant, RetNet (Sun et al. 2023). O(N) time; saves out and one
 * value per position and head. Unless final_state is NULL, *final_state becomes the state after the
 * last position, a new tensor of the tape, shaped like options.state. A sequence may be split
 * anywhere: pass the final state of one part as the state of the next, and results and gradients
 * equal those of the whole. The CPU adds up positions in Real: in float32 out is off by 1.6e-5 at
 * 10^6 positions, 6.7e-4 at 4 10^6. Raises if eps is negative or not finite. */
Tensor *op_causal_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                   CausalLinearAttentionOptions options, Tensor **final_state);

/* The final state alone, from zeros: sum_j e^(l_{j+1} + .. + l_N) phi(k_j) [v_j, 1]^T of key [B, N,
 * H, D] and value [B, N, H, M]; or value NULL and key packed with queries and values, [B, N, 3 H,
 * D]. Returns [B, H, D, M + 1], unnormalized [B, H, D, M], Real. O(N) time; saves nothing.
 * options.eps and options.form have no effect. Raises unless offsets and state are NULL. */
Tensor *op_causal_linear_state(Tape *tape, Tensor *key, Tensor *value,
                               CausalLinearAttentionOptions options);

typedef struct LinearAttentionOptions {
    FeatureMap features; /* these as above */
    double eps;
    Tensor *key_lengths;
} LinearAttentionOptions;

/* out_i = sum_j (phi(q_i).phi(k_j)) v_j / (sum_j phi(q_i).phi(k_j) + eps), over all keys j, without
 * a causal mask (equation 5). query may have another number of positions than key and value. */
Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            LinearAttentionOptions options);

typedef struct SoftmaxAttentionOptions {
    Tensor *key_lengths; /* NULL; as above */
    Tensor *mask;        /* NULL: zeros; Real [N, K] or [B, H, N, K] for N queries and K keys, 1 in
                          * place of B or H if it is the same for all. -infinity excludes a key,
                          * whose row must still be finite. Raises if it requires a gradient. */
    Tensor *log_decay;   /* NULL: none; Real [B, N, H], each <= 0. Causal attention only. The logits
                          * of i and j gain l_{j+1} + ... + l_i, where masked positions add nothing.
                          * -infinity begins a new sequence. On CUDA l_i > 0 gives NaN. */
    int64_t window;      /* 0: none; i attends to i - window < j <= i (Beltagy et al. 2020). Causal
                          * attention only, as the next two. Time by the number of visible pairs. */
    int64_t sinks;       /* 0; beside the window, i attends to the first `sinks` positions j <= i
                          * (Xiao et al. 2024, StreamingLLM) */
    int64_t prefix;      /* 0; the first `prefix` positions attend to one another, both ways and
                          * regardless of the window (Raffel et al. 2020, prefix LM). Excludes
                          * log_decay. */
    Tensor *offsets;     /* NULL; int32 [S + 1], 0 = o_0 <= ... <= o_S = N, B = 1, N = K: documents
                          * are stored one after another, and do not attend to each other. sinks and
                          * prefix begin with each document. Excludes key_lengths. */
    Tensor *sink_logits; /* NULL: none; Real [H]: one more logit per head, of a key whose value is 0
                          * (OpenAI 2025, gpt-oss): e^(sink_logits_h) is added to the sum by which a
                          * row is divided. -infinity is none. Gets a gradient. */
} SoftmaxAttentionOptions;

/* out_i = sum_{j<=i} softmax_j(q_i.k_j / sqrt D + mask_ij) v_j  (Vaswani et al. 2017, equation 1),
 * with a causal mask; 0 if the mask excludes all keys of i. With log_decay this is the attention of
 * the Forgetting Transformer (Lin et al. 2025). Computed in tiles with online softmax (Dao et al.
 * 2022, FlashAttention); saves out and one value per position and head, never the N x N matrix. */
Tensor *op_causal_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                    SoftmaxAttentionOptions options);
/* The same over all keys j, without a causal mask. query may have another number of positions than
 * key and value. */
Tensor *op_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                             SoftmaxAttentionOptions options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
