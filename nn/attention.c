/* Multi-head attention (Vaswani et al. 2017, section 3.2.2). One product makes the queries, keys and
 * values of all heads; the attention operation mixes the positions; another product mixes the
 * heads. */
#include "nn/internal.h"

#include <math.h>

MultiHeadAttention nn_attention(Params *params, const char *name, TransformerConfig config)
{
    config = nn_transformer_config("nn_attention", config);
    static const char *const parts[] = { "query", "key", "value" };
    const int64_t width = config.heads * config.head_dim;
    Initializer initial = { INITIAL_UNIFORM, (Real)(1 / sqrt((double)width)) };
    MultiHeadAttention attention = {
        .heads = config.heads,
        .head_dim = config.head_dim,
        .attention = config.attention,
        .features = config.features,
        .eps = config.attention_eps,
    };
    attention.input.weight =
        params_add_joined(params, name, parts, 3, "weight", shape(width, width), initial);
    attention.input.bias = params_add_joined(params, name, parts, 3, "bias", shape(width), initial);
    attention.output = nn_linear(params, nn_name(name, "out").text, width, width);
    return attention;
}

static void check(Tape *tape, const MultiHeadAttention *attention, Tensor *x)
{
    const int64_t width = attention->heads * attention->head_dim;
    tape_use(tape, "nn_attention_forward: x", x);
    if (x->shape.rank != 3 || x->shape.size[2] != width)
        tape_error(tape, "nn_attention_forward: x is %s, expected [B, N, %lld]",
                   shape_text(x->shape).text, (long long)width);
}

/* packed [B, N, 3 H, D]: first the H query heads, then the keys', then the values'. */
static Tensor *mix(Tape *tape, const MultiHeadAttention *attention, Tensor *packed,
                   Tensor *key_lengths)
{
    const LinearAttention linear = { .features = attention->features,
                                     .eps = attention->eps,
                                     .key_lengths = key_lengths };
    switch (attention->attention) {
    case ATTENTION_CAUSAL_LINEAR:
        return op_causal_linear_attention(tape, packed, NULL, NULL, linear);
    case ATTENTION_LINEAR:
        return op_linear_attention(tape, packed, NULL, NULL, linear);
    case ATTENTION_CAUSAL_SOFTMAX:
        return op_softmax_attention(tape, packed, NULL, NULL, key_lengths, true);
    case ATTENTION_SOFTMAX:
        return op_softmax_attention(tape, packed, NULL, NULL, key_lengths, false);
    }
    tape_error(tape, "nn_attention_forward: there is no attention %d", (int)attention->attention);
}

Tensor *nn_attention_forward(Tape *tape, const MultiHeadAttention *attention, Tensor *x,
                             Tensor *key_lengths)
{
    check(tape, attention, x);
    const int64_t B = x->shape.size[0], N = x->shape.size[1];
    const int64_t H = attention->heads, D = attention->head_dim;
    Tensor *packed = nn_linear_forward(tape, &attention->input, x); /* [B, N, 3 H D] */
    packed = op_reshape(tape, packed, shape(B, N, 3 * H, D));
    Tensor *mixed = mix(tape, attention, packed, key_lengths); /* [B, N, H, D] */
    mixed = op_reshape(tape, mixed, shape(B, N, H * D));
    return nn_linear_forward(tape, &attention->output, mixed);
}
