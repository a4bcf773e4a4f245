/* Shared by the tests of examples/language_model: its files, and a model that has learned words. */
#ifndef TAPEGRAD_TESTS_LANGUAGE_MODEL_H
#define TAPEGRAD_TESTS_LANGUAGE_MODEL_H

#include "tests/programs.h"

#include <stdlib.h>
#include <unistd.h>

#define ON_CPU " --device cpu --threads 2 "
#define TINY                                                                                       \
    " --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --context 16 --warm-up 0 --batch 2 "     \
    "--evaluate-every 0 --quiet" ON_CPU

static const char *const optimizers[] = { "adamw", "radam", "muon", "schedule-free", NULL };
static char path[128];

static inline const char *path_of(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static inline void write_file(const char *name, const void *bytes, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* Texts: words, and once the checkpoint of a model that has learned them. */
static inline void setup(void)
{
    static char words[4001];
    for (int i = 0; i < 800; i++)
        memcpy(words + 5 * i, i * i % 7 < 3 ? "tick " : "tock ", 5);
    if (access(path_of("learned"), F_OK) == 0)
        return;
    write_file("words", words, 4000);
    write_file("train.txt", words, 4000);
    write_file("valid.txt", words, 1000);
    write_file("empty", "", 0);
    char command[512];
    snprintf(command, sizeof command, "gzip -c '%s/words' >'%s/words.gz'", directory, directory);
    ck_assert_int_eq(system(command), 0);
    assert_runs("language_model train --data @ --layers 1 --heads 2 --head-dim 16 --context 20 "
                "--steps 150 --warm-up 10 --learning-rate 1e-2 --quiet --save @/learned" ON_CPU);
}

static inline void assert_fails(int status, const char *sentence, const char *arguments)
{
    const int found = run("language_model %s", arguments);
    ck_assert_msg(found == status, "%s: status %d: %s", arguments, found, output);
    assert_says(sentence);
}

#endif
