/* The final state of causal linear attention without its outputs, in the letters of
 * causal_linear.c: from a zero state
 *     S~ = sum_j e^(l_{j+1} + .. + l_N) b_j v~_j^T
 * Backward, from R~ = dL/dS~ and R~_j = e^(l_{j+1} + .. + l_N) R~
 *     db_j = R~_j v~_j      dv_j = R_j^T b_j
 * l_i is an exponent of the terms j < i, each of which is its own derivative by l_i:
 *     dl_i = sum_{j<i} <R~_j, b_j v~_j^T> = sum_{j<i} b_j.(R~_j v~_j) = sum_{j<i} b_j.db_j
 *     dl_1 = 0      dl_{i+1} = dl_i + b_i.db_i */
#include "ops/attention/linear_rows.h"
#include "ops/kernels.h"

void causal_linear_state_forward_plain(Real *state, const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, W = linear_scan_columns(s), size = D * W + D + W;
    double *memory = attention_workspace(x->B * x->H * size);
    EACH_ROW(head, x->B * x->H, x->N * D * W) {
        const Head at = head_of(x, head);
        double *S = memory + head * size;
        Real *b = (Real *)(S + D * W), *v = b + D;
        read_state(S, NULL, D, W, true);
        for (int64_t j = at.begin; j < at.end; j++) {
            read_key_value(b, v, s, j, at.h);
            decay_state(S, D * W, read_decay(s, j, at.h));
            add_outer_product(S, b, D, v, W);
        }
        write_state(state, head, S, D, W, true);
    }
    attention_workspace_free(memory);
}

void causal_linear_state_backward_plain(LinearScanGradient d, const Real *dstate,
                                        const LinearScan *s)
{
    const AttentionInputs *x = &s->x;
    const int64_t D = x->D, W = linear_scan_columns(s), size = 2 * (D * W + D + W);
    double *memory = attention_workspace(x->B * x->H * (size + x->N));
    double *dl = memory + x->B * x->H * size; /* [B, N, H]: dl_j - dl_{j+1} */
    EACH_ROW(head, x->B * x->H, 2 * x->N * D * W) {
        const Head at = head_of(x, head);
        double *R = memory + head * size, *T = R + D * W; /* T: R^T */
        Real *b = (Real *)(T + D * W), *v = b + D, *db = v + W, *dv = db + D;
        read_state(T, dstate + head * D * W, D, W, false);
        read_state(R, dstate + head * D * W, D, W, true);
        for (int64_t j = at.end - 1; j >= at.begin; j--) {
            read_key_value(b, v, s, j, at.h);
            if (d.log_decay.data)
                dl[j * x->H + at.h] = -state_product(T, v, W, b, D);
            apply_state(db, T, v, W, D);
            apply_state(dv, R, b, D, W);
            write_dkey_dvalue(&d.x, db, b, dv, s, j, at.h);
            decay_state(T, D * W, read_decay(s, j, at.h));
            decay_state(R, D * W, read_decay(s, j, at.h));
        }
        if (d.log_decay.data)
            contribute_log_decay(d.log_decay, 0, dl, s, head);
    }
    attention_workspace_free(memory);
}

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
        d.key.data = tensor_elements_on(key, all, columns);
        d.value.data = tensor_elements_on(key, all, 2 * columns);
    }
    return d;
}

static void causal_linear_state_backward(Node *node)
{
    const LinearScan scan =
        linear_scan_of(node->inputs, *(const CausalLinearAttentionOptions *)node->attributes);
    LinearScanGradient d = { .x = state_contributions(node) };
    d.log_decay = tape_contribution(node, node->inputs[6]);
    kernels_of(node->inputs[0])->causal_linear_state_backward(d, tape_upstream(node, 0), &scan);
}

Tensor *op_causal_linear_state(Tape *tape, Tensor *key, Tensor *value,
                               CausalLinearAttentionOptions options)
{
    op_attention_check(tape, state_labels, key, value ? key : NULL, value, options.key_lengths,
                       true, PACKED_QUERY);
    causal_attention_check_options(tape, state_labels, options);
    if (options.offsets || options.state)
        tape_error(tape, "%s: expected NULL: a state of one sequence each, from zeros",
                   options.offsets ? state_labels.offsets : state_labels.state);
    if (value)
        op_cast_alike(tape, &key, &value);
    options.log_decay =
        causal_attention_log_decay(tape, state_labels, key, value, options.log_decay);
    /* In place of the query there is the key, or the packed tensor of both. */
    Tensor *inputs[7] = { key, NULL, value, options.key_lengths, [6] = options.log_decay };
    const LinearScan scan = linear_scan_of(inputs, options);
    Tensor *state =
        tape_tensor(tape, shape(scan.x.B, scan.x.H, scan.x.D, linear_scan_columns(&scan)));
    kernels_of(key)->causal_linear_state_forward(state->data, &scan);
    tape_record(tape,
                (Node){ .name = state_labels.name,
                        .backward = causal_linear_state_backward,
                        .inputs = { key, NULL, value, options.key_lengths, NULL, NULL, inputs[6] },
                        .minus_infinity = 1 << 6,
                        .outputs = { state },
                        .attributes = tape_save(tape, &options, sizeof options) });
    return state;
}
