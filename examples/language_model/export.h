/* A trained model as one C file. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_EXPORT_H
#define TAPEGRAD_LANGUAGE_MODEL_EXPORT_H

#include "examples/language_model/model.h"

#include <stdio.h>

/* Writes the text of engine.c.in with the model's sizes, its vocabulary of bytes or characters and
 * its weights, rounded to float, as bit patterns. The attention of every layer is causal linear
 * attention with the features elu + 1, or that inside of a learned decay. */
void export_model(FILE *file, const Model *model, const Vocabulary *vocabulary);

#endif
