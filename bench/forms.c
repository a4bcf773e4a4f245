#include "bench/forms.h"

typedef struct Case {
    Params *params;
    Tape *tape;
    Tensor *query, *key, *value, *upstream;
    CausalLinearAttentionOptions options;
} Case;

static void attend(void *context)
{
    Case *c = context;
    Tensor *out = op_causal_linear_attention(c->tape, c->query, c->key, c->value, c->options, NULL);
    tape_backward_from(c->tape, out, c->upstream);
    params_zero_gradients(c->params);
}

double form_time(const BenchOptions *options, Shape x, AttentionForm form, int64_t chunk)
{
    const Initializer normal = { INITIAL_NORMAL, 1 };
    Case c = { .params = params_new(options->device, 1),
               .tape = bench_tape(options),
               .options = { .eps = 1e-6, .form = form, .chunk = chunk } };
    c.query = params_add(c.params, "query", x, normal);
    c.key = params_add(c.params, "key", x, normal);
    c.value = params_add(c.params, "value", x, normal);
    c.upstream = params_add(c.params, "upstream", x, normal);
    tape_use(c.tape, "form_time", c.upstream);
    const Timing time = bench_step(options, c.tape, attend, &c);
    tape_free(c.tape);
    params_free(c.params);
    return time.min;
}
