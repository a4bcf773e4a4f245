/* The kinds of attention of the programs, by their names. */
#ifndef TAPEGRAD_ATTENTION_KINDS_H
#define TAPEGRAD_ATTENTION_KINDS_H

#include <tapegrad.h>

/* Linear attention with the feature map of this name. */
const AttentionKind *attention_linear(Params *params, const char *features, bool causal,
                                      AttentionForm form);

/* The kinds of causal attention that the language models compare, for an option; NULL ends them. */
extern const char *const attention_names[];

typedef struct KindOptions {
    const char *features; /* of linear attention, with a decay or without */
    int64_t rotary_dims;  /* 0, or of softmax and linear attention */
    int64_t window;       /* positions, of window and based */
} KindOptions;

/* Sets the attention of the config's layers to the named kind. */
void attention_set(TransformerConfig *config, Params *params, const char *name,
                   KindOptions options);

#endif
