/* Language models: a causal transformer learns to predict the bytes, characters or byte pairs of a
 * text, and continues texts. */
#include "examples/language_model/options.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "prepare", language_prepare, "makes a vocabulary of byte pairs or characters" },
    { "train", language_train, "trains a model on a text" },
    { "evaluate", language_evaluate, "prints the bits per byte by decode steps" },
    { "sample", language_sample, "continues a prompt" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

int main(int argc, char **argv)
{
    program_start("language_model");
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    }
    if (argc < 2 || strcmp(argv[1], "--help"))
        fail(BAD_USE, "%s: expected prepare, train, evaluate or sample; see --help",
             argc < 2 ? "no command" : argv[1]);
    puts("usage: language_model COMMAND [OPTION]...\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  language_model %-9s %s\n", commands[i].name, commands[i].help);
    puts("\nlanguage_model COMMAND --help lists its options.");
    return EXIT_SUCCESS;
}
