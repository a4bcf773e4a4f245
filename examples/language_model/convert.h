/* A trained model continues with another kind of attention. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_CONVERT_H
#define TAPEGRAD_LANGUAGE_MODEL_CONVERT_H

#include "examples/language_model/model.h"

/* Loads the weights that checkpoint and model have in common. Prints one line, unless quiet, with
 * their number and what only one of the two has. Ends the program if the file cannot be read. */
void convert_load(Params *params, const char *path, bool quiet);

/* With true, freezes all weights but those of attention; with false, unfreezes all but the
 * vocabulary. */
void convert_train_attention(Params *params, bool alone);

/* The model of a checkpoint, frozen. */
typedef struct Teacher Teacher;

/* path: of --from; ends the program unless it is a checkpoint of this vocabulary, whose number of
 * layers and width are the options' and whose context is theirs at least. */
Teacher *teacher_new(Device *device, const char *path, const LanguageOptions *options,
                     const Vocabulary *vocabulary);
/* NULL is ignored. */
void teacher_free(Teacher *teacher);

/* The mean over the layers of |b - a|^2 / |a|^2, a scalar: a is the teacher's and b the student's
 * output of attention for the teacher's hidden states. tokens int32 [B, n]. */
Tensor *teacher_error(Tape *tape, const Teacher *teacher, const Model *student, Tensor *tokens);

#endif
