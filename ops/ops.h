/* ops/: operations on tensors, a file each: its mathematics, its forward and its backward.
 *
 * Every operation returns a new tensor of the tape (valid until tape_reset), records itself when
 * the tape records, and raises an error when an argument is not on the tape's device, was given
 * back, is of the wrong type, or has a shape that does not fit; the comments say which shapes fit.
 * "[..., C]" is any number of leading axes. Integers are int32 tensors. */
#ifndef TAPEGRAD_OPS_H
#define TAPEGRAD_OPS_H

#include "autograd/tape.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------ matrix products */

/* out = a b, of [..., n, k] and [..., k, m]: [..., n, m]; a transposed argument is given as
 * [..., k, n] or [..., m, k]. Leading axes are equal, or b has none and serves all of a's. */
Tensor *op_matmul(Tape *tape, Tensor *a, Tensor *b, bool transpose_a, bool transpose_b);

/* out = x weight^T + bias: x [..., in], weight [out, in], bias [out] or NULL; [..., out]. */
Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias);

/* out = f(x weight^T + bias), likewise but with a bias: what op_linear and then op_relu, op_gelu or
 * op_gelu_tanh make, in fewer passes over memory; of relu it keeps nothing but out. */
typedef enum { ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_GELU, ACTIVATION_GELU_TANH } Activation;
Tensor *op_linear_activation(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                             Activation activation);

/* ---------------------------------------------------------------------------------- elementwise
 * The shapes of a and b are equal, or one is the trailing axes of the other (a scalar always is)
 * and is repeated along the leading ones. */

/* out = a + b */
Tensor *op_add(Tape *tape, Tensor *a, Tensor *b);
/* out = a - b */
Tensor *op_subtract(Tape *tape, Tensor *a, Tensor *b);
/* out = a b */
Tensor *op_multiply(Tape *tape, Tensor *a, Tensor *b);
/* out = a / b */
Tensor *op_divide(Tape *tape, Tensor *a, Tensor *b);

/* out = factor x */
Tensor *op_scale(Tape *tape, Tensor *x, Real factor);
/* out = x + value */
Tensor *op_add_scalar(Tape *tape, Tensor *x, Real value);
/* out = e^x */
Tensor *op_exp(Tape *tape, Tensor *x);
/* out = ln x */
Tensor *op_log(Tape *tape, Tensor *x);
/* out = tanh x */
Tensor *op_tanh(Tape *tape, Tensor *x);
/* out = 1 / (1 + e^-x) */
Tensor *op_sigmoid(Tape *tape, Tensor *x);
/* out = max(x, 0); the derivative at 0 is 0 */
Tensor *op_relu(Tape *tape, Tensor *x);
/* out = x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2  (Hendrycks and Gimpel 2016) */
Tensor *op_gelu(Tape *tape, Tensor *x);
/* out = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, their approximation */
Tensor *op_gelu_tanh(Tape *tape, Tensor *x);
/* out = x for x > 0, e^x - 1 for x <= 0 */
Tensor *op_elu(Tape *tape, Tensor *x);
/* out = x + 1 for x > 0, e^x for x <= 0: the feature map of Transformers are RNNs, equation 7 */
Tensor *op_elu_plus_one(Tape *tape, Tensor *x);
/* out = ln(1 + e^x) */
Tensor *op_softplus(Tape *tape, Tensor *x);
/* out = max(x, 0)^2 */
Tensor *op_squared_relu(Tape *tape, Tensor *x);

/* out = x / (1 - probability) where a draw keeps it, else 0: each element is dropped with the
 * given probability, 0 <= probability < 1. Draws from the tape's generator; no mask is stored.
 * With recording off, or probability 0, it returns x. */
Tensor *op_dropout(Tape *tape, Tensor *x, Real probability);

/* -------------------------------------------------------------------- along the last axis, [..., C] */

/* out_c = e^x_c / sum_j e^x_j */
Tensor *op_softmax(Tape *tape, Tensor *x);
/* out_c = x_c - ln sum_j e^x_j */
Tensor *op_log_softmax(Tape *tape, Tensor *x);
/* out = (x - mean) / sqrt(variance + eps) weight + bias, over the last axis, with the biased
 * variance; weight and bias [C]. eps > 0. */
Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Real eps);
/* out = layernorm(x + dropout(branch)), the end of a transformer layer's branches, in one pass:
 *   s = x + k branch / (1 - probability), k a draw of 0 or 1 an element
 *   out = (s - mean) / sqrt(variance + eps) weight + bias, mean and variance of s
 * x and branch [..., C] are of one shape; weight and bias [C]; 0 <= probability < 1, eps > 0. Draws
 * what op_dropout(branch, probability) would; like there, all is kept and nothing drawn with
 * recording off, or probability 0. Neither s nor k is stored. */
Tensor *op_residual_layernorm(Tape *tape, Tensor *x, Tensor *branch, Real probability,
                              Tensor *weight, Tensor *bias, Real eps);

/* --------------------------------------------------------------------------------- feature maps
 * Of queries and keys, for linear attention with FEATURES_IDENTITY. Along the last axis too. */

/* x [..., D]; out [..., 1 + D + D (D + 1) / 2] holds 1, sqrt 2 x_i, x_i^2 and, in an order of their
 * own, sqrt 2 x_i x_j, i < j: out(q).out(k) = (1 + q.k)^2. */
Tensor *op_polynomial_features(Tape *tape, Tensor *x);

/* out_f = e^(w_f.x - |x|^2 / 2) / sqrt F: x [..., D], projection w [F, D], out [..., F]. With rows of
 * w that are normal, out(q).out(k) is e^(q.k) in the mean over w (Choromanski et al. 2021, Rethinking
 * Attention with Performers, lemma 1): with q and k divided by D^(1/4), softmax attention's kernel. */
Tensor *op_random_features(Tape *tape, Tensor *x, Tensor *projection);

/* Draws such a w into host memory, [F, D], both 1 or more: numbers normal with mean 0 and deviation 1,
 * either independent or, with each D rows orthogonal to each other, of less variance (their section
 * 2.3). */
void op_draw_projection(Real *host, int64_t F, int64_t D, bool orthogonal, Random *random);

/* -------------------------------------------------------------------------------------- storage */

/* out = x, stored as type: TENSOR_REAL or, on tapes of that precision, TENSOR_BF16; x itself when it
 * is. Other operations convert what they must by themselves: products and embeddings to bf16, and
 * where an operation's arguments are stored differently, all of them. */
Tensor *op_cast(Tape *tape, Tensor *x, TensorType type);

/* ------------------------------------------------------------------------------------ reductions */
typedef enum { OVER_ALL, OVER_LAST_AXIS } Reduction;

/* out = sum_i x_i of all elements, a scalar; or over the last axis of [..., C]: [...]. */
Tensor *op_sum(Tape *tape, Tensor *x, Reduction over);
/* out = sum_i x_i / n, likewise. */
Tensor *op_mean(Tape *tape, Tensor *x, Reduction over);
/* out_i = sum over j <= i (reverse: j >= i) of x_j, along an axis (-1: the last). */
Tensor *op_cumulative_sum(Tape *tape, Tensor *x, int axis, bool reverse);

/* ---------------------------------------------------------------------------------------- losses */

/* A scalar, sum_r w_r (ln sum_c e^logits_rc - logits_r,target_r) / sum_r w_r, in nats, over the rows
 * of logits [..., C]; targets int32 [...], each in [0, C); weights [...] (a mask, say; 0 or more, not
 * all 0; they get no gradient) or NULL for all 1. Rows of weight 0 are left out, whatever they hold. */
Tensor *op_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights);
/* A scalar, sum_i (prediction_i - target_i)^2 / n; equal shapes. Both get gradients. */
Tensor *op_mean_squared_error(Tape *tape, Tensor *prediction, Tensor *target);
/* A scalar, the mean over the pixels of -ln P(target), in nats: parameters [..., 3 K] hold for each
 * pixel the logits, the means and the logarithms of the scales of K logistic distributions, in this
 * order; targets int32 [...], each in [0, 255], pixel p standing for p / 255 2 - 1. P is what the
 * mixture gives to the pixel's bin, of width 2 / 255, those of 0 and 255 reaching to infinity. (Salimans
 * et al. 2017, PixelCNN++, section 2.1 and equation 2.) As in their program, log scales below -7 count
 * as -7, and where a distribution gives 1e-5 or less it is its density times the width. */
Tensor *op_discretized_logistic_mixture(Tape *tape, Tensor *parameters, Tensor *targets);

/* -------------------------------------------------------------------------------------- sampling
 * Random choices by the tape's generator, one draw a row: given equal arguments they are the same on
 * every device. No gradient passes; the results are int32 and may be indices of op_embedding. Logits
 * that are minus infinity or no numbers are never chosen; where a row has no others, its first is. */

/* A field left 0 means its default. */
typedef struct Sampling {
    bool greedy; /* false; true: the largest logit, the first of equal ones; nothing is drawn */
    Real temperature; /* 1: logits are divided by it */
    int64_t top_k;    /* all: the largest so many are left (of equal ones the first) */
    Real top_p;       /* 1: then the fewest of the largest that together have this probability */
} Sampling;

/* Of each row of logits [..., C] one symbol, with probability softmax(logits / temperature) among
 * those that top_k and top_p leave: int32 [...], in [0, C), C at most 2^23. Probabilities below about
 * 1e-12 of the largest count as 0. */
Tensor *op_sample(Tape *tape, Tensor *logits, Sampling sampling);

/* Of each row of parameters [..., 3 K], as in op_discretized_logistic_mixture, one pixel: a component
 * by its logit, then of its distribution the nearest of the 256 values: int32 [...], in [0, 255]. */
Tensor *op_sample_logistic_mixture(Tape *tape, Tensor *parameters);

/* ------------------------------------------------------------------------- indexing and layout */

/* out = the rows of weight [V, D] that indices, int32 [...] in [0, V), name: [..., D]. */
Tensor *op_embedding(Tape *tape, Tensor *weight, Tensor *indices);
/* The same elements in another shape of the same count; shares storage and gradient with x. */
Tensor *op_reshape(Tape *tape, Tensor *x, Shape shape);
/* x with two axes exchanged (a copy). Negative axes count from the end, here and below. */
Tensor *op_transpose(Tape *tape, Tensor *x, int axis_a, int axis_b);
/* a and b laid end to end along an axis; their other axes are equal. b may lack a's leading axes:
 * it is then repeated along them (axis counts in a's shape). */
Tensor *op_concat(Tape *tape, Tensor *a, Tensor *b, int axis);
/* count entries of x along an axis, from start on (a copy): 0 <= start, 1 <= count, and start + count
 * is the axis' size at most. */
Tensor *op_slice(Tape *tape, Tensor *x, int axis, int64_t start, int64_t count);
/* to <- from, int32 tensors of one shape; or, with columns, int32 [...] in [0, N), each element of
 * from [...] goes into one column of its row of to [..., N]. So a step that is replayed hands what it
 * has chosen to the next one, and keeps it, without the host: to is a tape_persistent_i32. Raises
 * where operations that use to need other integers, as tensor_write_i32 does, and while the tape
 * records. */
void op_store_i32(Tape *tape, Tensor *to, Tensor *columns, Tensor *from);

/* ------------------------------------------------------------------------------------- attention
 * query, key [B, N, H, D] and value [B, N, H, M]: B sequences of N positions, H heads; the result
 * is [B, N, H, M]. Or query holds all three side by side, [B, N, 3 H, D] (first the H query heads,
 * then the keys', then the values'), and key and value are NULL: one product makes them, and its
 * gradient is written in one piece. */

/* The feature map phi of linear attention. The attention operations apply the first four, element by
 * element; nn_attention puts the others' operations in front of FEATURES_IDENTITY. */
typedef enum {
    FEATURES_ELU_PLUS_ONE, /* elu(x) + 1 (Katharopoulos et al. 2020, equation 7) */
    FEATURES_RELU,         /* max(x, 0) */
    FEATURES_SOFTPLUS,     /* ln(1 + e^x) (Buckman and Gelada 2024) */
    FEATURES_IDENTITY,     /* x: queries and keys have been mapped by other operations */
    FEATURES_SQUARED_RELU, /* op_squared_relu */
    FEATURES_POLYNOMIAL,   /* op_polynomial_features of x / D^(1/4): (1 + q.k / sqrt D)^2 */
    FEATURES_RANDOM,       /* op_random_features of x / D^(1/4): e^(q.k / sqrt D) in the mean */
} FeatureMap;

/* How the sums over the positions before are taken. All give the same but for rounding; N, D and M
 * as below, C positions a chunk. On CUDA the chunked forms of heads up to 128 multiply on tensor
 * cores, float32 in three products of bf16: to about 1e-5 of the numbers that are added. */
typedef enum {
    FORM_BEST,      /* one of the others, by the device, its threads and the sizes */
    FORM_RECURRENT, /* position by position: 4 N D M operations a head, D M numbers of state */
    FORM_CHUNKED,   /* chunk by chunk, as products of matrices: 2 N C (D + M) operations more */
    FORM_CHUNK_PARALLEL, /* the same, but segments of a sequence at once: for few long ones */
    FORM_QUADRATIC,      /* without state: N^2 (D + M) operations, the fewest for short sequences */
} AttentionForm;

/* A field left 0 means its default. */
typedef struct LinearAttention {
    FeatureMap features; /* FEATURES_ELU_PLUS_ONE */
    Real eps;            /* 1e-6: added to the divisor */
    Tensor *key_lengths; /* NULL; int32 [B], each in [1, N]: keys from there on count for nothing */

    /* op_causal_linear_attention alone: */
    AttentionForm form;   /* FORM_BEST */
    int64_t chunk;        /* by the form and the sizes: positions in a chunk; on CUDA always 64 */
    Tensor *offsets;      /* NULL; int32 [S + 1], 0 = o_0 <= ... <= o_S = N, with B = 1: S sequences
                           * lie end to end, sequence s from position o_s on. None sees another.
                           * Not together with key_lengths. */
    Tensor *state;        /* NULL, which means 0; [B, H, D, M + 1] (with offsets [S, H, D, M + 1]):
                           * sum_j phi(k_j) [v_j, 1]^T over what came before these positions */
    Tensor **final_state; /* NULL; where to put the state after the last position, a new tensor of
                           * the tape */
} LinearAttention;

/* out_i = sum_{j<=i} (phi(q_i).phi(k_j)) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps)
 * (Katharopoulos et al. 2020, equations 8 to 12). O(N) time; keeps out and one number a position and
 * head. A sequence cut anywhere, the final state of one piece given to the next as its state, makes
 * the same results and gradients as the whole. */
Tensor *op_causal_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                                   LinearAttention options);

/* The same without the causal mask: the sums run over all keys j (equation 5). query may have
 * another number of positions than key and value. */
Tensor *op_linear_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                            LinearAttention options);

/* out_i = sum_j softmax_j(q_i.k_j / sqrt D) v_j (Vaswani et al. 2017, equation 1), over all keys,
 * or over j <= i when causal, and over the first key_lengths[b] of sequence b (as above). Not causal,
 * query may have another number of positions than key and value. Computed in tiles (Dao et al. 2022,
 * FlashAttention); keeps out and one number a position and head, never the N x N matrix. */
Tensor *op_softmax_attention(Tape *tape, Tensor *query, Tensor *key, Tensor *value,
                             Tensor *key_lengths, bool causal);

/* A field left 0 means its default. */
typedef struct LshAttention {
    int64_t rounds;      /* 1: hashes, each with its own chunks, 64 at most */
    int64_t chunk;       /* 32: positions in a chunk */
    int64_t buckets;     /* 2 for every chunk that N positions fill; even, or 1: nothing is hashed.
                          * More than 64 are the pairs of two hashes, and may be some more; 2^20
                          * at most. */
    bool causal;         /* false */
    Tensor *key_lengths; /* NULL; int32 [B], each in [1, N]: positions from there on are left out:
                          * nothing sees them, and their results are 0 */
} LshAttention;

/* Reformer's attention (Kitaev, Kaiser, Levskaya 2020, section 2): out_i = sum_j softmax_j(s_ij) v_j
 * of query_key [B, N, H, D] and value [B, N, H, M], or value NULL and query_key [B, N, 2 H, D], which
 * holds both. Keys are the queries, divided by their length: s_ij = q_i.q_j / (|q_j| sqrt D). The
 * sum runs over those j != i that in at least one round have i's bucket and, with the positions
 * sorted by bucket and cut into chunks, are in i's chunk or the one before; and have j < i when
 * causal. Where there is none, out_i = v_i. The hashes are random, drawn anew by every call from the
 * tape's generator; no gradient comes from them. O(N rounds chunk) time, O(N rounds) memory. */
Tensor *op_lsh_attention(Tape *tape, Tensor *query_key, Tensor *value, LshAttention options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
