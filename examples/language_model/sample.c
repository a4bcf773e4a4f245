#include "examples/language_model/export.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model of a checkpoint, and a tape for its decode steps. */
typedef struct Loaded {
    Vocabulary vocabulary;
    Params *params;
    Model model;
    Tape *tape;
    GenerationConfig config;
} Loaded;

static Loaded load(const LanguageOptions *options, const char *command)
{
    Sentence sentence;
    Loaded loaded = { .config = { .sequences = 1, .int8_weights = options->int8 } };
    if (!options->common.load)
        fail(BAD_USE, "%s: expected --load FILE, a checkpoint of language_model train", command);
    const TokenKind kind = (TokenKind)choice_index(token_kind_names, options->tokens);
    if (!model_vocabulary(&loaded.vocabulary, kind, options->common.load, &sentence))
        fail(EXIT_FAILURE, "%s", sentence.text);
    Device *device = training_device(&options->common);
    loaded.params = params_new(device, 1);
    loaded.model = model_new(loaded.params, options, &loaded.vocabulary);
    load_weights(loaded.params, options->common.load);
    loaded.config.precision = training_precision(&options->common, device);
    loaded.tape = tape_new(device);
    tape_set_recording(loaded.tape, false);
    tape_set_training(loaded.tape, false);
    tape_seed(loaded.tape, (uint64_t)options->draw);
    return loaded;
}

static void loaded_free(Loaded *loaded)
{
    tape_free(loaded->tape);
    params_free(loaded->params);
    vocabulary_free(&loaded->vocabulary);
}

int language_sample(int argc, char **argv)
{
    LanguageOptions options;
    options_parse(&language_sample_command, argc, argv, &options);
    Loaded loaded = load(&options, "sample");
    const Sampling sampling = { .temperature = options.temperature,
                                .top_k = options.top_k,
                                .top_p = options.top_p };
    Sentence sentence;
    Generator *generator = generator_new(&loaded.model, loaded.tape, loaded.config);
    catch_signals();
    if (!generate(generator, &loaded.vocabulary, options.prompt, options.length, sampling,
                  &sentence))
        fail(BAD_USE, "--prompt %s", sentence.text);
    generator_free(generator);
    loaded_free(&loaded);
    return stopped_by ? 128 + stopped_by : EXIT_SUCCESS;
}

int language_evaluate(int argc, char **argv)
{
    LanguageOptions options;
    const Given given = options_parse(&language_evaluate_command, argc, argv, &options);
    const bool split = language_splits(&options, &given);
    Loaded loaded = load(&options, "evaluate");
    const char *path = language_file(&given, split ? "train" : "valid");
    Tokens tokens;
    Sentence sentence;
    if (!tokens_read(&tokens, &loaded.vocabulary, path, &sentence))
        fail(EXIT_FAILURE, "%s", sentence.text);
    const Tokens held_out = split ? tokens_split(&tokens, options.split) : tokens;
    if (held_out.count < 2)
        fail(EXIT_FAILURE, "%s: expected two held-out tokens or more", path);
    const double start = now();
    loaded.config.sequences = options.at_once;
    const Loss loss =
        loss_by_steps(&loaded.model, loaded.tape, loaded.config, &held_out, &loaded.vocabulary);
    printf("evaluation heldout_bits=%.6g heldout_nats=%.6g heldout_tokens=%lld seconds=%.2f\n",
           loss_bits(loss), loss_nats(loss), (long long)loss.targets, now() - start);
    tokens_free(&tokens);
    loaded_free(&loaded);
    return EXIT_SUCCESS;
}

int language_export(int argc, char **argv)
{
    LanguageOptions options;
    options_parse(&language_export_command, argc, argv, &options);
    const char *kind = options.common.attention, *from = options.common.load;
    if (!options.to)
        fail(BAD_USE, "export: expected --to FILE, the C file to write");
    Loaded loaded = load(&options, "export");
    if (strcmp(kind, "linear") != 0 && strcmp(kind, "decay") != 0)
        fail(BAD_USE, "export: %s has --attention %s, expected linear or decay", from, kind);
    if (strcmp(options.common.features, "elu+1") != 0)
        fail(BAD_USE, "export: %s has --features %s, expected elu+1", from,
             options.common.features);
    if (loaded.vocabulary.kind == TOKENS_PAIRS)
        fail(BAD_USE, "export: %s has --tokens pairs, expected bytes or characters", from);
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file)
        export_model(file, &loaded.model, &loaded.vocabulary);
    if (!file || fclose(file))
        fail(EXIT_FAILURE, "export: memory is exhausted");
    if (!tensor_file_write(options.to, text, (int64_t)length))
        fail(EXIT_FAILURE, "--to: %s", tapegrad_error());
    free(text);
    loaded_free(&loaded);
    return EXIT_SUCCESS;
}
