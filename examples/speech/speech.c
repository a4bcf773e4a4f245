/* Speech recognition as in Katharopoulos et al. 2020, Transformers are RNNs, section 4.3: a
 * transformer without a causal mask reads the features of speech, and connectionist temporal
 * classification trains it to say the phonemes without their times. The speech is strings of spoken
 * digits. */
#include "examples/shared/program.h"
#include "examples/speech/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    { "features", speech_features, "draws the spectrogram of a sound file" },
    { "train", speech_train, "trains a model on strings of spoken digits" },
    { "evaluate", speech_evaluate, "measures the error rate of a model" },
    { "recognise", speech_recognise, "prints the digits and phonemes of a sound file" },
    { "stream", speech_stream, "the same while it reads the file, by a causal model" },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

int main(int argc, char **argv)
{
    program_start("speech");
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    }
    if (argc < 2 || strcmp(argv[1], "--help"))
        fail(BAD_USE, "%s: expected features, train, evaluate, recognise or stream; see --help",
             argc < 2 ? "no command" : argv[1]);
    puts("usage: speech COMMAND [OPTION]...\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  speech %-10s %s\n", commands[i].name, commands[i].help);
    puts("\nspeech COMMAND --help lists its options.");
    return EXIT_SUCCESS;
}
