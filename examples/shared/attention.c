#include "examples/shared/attention.h"
#include "examples/shared/options.h"

static void set_softmax(TransformerConfig *config)
{
    config->attention = ATTENTION_CAUSAL_SOFTMAX;
}

static void set_linear(TransformerConfig *config)
{
    config->attention = ATTENTION_CAUSAL_LINEAR;
}

static void set_decay(TransformerConfig *config)
{
    config->attention = ATTENTION_CAUSAL_LINEAR;
    config->decay = DECAY_LEARNED;
}

static void set_unnormalized_decay(TransformerConfig *config)
{
    set_decay(config);
    config->unnormalized = true;
    config->features = FEATURES_IDENTITY;
}

/* The gated delta rule behind a short convolution, as in Gated DeltaNet. */
static void set_delta(TransformerConfig *config)
{
    config->attention = ATTENTION_DELTA_RULE;
    config->decay = DECAY_LEARNED;
    config->convolution = 4;
    config->max_beta = 2;
}

/* Three layers of the gated delta rule, then one of softmax attention, and so on. */
static void set_hybrid(TransformerConfig *config)
{
    set_delta(config);
    for (int i = 3; i < NN_MAX_LAYERS; i += 4)
        config->layer_attention[i] = ATTENTION_CAUSAL_SOFTMAX;
}

/* A row of both arrays per kind. */
enum { SOFTMAX, LINEAR, DECAY, UNNORMALIZED, DELTA, HYBRID, ROWS };
const char *const attention_names[] = {
    [SOFTMAX] = "softmax", [LINEAR] = "linear", [DECAY] = "decay", [UNNORMALIZED] = "unnormalized",
    [DELTA] = "delta",     [HYBRID] = "hybrid", [ROWS] = NULL,
};
static void (*const set_rows[ROWS])(TransformerConfig *config) = {
    [SOFTMAX] = set_softmax, [LINEAR] = set_linear,
    [DECAY] = set_decay,     [UNNORMALIZED] = set_unnormalized_decay,
    [DELTA] = set_delta,     [HYBRID] = set_hybrid,
};

void attention_set(TransformerConfig *config, const char *name)
{
    set_rows[choice_index(attention_names, name)](config);
}
