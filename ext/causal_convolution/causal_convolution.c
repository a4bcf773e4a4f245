/* causal_convolution: each channel c of a sequence x_0, ..., x_{n-1} is convolved over time with
 * its own K taps, of which the last is the present. x_{1-K}, ..., x_{-1} are the state before, or
 * 0; each of the S sequences has its own.
 *   out_ic = bias_c + sum_k weight_ck x_{i+k-K+1},c
 *   final_state = x_{n-K+1}, ..., x_{n-1}: the state for the positions from n on
 * Backward, g = dL/dout, f = dL/dfinal_state: x_j is multiplied by weight_k for i = j + K - 1 - k,
 *   dx_jc <- f_{j-n+K-1},c + sum_k g_{j+K-1-k},c weight_ck      dstate for j < 0, likewise
 *   dweight_ck <- sum over sequences and i of g_ic x_{i+k-K+1},c
 *   dbias_c <- sum over sequences and i of g_ic
 * where f_t counts for t >= 0, and g_i for 0 <= i < n. In the code i and j are rows of x, whose
 * positions begin at sequence.first. */
#include "ext/causal_convolution/causal_convolution.h"
#include "ext/causal_convolution/kernels.h"

/* x_i, or what the state has in its place; NULL: zeros */
static const Real *input_row(const Real *x, const Real *state, ConvolvedSequences c, Sequence q,
                             int64_t i)
{
    return i >= q.first ? x + i * c.C : state ? state + state_offset(&c, q, i) : NULL;
}

static void convolve_forward_plain(Real *out, Real *final_state, const Real *x, const Real *weight,
                                   const Real *bias, const Real *state, ConvolvedSequences c)
{
    EACH_ROW(i, c.R, c.C * c.K) {
        const Sequence q = sequence_of_row(&c, i);
        const bool inside = i < q.end;
        for (int64_t ch = 0; ch < c.C; ch++)
            out[i * c.C + ch] = inside && bias ? bias[ch] : 0;
        for (int64_t k = 0; k < (inside ? c.K : 0); k++) {
            const Real *in = input_row(x, state, c, q, i + k - c.K + 1);
            for (int64_t ch = 0; ch < (in ? c.C : 0); ch++)
                out[i * c.C + ch] += weight[ch * c.K + k] * in[ch];
        }
    }
    for (int64_t s = 0; s < (final_state ? c.S : 0); s++) {
        const Sequence q = sequence_at(&c, s);
        for (int64_t t = 0; t < c.K - 1; t++) {
            const Real *in = input_row(x, state, c, q, q.end + t - c.K + 1);
            for (int64_t ch = 0; ch < c.C; ch++)
                final_state[(s * (c.K - 1) + t) * c.C + ch] = in ? in[ch] : 0;
        }
    }
}

/* dx [C] <- the gradient by x_j, or by what the state has in its place */
static void input_gradient(Gradient dx, const Real *dout, const Real *dfinal, const Real *weight,
                           ConvolvedSequences c, Sequence q, int64_t j)
{
    const int64_t t = j - q.end + c.K - 1;
    const Real *f = dfinal && t >= 0 && j < q.end ? dfinal + (q.s * (c.K - 1) + t) * c.C : NULL;
    for (int64_t ch = 0; ch < c.C; ch++)
        gradient_add(dx, ch, f ? f[ch] : 0);
    dx.accumulate = true;
    for (int64_t k = 0; k < c.K; k++) {
        const int64_t i = j + c.K - 1 - k;
        for (int64_t ch = 0; ch < (i >= q.first && i < q.end && j < q.end ? c.C : 0); ch++)
            gradient_add(dx, ch, dout[i * c.C + ch] * weight[ch * c.K + k]);
    }
}

static void convolve_backward_x_plain(Gradient dx, Gradient dstate, const Real *dout,
                                      const Real *dfinal_state, const Real *weight,
                                      ConvolvedSequences c)
{
    EACH_ROW(j, dx.data ? c.R : 0, c.C * c.K)
        input_gradient(gradient_from(dx, j * c.C), dout, dfinal_state, weight, c,
                       sequence_of_row(&c, j), j);
    EACH_ROW(s, dstate.data ? c.S : 0, c.C * c.K * c.K) {
        const Sequence q = sequence_at(&c, s);
        for (int64_t t = 0; t < c.K - 1; t++)
            input_gradient(gradient_from(dstate, (s * (c.K - 1) + t) * c.C), dout, dfinal_state,
                           weight, c, q, q.first + t - c.K + 1);
    }
}

static void convolve_backward_weight_plain(Gradient dweight, Gradient dbias, const Real *dout,
                                           const Real *x, const Real *state, ConvolvedSequences c)
{
    EACH_ROW(ch, c.C, c.R * c.K)
        for (int64_t k = 0; k < c.K; k++) {
            double sum = 0, sum_g = 0;
            for (int64_t s = 0; s < c.S; s++) {
                const Sequence q = sequence_at(&c, s);
                for (int64_t i = q.first; i < q.end; i++) {
                    const Real *in = input_row(x, state, c, q, i + k - c.K + 1);
                    sum += in ? dout[i * c.C + ch] * in[ch] : 0;
                    sum_g += dout[i * c.C + ch];
                }
            }
            if (dweight.data)
                gradient_add(dweight, ch * c.K + k, (Real)sum);
            if (dbias.data && k == 0)
                gradient_add(dbias, ch, (Real)sum_g);
        }
}

const CausalConvolutionKernels causal_convolution_plain = { convolve_forward_plain,
                                                            convolve_backward_x_plain,
                                                            convolve_backward_weight_plain };

static void causal_convolution_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *state = node->inputs[5];
    const CausalConvolutionKernels *kernels = causal_convolution_kernels(x);
    const ConvolvedSequences c = *(const ConvolvedSequences *)node->attributes;
    const Real *dout = upstream_or_zeros(node);
    const Real *dfinal_state = node->outputs[1] ? tape_upstream(node, 1) : NULL;
    const Gradient dx = tape_contribution(node, x), dstate = tape_contribution(node, state);
    if (dx.data || dstate.data)
        kernels->backward_x(dx, dstate, dout, dfinal_state, weight->data, c);
    const Gradient dweight = tape_contribution(node, weight);
    const Gradient dbias = tape_contribution(node, node->inputs[2]);
    if (dweight.data || dbias.data)
        kernels->backward_weight(dweight, dbias, dout, x->data, state ? state->data : NULL, c);
}

static ConvolvedSequences causal_convolution_of(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                                                CausalConvolutionOptions options)
{
    tape_use(tape, "op_causal_convolution: x", x);
    tape_use_real(tape, "op_causal_convolution: weight", weight);
    if (x->shape.rank != 3)
        tape_error(tape, "op_causal_convolution: x %s, expected [B, N, C]", tensor_text(x).text);
    const int64_t B = x->shape.size[0], N = x->shape.size[1], C = x->shape.size[2];
    const int64_t K = weight->shape.size[1];
    if (weight->shape.rank != 2 || weight->shape.size[0] != C || K < 2)
        tape_error(tape,
                   "op_causal_convolution: weight %s, expected [%lld, K] with K from 2 on: "
                   "x %s",
                   tensor_text(weight).text, (long long)C, tensor_text(x).text);
    if (bias)
        tape_use_real(tape, "op_causal_convolution: bias", bias);
    if (bias && !shape_equal(bias->shape, shape(C)))
        tape_error(tape, "op_causal_convolution: bias %s, expected [%lld]: x %s",
                   tensor_text(bias).text, (long long)C, tensor_text(x).text);
    if (options.lengths)
        op_check_sequence_lengths(tape, "op_causal_convolution: lengths", options.lengths, B, 0, N,
                                  "the positions of x");
    if (options.offsets)
        op_check_offsets(tape, "op_causal_convolution: offsets", options.offsets, options.lengths,
                         x, "x");
    const int64_t S = options.offsets ? shape_count(options.offsets->shape) - 1 : B;
    if (options.state)
        op_check_state(tape, "op_causal_convolution: state", options.state, shape(S, K - 1, C),
                       "K - 1, C");
    return (ConvolvedSequences){ .R = B * N,
                                 .C = C,
                                 .K = K,
                                 .S = S,
                                 .N = N,
                                 .lengths = options.lengths ? options.lengths->integers : NULL,
                                 .offsets = options.offsets ? options.offsets->integers : NULL };
}

Tensor *op_causal_convolution(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                              CausalConvolutionOptions options, Tensor **final_state)
{
    const ConvolvedSequences c = causal_convolution_of(tape, x, weight, bias, options);
    Tensor *state = options.state, *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *after = final_state ? tape_tensor(tape, shape(c.S, c.K - 1, c.C)) : NULL;
    causal_convolution_kernels(x)->forward(out->data, after ? after->data : NULL, x->data,
                                           weight->data, bias ? bias->data : NULL,
                                           state ? state->data : NULL, c);
    tape_record(tape,
                (Node){ "op_causal_convolution", causal_convolution_backward,
                        .inputs = { x, weight, bias, options.lengths, options.offsets, state },
                        .outputs = { out, after }, .attributes = tape_save(tape, &c, sizeof c) });
    if (final_state)
        *final_state = after;
    return out;
}
