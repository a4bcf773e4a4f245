/* The image models of Katharopoulos et al. 2020, Transformers are RNNs, sections 4.2.1 and 4.2.2: a
 * handwritten digit is a sequence of 784 bytes, a colour image one of 3072, and a causal
 * transformer predicts each from the previous ones, as a mixture of logistic distributions. */
#include "examples/images/options.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "train", images_train, "trains a model on MNIST or CIFAR-10" },
    { "sample", images_sample, "draws images from a model and completes halves of others" },
    { "evaluate", images_evaluate, "prints the bits per dimension by decode steps" },
    { "benchmark", images_benchmark, "measures the speed of generation" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

int main(int argc, char **argv)
{
    program_start("images");
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    }
    if (argc < 2 || strcmp(argv[1], "--help"))
        fail(BAD_USE, "%s: expected train, sample, evaluate or benchmark; see --help",
             argc < 2 ? "no command" : argv[1]);
    puts("usage: images COMMAND [OPTION]...\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  images %-10s %s\n", commands[i].name, commands[i].help);
    puts("\nimages COMMAND --help lists its options.");
    return EXIT_SUCCESS;
}
