#include "examples/shared/program.h"
#include "examples/speech/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_row(const char *name, Edits edits)
{
    printf("%-12s %8lld %14lld %10lld %11lld %8.2f %%\n", name, (long long)edits.symbols,
           (long long)edits.substitutions, (long long)edits.deletions, (long long)edits.insertions,
           edits_percent(edits));
}

int speech_evaluate(int argc, char **argv)
{
    SpeechOptions options;
    const Given given = options_parse(&speech_evaluate_command, argc, argv, &options);
    speech_check_checkpoint(&options);
    speech_check_data(&options);
    Corpus corpus = corpus_read(&given, options.data, !strcmp(options.split, "speaker"));
    const int64_t samples = string_samples(&corpus, options.max_digits);
    Recognizer recognizer = recognizer_new(&options, model_positions(&options, samples));
    const Strings strings = { &options, &corpus, recognizer.bank, PART_TEST, 0 };
    const double start = now();
    const Score score =
        score_strings(&strings, recognizer.tape, &recognizer.model, options.strings, options.beam);
    char beam[32];
    snprintf(beam, sizeof beam, "beam %lld", (long long)options.beam);
    printf("%lld strings of the %s split, %s, %.2f s\n\n", (long long)options.strings,
           options.split, model_kind(&options), now() - start);
    puts("decoding     symbols  substitutions  deletions  insertions    error");
    print_row("greedy", score.greedy);
    print_row(beam, score.beam);
    print_row("its digits", score.digits);
    corpus_free(&corpus);
    recognizer_free(&recognizer);
    return EXIT_SUCCESS;
}
