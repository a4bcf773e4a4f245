#include "examples/language_model/options.h"
#include "examples/language_model/vocabulary.h"
#include "examples/shared/program.h"

#include <stdio.h>
#include <stdlib.h>

int language_prepare(int argc, char **argv)
{
    LanguageOptions options;
    const Given given = options_parse(&language_prepare_command, argc, argv, &options);
    if (!options.vocabulary)
        fail(BAD_USE, "prepare: expected --vocabulary FILE, which it writes");
    const char *path = language_file(&given, "train");
    option_check_file("vocabulary", options.vocabulary);
    Sentence sentence;
    Vocabulary vocabulary;
    Source *source = source_open(path, &sentence);
    if (!source)
        fail(EXIT_FAILURE, "%s", sentence.text);
    const double start = now();
    const TokenKind kind = (TokenKind)choice_index(token_kind_names, options.tokens);
    const bool ok = vocabulary_learn(&vocabulary, kind, options.vocabulary_size, source, &sentence);
    const int64_t bytes = source_position(source);
    Sentence damage;
    if (!source_close(source, &damage))
        fail(EXIT_FAILURE, "%s", damage.text);
    if (bytes == 0)
        fail(EXIT_FAILURE, "%s is empty, expected a text", path);
    if (!ok)
        fail(EXIT_FAILURE, "%s", sentence.text);
    if (!vocabulary_save(&vocabulary, options.vocabulary))
        fail(EXIT_FAILURE, "--vocabulary %s: %s", options.vocabulary, tapegrad_error());
    printf("%s: %lld tokens of %lld bytes, seconds=%.2f\n", options.vocabulary,
           (long long)vocabulary.count, (long long)bytes, now() - start);
    vocabulary_free(&vocabulary);
    return EXIT_SUCCESS;
}
