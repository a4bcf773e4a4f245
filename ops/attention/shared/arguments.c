/* Validation and views of the attention operations' arguments. */
#include "ops/attention/shared/arguments.h"
#include "ops/shared/indices.h"
#include "ops/shared/internal.h"

static void check_packed(Tape *tape, AttentionLabels labels, Tensor *query, int packed)
{
    const bool all = packed == PACKED_QUERY;
    if (query->shape.size[2] % packed != 0)
        tape_error(tape,
                   "%s without %s must hold %s, [B, N, %d H, D], but %s: its third size is no "
                   "multiple of %d",
                   labels.query, all ? "key and value" : "value", all ? "all three" : "both",
                   packed, tensor_text(query).text, packed);
}

static void check_separate(Tape *tape, AttentionLabels labels, const Tensor *query,
                           const Tensor *key, const Tensor *value, bool causal)
{
    const int64_t *q = query->shape.size, *k = key->shape.size, *v = value->shape.size;
    if (key->shape.rank != 4 || q[0] != k[0] || q[2] != k[2] || q[3] != k[3])
        tape_error(tape, "%s %s, expected [B, N, H, D] with the B, H, D of query, %s", labels.key,
                   tensor_text(key).text, shape_text(query->shape).text);
    if (causal && q[1] != k[1])
        tape_error(tape, "%s %s, expected the same number of positions as query, %s", labels.key,
                   tensor_text(key).text, shape_text(query->shape).text);
    if (value->shape.rank != 4 || v[0] != k[0] || v[1] != k[1] || v[2] != k[2])
        tape_error(tape, "%s %s, expected [B, N, H, M] with the B, N, H of %s, %s", labels.value,
                   tensor_text(value).text, strchr(labels.key, ':') + 2,
                   shape_text(key->shape).text);
}

void op_attention_check(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key,
                        Tensor *value, Tensor *key_lengths, bool causal, int packed)
{
    tape_use(tape, labels.query, query);
    if (query->shape.rank != 4)
        tape_error(tape, "%s %s, expected four axes, [B, N, H, D]", labels.query,
                   tensor_text(query).text);
    if (packed == PACKED_QUERY && !key != !value)
        tape_error(tape,
                   "%s: %s is NULL; give both key and value, or neither when query holds "
                   "all three",
                   labels.name, key ? "value" : "key");
    if (key)
        tape_use(tape, labels.key, key);
    else
        key = query;
    if (value) {
        tape_use(tape, labels.value, value);
        check_separate(tape, labels, query, key, value, causal);
    } else {
        check_packed(tape, labels, query, packed);
    }
    if (key_lengths)
        op_check_sequence_lengths(tape, labels.key_lengths, key_lengths, query->shape.size[0], 1,
                                  key->shape.size[1], "the number of keys");
}

void op_attention_cast_alike(Tape *tape, Tensor **query, Tensor **key, Tensor **value)
{
    if (!*key)
        return;
    op_cast_alike(tape, query, key);
    op_cast_alike(tape, query, value);
    op_cast_alike(tape, query, key);
}

AttentionInputs op_attention_of(const Tensor *query, const Tensor *key, const Tensor *value,
                                const Tensor *key_lengths, const Tensor *offsets, int packed)
{
    const int64_t *size = query->shape.size, H = value ? size[2] : size[2] / packed, D = size[3];
    key = key ? key : query;
    AttentionInputs a = {
        .query = query->data,
        .key = key->data,
        .key_lengths = key_lengths ? key_lengths->integers : NULL,
        .offsets = offsets ? offsets->integers : NULL,
        .B = offsets ? shape_count(offsets->shape) - 1 : size[0],
        .N = size[1],
        .keys = key->shape.size[1],
        .H = H,
        .D = D,
        .M = value ? value->shape.size[3] : D,
    };
    if (value) {
        a.value = value->data;
        a.query_stride = a.key_stride = H * D;
        a.value_stride = H * a.M;
    } else {
        a.key = tensor_at(query, (packed - 2) * H * D);
        a.value = tensor_at(query, (packed - 1) * H * D);
        a.query_stride = a.key_stride = a.value_stride = packed * H * D;
    }
    return a;
}

LinearScan linear_scan_of(Tensor *const inputs[7], CausalLinearAttentionOptions options)
{
    const Tensor *state = inputs[5], *log_decay = inputs[6];
    return (LinearScan){
        .x = op_attention_of(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], PACKED_QUERY),
        .features = options.features,
        .eps = (Real)options.eps,
        .form = options.form,
        .chunk = options.chunk,
        .unnormalized = options.unnormalized,
        .log_decay = log_decay ? log_decay->data : NULL,
        .state = state ? state->data : NULL,
    };
}

void linear_attention_check_options(Tape *tape, AttentionLabels labels, FeatureMap features,
                                    double eps)
{
    if ((unsigned)features > FEATURE_MAP_IDENTITY)
        tape_error(tape,
                   "%s: features is %d, expected FEATURE_MAP_ELU_PLUS_ONE to FEATURE_MAP_IDENTITY",
                   labels.name, (int)features);
    if (!(eps >= 0 && (Real)eps < (Real)INFINITY))
        tape_error(tape, "%s: eps is %g, expected 0 or more", labels.name, eps);
}

void causal_attention_check_options(Tape *tape, AttentionLabels labels,
                                    CausalLinearAttentionOptions options)
{
    linear_attention_check_options(tape, labels, options.features, options.eps);
    if ((unsigned)options.form > FORM_QUADRATIC)
        tape_error(tape, "%s: form is %d, expected FORM_BEST to FORM_QUADRATIC", labels.name,
                   (int)options.form);
    if (options.chunk < 0)
        tape_error(tape, "%s: chunk is %lld, expected 1 or more, or 0 for the default", labels.name,
                   (long long)options.chunk);
}

static void check_gate(Tape *tape, const char *label, Tensor *gate, Shape expected, Real low,
                       Real high, const char *range)
{
    tape_use_real(tape, label, gate);
    if (!shape_equal(gate->shape, expected))
        tape_error(tape, "%s %s, expected %s: one per %shead", label, tensor_text(gate).text,
                   shape_text(expected).text, expected.rank == 1 ? "" : "position and ");
    for (int64_t i = 0; !device_is_cuda(gate->device) && i < tensor_count(gate); i++)
        if (gate->data[i] < low || gate->data[i] > high)
            tape_error(tape, "%s[%lld] is %g, expected %s", label, (long long)i,
                       (double)gate->data[i], range);
}

void op_attention_check_log_decay(Tape *tape, const char *label, Tensor *log_decay, Shape expected)
{
    check_gate(tape, label, log_decay, expected, -(Real)INFINITY, 0, "0 or less");
}

Tensor *causal_attention_log_decay(Tape *tape, AttentionLabels labels, const Tensor *query,
                                   const Tensor *value, Tensor *log_decay)
{
    const int64_t *size = query->shape.size, H = value ? size[2] : size[2] / PACKED_QUERY;
    const Shape all = shape(size[0], size[1], H);
    if (!log_decay)
        return NULL;
    tape_use_real(tape, labels.log_decay, log_decay);
    const bool constant = log_decay->shape.rank == 1;
    op_attention_check_log_decay(tape, labels.log_decay, log_decay, constant ? shape(H) : all);
    return constant ? op_broadcast_to(tape, log_decay, all) : log_decay;
}

void op_attention_check_beta(Tape *tape, const char *label, Tensor *beta, Shape expected)
{
    check_gate(tape, label, beta, expected, 0, 2, "0 to 2");
}

AttentionGradient op_attention_contributions(Node *node, int packed)
{
    Tensor *query = node->inputs[0], *key = node->inputs[1], *value = node->inputs[2];
    AttentionGradient d = { .query = tape_contribution(node, query) };
    if (key)
        d.key = tape_contribution(node, key);
    if (value) {
        d.value = tape_contribution(node, value);
    } else if (d.query.data) {
        const int64_t columns = query->shape.size[2] / packed * query->shape.size[3];
        d.key = d.value = d.query;
        d.key.data = tensor_elements_on(query, d.query.data, (packed - 2) * columns);
        d.value.data = tensor_elements_on(query, d.query.data, (packed - 1) * columns);
    }
    return d;
}
