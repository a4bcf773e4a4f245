/* Speech recognition as in Katharopoulos et al. 2020, Transformers are RNNs, section 4.3: a
 * transformer without a causal mask reads the features of speech, and connectionist temporal
 * classification trains it to emit the phonemes without their times. The speech is strings of
 * spoken digits. */
#include "examples/shared/program.h"
#include "examples/speech/options.h"

static const ProgramCommand commands[] = {
    { "features", speech_features, "draws the spectrogram of a sound file" },
    { "train", speech_train, "trains a model on strings of spoken digits" },
    { "evaluate", speech_evaluate, "measures the error rate of a model" },
    { "recognize", speech_recognize, "prints the digits and phonemes of a sound file" },
    { "stream", speech_stream, "the same while it reads the file, by a causal model" },
    { 0 },
};

int main(int argc, char **argv)
{
    return program_run(commands, argc, argv);
}
