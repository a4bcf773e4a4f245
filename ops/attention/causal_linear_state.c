/* The final state of causal linear attention without its outputs, in the letters of
 * causal_linear.c: from a zero state
 *     S~ = sum_j e^(l_{j+1} + .. + l_N) b_j v~_j^T
 * Backward, from R~ = dL/dS~ and R~_j = e^(l_{j+1} + .. + l_N) R~
 *     db_j = R~_j v~_j      dv_j = R_j^T b_j      dl_i <- sum_{j<i} b_j.db_j
 * The kernels are those of op_causal_linear_attention, with neither out nor dL/dout. */
#include "ops/attention/shared/arguments.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

static const AttentionLabels state_labels =
    ATTENTION_LABELS("op_causal_linear_state", "key", "key");

/* The contributions to key and value. Of a packed query, which the state does not depend on, the
 * gradient is zeroed. */
static AttentionGradient state_contributions(Node *node)
{
    Tensor *key = node->inputs[0], *value = node->inputs[2];
    AttentionGradient d = { .key = value ? tape_contribution(node, key)
                                         : tape_scattered_contribution(node, key) };
    if (value) {
        d.value = tape_contribution(node, value);
    } else if (d.key.data) {
        const int64_t columns = key->shape.size[2] / PACKED_QUERY * key->shape.size[3];
        const Real *all = d.key.data;
        d.value = d.key;
        d.key.data = elements_on(key, all, columns);
        d.value.data = elements_on(key, all, 2 * columns);
    }
    return d;
}

static void causal_linear_state_backward(Node *node)
{
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    LinearScanGradient d = { .x = state_contributions(node) };
    d.log_decay = tape_contribution(node, node->inputs[6]);
    kernels_of(node->inputs[0])
        ->causal_linear_attention_backward(d, NULL, tape_upstream(node, 0), NULL, NULL, &scan);
}

Tensor *op_causal_linear_state(Tape *tape, Tensor *key, Tensor *value,
                               CausalLinearAttentionOptions options)
{
    Tensor *state = NULL;
    attention_check(tape, state_labels, key, value ? key : NULL, value, options.key_lengths, true,
                    PACKED_QUERY);
    causal_attention_check_options(tape, state_labels, options);
    if (options.offsets || options.state)
        tape_error(tape, "%s: expected NULL: a state of one sequence each, from zeros",
                   options.offsets ? state_labels.offsets : state_labels.state);
    if (value)
        cast_alike(tape, &key, &value);
    options.log_decay =
        causal_attention_log_decay(tape, state_labels, key, value, options.log_decay);
    if (device_is_cuda(key->device)) { /* its kernels compute both */
        op_causal_linear_attention(tape, key, value ? key : NULL, value, options, &state);
        return state;
    }
    /* In place of the query there is the key, or the packed tensor of both. */
    Tensor *inputs[7] = { key, NULL, value, options.key_lengths, [6] = options.log_decay };
    const LinearScan scan = linear_scan_of(inputs, options);
    state = tape_tensor(tape, shape(scan.x.B, scan.x.H, scan.x.D, linear_scan_columns(&scan)));
    kernels_of(key)->causal_linear_attention_forward(NULL, NULL, state->data, &scan);
    tape_record(tape,
                (Node){ .name = state_labels.name,
                        .backward = causal_linear_state_backward,
                        .inputs = { key, NULL, value, options.key_lengths, NULL, NULL, inputs[6] },
                        .outputs = { state },
                        .attributes = tape_save(tape, &options, sizeof options) });
    return state;
}
