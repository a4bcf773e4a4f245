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

/* A row of both arrays per kind. */
enum { SOFTMAX, LINEAR, ROWS };
const char *const attention_names[] = { [SOFTMAX] = "softmax", [LINEAR] = "linear", [ROWS] = NULL };
static void (*const set_rows[ROWS])(TransformerConfig *config) = {
    [SOFTMAX] = set_softmax,
    [LINEAR] = set_linear,
};

void attention_set(TransformerConfig *config, const char *name)
{
    set_rows[choice_index(attention_names, name)](config);
}
