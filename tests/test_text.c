#include "tests/programs.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define WORDS "tick tock "
#define ON_CPU "--device cpu "

static void write_file(const char *name, const void *bytes, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* Writes the texts to learn and, once, the file weights of a model that has learned words. */
static void setup(void)
{
    char weights[128];
    snprintf(weights, sizeof weights, "%s/weights", directory);
    if (access(weights, F_OK) == 0)
        return;
    write_file("words", WORDS, sizeof WORDS - 1);
    write_file("empty", "", 0);
    write_file("byte", "a", 1);
    assert_runs("text @/words --steps 60 --generate 0 --save @/weights " ON_CPU);
}

/* The program's output after the line that contains `said`. */
static const char *written(const char *said)
{
    const char *place = strstr(output, said);
    ck_assert_msg(place != NULL, "no \"%s\" in: %s", said, output);
    return strchr(place, '\n') + 1;
}

TEST(writes_what_it_learned)
{
    assert_runs("text @/words --steps 0 --load @/weights --prompt 'tock ' --generate 250 " ON_CPU);
    ck_assert_uint_eq(strlen(output), 5 + 250 + 1);
    for (int i = 0; i < 255; i += 5)
        ck_assert_msg(!strncmp(output + i, "tick ", 5) || !strncmp(output + i, "tock ", 5), "%s",
                      output);
}

TEST(evaluates_a_text_by_decode_steps)
{
    static const char *const bits[] = { "", "--int8", "--precision bf16" };
    double learned = 0;
    for (int i = 0; i < (sizeof(Real) == sizeof(float) ? 3 : 2); i++) {
        assert_runs("text @/words --steps 0 --load @/weights --evaluate %s " ON_CPU, bits[i]);
        const char *line = strstr(output, " bits per byte");
        ck_assert_ptr_nonnull(line);
        while (line > output && line[-1] != '\n')
            line--;
        double found;
        int bytes;
        ck_assert_msg(sscanf(line, "%lf bits per byte, all %d bytes", &found, &bytes) == 2 &&
                          bytes == (int)sizeof WORDS - 1 && found >= 0 && found < 0.5,
                      "%s", output);
        if (i == 0)
            learned = found;
        else
            ck_assert_double_eq_tol(found, learned, 0.02);
    }
}

/* On the CPU decode steps then read weights in bf16 or in 8 bits. */
TEST(writes_words_with_fewer_bits)
{
    static const char *const bits[] = { "--int8", "--precision auto", "--precision bf16",
                                        "--precision bf16 --int8" };
    for (int i = 0; i < (sizeof(Real) == sizeof(float) ? 4 : 2); i++) {
        assert_runs(
            "text @/words --steps 0 --load @/weights --prompt 'tock ' --generate 100 %s " ON_CPU,
            bits[i]);
        const char *words = strstr(output, "tock ");
        ck_assert_ptr_nonnull(words);
        for (int j = 0; j < 105; j += 5)
            ck_assert_msg(!strncmp(words + j, "tick ", 5) || !strncmp(words + j, "tock ", 5),
                          "%s: %s", bits[i], output);
    }
}

TEST(same_seed_same_text)
{
    char first[sizeof output];
    assert_runs("text @/words --steps 2 --generate 100 --temperature 1 --top-p 1 " ON_CPU);
    memcpy(first, output, sizeof output);
    assert_runs("text @/words --steps 2 --generate 100 --temperature 1 --top-p 1 " ON_CPU);
    ck_assert(memcmp(first, output, sizeof output) == 0);
    assert_runs("text @/words --steps 2 --generate 100 --temperature 1 --top-p 1 --seed 2 " ON_CPU);
    ck_assert(memcmp(first, output, sizeof output) != 0);
}

TEST(other_seeds_choose_otherwise)
{
    char first[sizeof output];
    assert_runs("text @/words --steps 0 --load @/weights --temperature 3 " ON_CPU);
    memcpy(first, output, sizeof output);
    assert_runs("text @/words --steps 0 --load @/weights --temperature 3 --seed 2 " ON_CPU);
    ck_assert(memcmp(first, output, sizeof output) != 0);
}

/* Every byte counts once, of texts of any length: those of two files add up. */
TEST(evaluates_every_byte)
{
    static const int sizes[] = { 1, 127, 129, 2048, 2049 };
    unsigned char bytes[2049];
    for (int i = 0; i < 2049; i++)
        bytes[i] = (unsigned char)WORDS[i % (int)(sizeof WORDS - 1)];
    for (int i = 0; i < 5; i++) {
        write_file("part", bytes, (size_t)sizes[i]);
        assert_runs("text @/part --steps 0 --load @/weights --evaluate " ON_CPU);
        char expected[64];
        snprintf(expected, sizeof expected, " bits per byte, all %d bytes\n", sizes[i]);
        assert_says(expected);
    }
    /* A last byte that the model does not expect costs bits, wherever the batches end. */
    write_file("part", bytes, 2049);
    assert_runs("text @/part --steps 0 --load @/weights --evaluate " ON_CPU);
    const double expected = atof(output);
    bytes[2048] = 'z';
    write_file("part", bytes, 2049);
    assert_runs("text @/part --steps 0 --load @/weights --evaluate " ON_CPU);
    ck_assert_msg((atof(output) - expected) * 2049 > 5, "%g, %g", atof(output), expected);
}

/* A run that a signal ends saves, and one that continues ends as if there had been no signal. */
TEST(signals_save_and_runs_resume)
{
    static const int signals[] = { SIGINT, SIGTERM };
    assert_runs("text @/words --steps 20 --generate 0 --save @/whole " ON_CPU);
    for (int i = 0; i < 2; i++) {
        const char *log = i == 0 ? "log" : "other_log";
        const pid_t child = start(
            "out",
            "text @/words --steps 20 --quiet --score-every 1 --log @/%s --save @/part " ON_CPU,
            log);
        while (log_lines(log) < 3)
            usleep(1000);
        ck_assert_int_eq(end_by(child, signals[i]), 128 + signals[i]);
        size_t length;
        char *written = contents("out", &length);
        ck_assert_str_eq(written, ""); /* nothing was generated */
        free(written);
        assert_runs("text @/words --resume @/part --generate 0 --save @/part " ON_CPU);
        assert_same_files("whole", "part");
    }
    assert_runs("text @/words --steps 20 --generate 0 --save-every 15 --save @/part " ON_CPU);
    assert_same_files("whole", "part");
}

/* Loaded weights may be trained further, and saved weights write the same text as
 * those in memory. */
TEST(save_and_load)
{
    assert_runs("text @/words --load @/weights --steps 2 --temperature 1 --save @/saved " ON_CPU);
    char *expected = strdup(written("step 2"));
    assert_runs("text @/words --load @/saved --steps 0 --temperature 1 " ON_CPU);
    ck_assert_str_eq(output, expected);
    free(expected);
    char *again = strdup(output);
    assert_runs("text @/words --load @/saved --steps 0 --save @/again --generate 0 " ON_CPU);
    assert_runs("text @/words --load @/again --steps 0 --temperature 1 " ON_CPU);
    ck_assert_str_eq(output, again);
    free(again);
}

/* Every 64 bytes, generation restarts with a new state from the last bytes that it has seen,
 * exactly like a program with these bytes as its prompt. */
TEST(a_generated_text_as_prompt_continues_it)
{
#define GENERATE "text @/words --steps 0 --load @/weights --temperature 0 " ON_CPU
    assert_runs(GENERATE "--prompt 'tock tick' --generate 192");
    char *all = strdup(output);
    assert_runs(GENERATE "--prompt 'tock tick' --generate 64");
    output[strlen(output) - 1] = 0; /* the newline */
    ck_assert_uint_eq(strlen(output), 9 + 64);
    char *prompt = strdup(output);
    assert_runs(GENERATE "--prompt '%s' --generate 128", prompt);
    ck_assert_str_eq(output, all);
    free(prompt);
    free(all);
}

/* The text may be shorter than the window of one position, and need not be a text. */
TEST(learns_any_text)
{
    assert_runs("text @/byte --steps 2 --generate 70 " ON_CPU);
    write_file("two", "ab", 2);
    assert_runs("text @/two --steps 2 --generate 70 " ON_CPU);
    unsigned char bytes[1024];
    for (int i = 0; i < 1024; i++)
        bytes[i] = (unsigned char)(i * i / 3);
    write_file("bytes", bytes, sizeof bytes);
    assert_runs("text @/bytes --steps 2 --generate 70 " ON_CPU);
}

/* A text that makes the file's buffer grow, and a prompt longer than a window. */
TEST(reads_long_texts_and_prompts)
{
    enum { SIZE = 200000 };
    char *bytes = malloc(SIZE);
    ck_assert_ptr_nonnull(bytes);
    for (int i = 0; i < SIZE; i++)
        bytes[i] = WORDS[i % (int)(sizeof WORDS - 1)];
    write_file("long", bytes, SIZE);
    bytes[520] = 0;
    assert_runs("text @/long --steps 0 --load @/weights --temperature 0 --generate 10 " ON_CPU
                "--prompt '%s'",
                bytes);
    ck_assert_msg(!strncmp(output, bytes, 520), "%s", output);
    ck_assert_msg(!strncmp(output + 520, "tick ", 5) || !strncmp(output + 520, "tock ", 5), "%s",
                  output);
    free(bytes);
}

/* The first symbols must be those that the CPU chooses. */
TEST(runs_where_the_tests_run)
{
    const char *device = getenv("DEVICE");
    assert_runs("text @/words --steps 1 --temperature 0 --generate 2 " ON_CPU);
    char *expected = strdup(written("step 1 "));
    assert_runs("text @/words --steps 1 --temperature 0 --generate 2 --device %s",
                device ? device : "cpu");
    ck_assert_str_eq(written("step 1 "), expected);
    free(expected);
}

static void assert_fails(int status, const char *sentence, const char *arguments)
{
    int found = run("text %s", arguments);
    ck_assert_msg(found == status, "%s: status %d: %s", arguments, found, output);
    assert_says(sentence);
}

#define WRITABLE "expected a file that can be written: "

TEST(save_is_checked_before_the_training)
{
    assert_fails(2, "/none/weights: cannot create a temporary file beside it: No such file",
                 "@/words --steps 1 --save @/none/weights " ON_CPU);
    ck_assert_ptr_null(strstr(output, "step 1 "));
    assert_fails(2, "/.: it exists and is not a regular file\n",
                 "@/words --steps 1 --save @/. " ON_CPU);
    assert_fails(2, "--save : " WRITABLE "tensor_file_can_save: : the name is empty\n",
                 "@/words --steps 1 --save '' " ON_CPU);
}

TEST(errors_are_one_sentence)
{
    assert_fails(2, "text: expected a file to learn: text FILE; --help lists the options\n", "");
    assert_fails(2, "words: expected an option; --help lists them\n", "@/words @/words");
    assert_fails(2, "unrecognized option '--bogus'", "@/words --bogus");
    assert_fails(0, "usage: text FILE", "--help");
    assert_fails(1, "none: No such file or directory\n", "@/none");
    assert_fails(1, " is not a regular file\n", "@");
    assert_fails(1, "empty is empty; expected a text of one byte or more\n", "@/empty");
    assert_fails(2, "--steps x: expected a whole number from 0 to 1000000000\n",
                 "@/words --steps x");
    assert_fails(2, "--steps : expected a whole number from 0 to", "@/words --steps ''");
    assert_fails(2, "--seed -1: expected a whole number", "@/words --seed -1");
    assert_fails(2, "--generate 1e10: expected a whole number", "@/words --generate 1e10");
    assert_fails(2, "--temperature nan: expected a number", "@/words --temperature nan");
    assert_fails(2, "--top-p 2: expected a number from 1e-06 to 1\n", "@/words --top-p 2");
    assert_fails(2, "--top-p 0: expected a number from 1e-06 to 1\n", "@/words --top-p 0");
    assert_fails(2, "--precision int8: expected float32, tf32, bf16 or auto\n",
                 "@/words --precision int8");
    assert_fails(2, "--device tpu: expected auto, plain, cpu or cuda\n", "@/words --device tpu");
    assert_fails(2, "--save-every 5: expected together with --save FILE\n",
                 "@/words --save-every 5");
    assert_fails(2, "words: expected another file than the argument ", "@/words --save @/words");
    assert_fails(2, "weights: expected without --resume ",
                 "@/words --load @/weights --resume @/weights");
    assert_fails(1, "/none: No such file or directory\n", "@/words --load @/none " ON_CPU);
    assert_fails(1, "words: the header's length is", "@/words --load @/words " ON_CPU);
    assert_fails(1, "", "@/words --steps 0 " ON_CPU ">/dev/full");
}

int main(void)
{
    return run_program_tests("text", setup);
}
