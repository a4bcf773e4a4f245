/* Language models: a causal transformer learns to predict the bytes, characters or byte pairs of a
 * text, and continues texts. */
#include "examples/language_model/options.h"
#include "examples/shared/program.h"

static const ProgramCommand commands[] = {
    { "prepare", language_prepare, "makes a vocabulary of byte pairs or characters" },
    { "train", language_train, "trains a model on a text" },
    { "evaluate", language_evaluate, "prints the bits per byte by decode steps" },
    { "sample", language_sample, "continues a prompt" },
    { "export", language_export, "writes a model as one C file" },
    { 0 },
};

int main(int argc, char **argv)
{
    return program_run(commands, argc, argv);
}
