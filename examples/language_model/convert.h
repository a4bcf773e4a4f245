/* A trained model goes on with another kind of attention. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_CONVERT_H
#define TAPEGRAD_LANGUAGE_MODEL_CONVERT_H

#include "examples/language_model/model.h"

/* Reads the weights of the checkpoint that the model has too, and prints in one line, unless quiet,
 * how many, and which of the model's and of the file's are left; ends the program if the file
 * cannot be read. */
void convert_load(Params *params, const char *path, bool quiet);

/* The weights that --match trains: those of attention, or with false all. */
void convert_train_attention(Params *params, bool alone);

/* The model of a checkpoint, frozen. */
typedef struct Teacher Teacher;

/* path: of --from; ends the program unless it is a checkpoint of this vocabulary, whose number of
 * layers and width are the options' and whose context is theirs at least. */
Teacher *teacher_new(Device *device, const char *path, const LanguageOptions *options,
                     const Vocabulary *vocabulary);
/* NULL is ignored. */
void teacher_free(Teacher *teacher);

/* How far the student's attention is from the teacher's, on the teacher's hidden states: with a the
 * teacher's and b the student's output of attention in a layer, the mean over the layers of
 * |b - a|^2 / |a|^2, a scalar. tokens int32 [B, n]. */
Tensor *teacher_error(Tape *tape, const Teacher *teacher, const Model *student, Tensor *tokens);

#endif
