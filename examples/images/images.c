/* The image models of Katharopoulos et al. 2020, Transformers are RNNs, sections 4.2.1 and 4.2.2: a
 * handwritten digit is a sequence of 784 bytes, a color image one of 3072, and a causal
 * transformer predicts each from the previous ones, as a mixture of logistic distributions. */
#include "examples/images/options.h"
#include "examples/shared/program.h"

static const ProgramCommand commands[] = {
    { "train", images_train, "trains a model on MNIST or CIFAR-10" },
    { "sample", images_sample, "draws images from a model and completes halves of others" },
    { "evaluate", images_evaluate, "prints the bits per dimension by decode steps" },
    { "benchmark", images_benchmark, "measures the speed of generation" },
    { 0 },
};

int main(int argc, char **argv)
{
    return program_run(commands, argc, argv);
}
