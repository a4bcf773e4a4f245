/* Validation and views of the attention operations' arguments. */
#include "ops/attention/shared/arguments.h"
#include "ops/layout/indices.h"
#include "ops/shared/internal.h"

static void check_packed(Tape *tape, AttentionLabels labels, Tensor *query)
{
    if (query->shape.size[2] % 3 != 0)
        tape_error(tape,
                   "%s without key and value must hold all three, [B, N, 3 H, D], but is %s: its "
                   "third size is no multiple of 3",
                   labels.query, shape_text(query->shape).text);
}

static void check_separate(Tape *tape, AttentionLabels labels, const Tensor *query,
                           const Tensor *key, const Tensor *value, bool causal)
{
    const int64_t *q = query->shape.size, *k = key->shape.size, *v = value->shape.size;
    if (key->shape.rank != 4 || q[0] != k[0] || q[2] != k[2] || q[3] != k[3])
        tape_error(tape, "%s is %s, expected [B, N, H, D] with the B, H, D of query, %s",
                   labels.key, shape_text(key->shape).text, shape_text(query->shape).text);
    if (causal && q[1] != k[1])
        tape_error(tape, "%s is %s, expected the same number of positions as query, %s", labels.key,
                   shape_text(key->shape).text, shape_text(query->shape).text);
    if (value->shape.rank != 4 || v[0] != k[0] || v[1] != k[1] || v[2] != k[2])
        tape_error(tape, "%s is %s, expected [B, N, H, M] with the B, N, H of key, %s",
                   labels.value, shape_text(value->shape).text, shape_text(key->shape).text);
}

void attention_check_key_lengths(Tape *tape, AttentionLabels labels, Tensor *key_lengths, int64_t B,
                                 int64_t keys)
{
    tape_use_i32(tape, labels.key_lengths, key_lengths);
    if (!shape_equal(key_lengths->shape, shape(B)))
        tape_error(tape, "%s has shape %s, expected %s: one length per sequence",
                   labels.key_lengths, shape_text(key_lengths->shape).text,
                   shape_text(shape(B)).text);
    check_indices(tape, labels.key_lengths, key_lengths, 1, keys, "the number of keys");
}

void attention_check(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key, Tensor *value,
                     Tensor *key_lengths, bool causal)
{
    tape_use(tape, labels.query, query);
    if (query->shape.rank != 4)
        tape_error(tape, "%s is %s, expected four axes, [B, N, H, D]", labels.query,
                   shape_text(query->shape).text);
    if (!key && !value) {
        check_packed(tape, labels, query);
    } else {
        if (!key || !value)
            tape_error(tape,
                       "%s: %s is NULL; give both key and value, or neither when query holds "
                       "all three",
                       labels.name, key ? "value" : "key");
        tape_use(tape, labels.key, key);
        tape_use(tape, labels.value, value);
        check_separate(tape, labels, query, key, value, causal);
    }
    if (key_lengths)
        attention_check_key_lengths(tape, labels, key_lengths, query->shape.size[0],
                                    (key ? key : query)->shape.size[1]);
}

void attention_cast_alike(Tape *tape, Tensor **query, Tensor **key, Tensor **value)
{
    if (!*key)
        return;
    cast_alike(tape, query, key);
    cast_alike(tape, query, value);
    cast_alike(tape, query, key);
}

AttentionInputs attention_of(const Tensor *query, const Tensor *key, const Tensor *value,
                             const Tensor *key_lengths)
{
    const int64_t *size = query->shape.size;
    AttentionInputs a = {
        .query = query->data,
        .key_lengths = key_lengths ? key_lengths->integers : NULL,
        .B = size[0],
        .N = size[1],
        .D = size[3],
    };
    if (key) {
        a.key = key->data;
        a.value = value->data;
        a.keys = key->shape.size[1];
        a.H = size[2];
        a.M = value->shape.size[3];
        a.query_stride = a.key_stride = a.H * a.D;
        a.value_stride = a.H * a.M;
    } else {
        a.keys = a.N;
        a.H = size[2] / 3;
        a.M = a.D;
        a.key = tensor_at(query, a.H * a.D);
        a.value = tensor_at(query, 2 * a.H * a.D);
        a.query_stride = a.key_stride = a.value_stride = 3 * a.H * a.D;
    }
    return a;
}

LinearScan linear_scan_of(Tensor *const inputs[6], CausalLinearAttentionOptions options)
{
    const Tensor *offsets = inputs[4], *state = inputs[5];
    LinearScan scan = {
        .x = attention_of(inputs[0], inputs[1], inputs[2], inputs[3]),
        .features = options.features,
        .eps = (Real)options.eps,
        .form = options.form,
        .chunk = options.chunk,
        .state = state ? state->data : NULL,
    };
    if (offsets) {
        scan.x.offsets = offsets->integers;
        scan.x.B = shape_count(offsets->shape) - 1;
    }
    return scan;
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

Shape attention_out_shape(const AttentionInputs *a)
{
    return shape(a->B, a->N, a->H, a->M);
}

Shape attention_row_shape(const AttentionInputs *a)
{
    return shape(a->B, a->N, a->H);
}

AttentionGradient attention_contributions(Node *node)
{
    Tensor *query = node->inputs[0], *key = node->inputs[1], *value = node->inputs[2];
    AttentionGradient d = { .query = tape_contribution(node, query) };
    if (key) {
        d.key = tape_contribution(node, key);
        d.value = tape_contribution(node, value);
    } else {
        d.key = d.value = d.query;
        if (d.query.data) {
            int64_t columns = query->shape.size[2] / 3 * query->shape.size[3];
            d.key.data = elements_on(query, d.query.data, columns);
            d.value.data = elements_on(query, d.query.data, 2 * columns);
        }
    }
    return d;
}
