/* The kinds of causal attention that the language models compare. */
#ifndef TAPEGRAD_ATTENTION_KINDS_H
#define TAPEGRAD_ATTENTION_KINDS_H

#include <tapegrad.h>

/* The names, for an option; NULL ends them. */
extern const char *const attention_names[];

/* Sets the fields of the config that the named kind of attention needs. */
void attention_set(TransformerConfig *config, const char *name);

#endif
