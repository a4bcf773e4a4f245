/* examples/language_model: another kind of attention for a trained model. */
#include "tests/language_model.h"

/* ----------------------------------------------------------------------------------- conversion */

#define CONVERT                                                                                    \
    "language_model train --from @/learned --data @ --batch 4 --warm-up 0 --evaluate-every 0 "     \
    "--learning-rate 1e-2 "

TEST(a_converted_model_has_the_weights_of_the_other)
{
    assert_runs("language_model train --load @/learned --data @ --evaluate" ON_CPU);
    const double bits = number_after("heldout_bits=");
    assert_runs(CONVERT "--steps 0" ON_CPU);
    assert_says("learned: 20 weights\n");
    ck_assert_double_eq(number_after("heldout_bits="), bits);
    assert_runs(CONVERT "--steps 0 --attention decay --positions none" ON_CPU);
    assert_says("learned: 19 weights; drawn: transformer.layers.0.attention.decay.weight and 1 "
                "more; not used: positions\n");
    assert_runs(CONVERT
                "--steps 0 --attention linear --features polynomial --save @/linear" ON_CPU);
    ck_assert_double_ne(number_after("heldout_bits="), bits);
    assert_runs("language_model evaluate --load @/linear --data @" ON_CPU); /* has its own kind */
}

/* Those of attention, and no others, which have no gradient. */
static void assert_attention_alone_differs(const char *a, const char *b)
{
    TensorFile *files[2] = { tensor_file_open(path_of(a)) };
    files[1] = tensor_file_open(path_of(b));
    for (int i = 0; i < tensor_file_count(files[0]); i++) {
        const char *name = tensor_file_entry(files[0], i)->name;
        const Shape size = tensor_file_entry(files[0], i)->shape;
        const int64_t count = shape_count(size);
        Real *values[2] = { test_zeros(count), test_zeros(count) };
        if (!strncmp(name, "optimizer.", 10))
            continue;
        for (int f = 0; f < 2; f++)
            ck_assert(tensor_file_read(files[f], name, size, values[f]));
        const bool same = !memcmp(values[0], values[1], (size_t)count * sizeof(Real));
        ck_assert_msg(same == !strstr(name, ".attention."), "%s", name);
    }
    tensor_file_close(files[0]);
    tensor_file_close(files[1]);
}

/* The error of attention in a row of a log. */
static double error_in_row(const char *log, const char *row)
{
    size_t length;
    char *text = contents(log, &length), *at = strstr(text, row);
    ck_assert_msg(at != NULL, "%s", text);
    ck_assert(!strncmp(text, "step,training_bits,heldout_bits,heldout_nats,attention_error,", 61));
    const double error = atof(at + strlen(row));
    free(text);
    return error;
}

TEST(matching_makes_attention_alike)
{
    for (int i = 0; optimizers[i]; i++) {
        assert_runs(CONVERT "--attention linear --match 30 --steps 30 --optimizer %s --log @/log "
                            "--quiet --save @/matched" ON_CPU,
                    optimizers[i]);
        const double first = error_in_row("log", "\n1,,,,"), last = error_in_row("log", "\n30,,,,");
        ck_assert_msg(first > 0 && last < 0.7 * first, "%s: %g %g", optimizers[i], first, last);
        if (strcmp(optimizers[i], "schedule-free"))
            assert_attention_alone_differs("learned", "matched");
    }
    assert_runs(CONVERT "--match 1 --steps 2 --log @/log --quiet" ON_CPU);
    ck_assert_double_eq(error_in_row("log", "\n1,,,,"), 0); /* of the same kind */
    assert_runs(CONVERT "--attention linear --match 30 --steps 60 --quiet" ON_CPU);
    ck_assert_double_lt(number_after("heldout_bits="), 0.5); /* then the loss is learned */
}

TEST(micro_batches_match_as_one_batch)
{
    for (int i = 0; i < 2; i++)
        assert_runs(CONVERT "--attention decay --match 3 --steps 3 --tokens-per-update 160 "
                            "--batch %d --log @/log%d --quiet" ON_CPU,
                    i == 0 ? 8 : 2, i);
    /* the mean of ratios is nearly the ratio of means */
    ck_assert_double_eq_tol(error_in_row("log0", "\n3,,,,"), error_in_row("log1", "\n3,,,,"), 0.02);
}

/* Whether it stops among the steps that match, or among those after them. */
TEST(a_resumed_conversion_continues)
{
    static const int stops[] = { 2, 5 };
#define MATCH "--attention decay --match 4 --optimizer schedule-free --quiet "
    assert_runs(CONVERT MATCH "--steps 7 --save @/whole" ON_CPU);
    for (int i = 0; i < 2; i++) {
        assert_runs(CONVERT MATCH "--steps %d --save @/part" ON_CPU, stops[i]);
        assert_runs("language_model train --resume @/part --data @ --steps 7 --evaluate-every 0 "
                    "--quiet --save @/part %s" ON_CPU,
                    i == 0 ? "--from @/learned" : "");
        assert_same_files("whole", "part");
    }
    assert_runs(CONVERT MATCH "--steps 2 --save @/part" ON_CPU);
    ck_assert_int_eq(run("language_model train --resume @/part --data @ --steps 7"), 2);
    assert_says("part: step 3 is one of --match 4, expected --from FILE too\n");
    assert_runs("language_model train --load @/part --data @ --steps 1 --quiet" ON_CPU);
    ck_assert_int_eq(run("language_model train --resume @/learned --from @/part --data @"), 2);
    assert_says("learned, which has no --match\n");
}

TEST(conversions_that_cannot_be_are_refused)
{
    static const struct {
        const char *options, *sentence;
    } rows[] = {
        { "--match 3", "--match 3: expected together with --from FILE\n" },
        { "--from @/words", "words: it is not a safetensors file" },
        { "--from @/none", "none: No such file or directory\n" },
        { "--from @/learned --load @/learned", "learned: expected without --from " },
        { "--from @/learned --heads 4", "learned has --heads 2, which cannot change\n" },
        { "--from @/learned --context 10", "learned has --context 20, which cannot change\n" },
        { "--from @/learned --tokens characters", "has --tokens bytes, which cannot change\n" },
        { "--from @/learned --preset shakespeare", "has --preset small, which cannot change\n" },
        { "--from @/learned --save @/learned", "learned: expected another file than --from " },
        { "--load @/learned --evaluate --match 2", "expected without --evaluate, which trains " },
        { "--resume @/two --from @/learned", "learned: it has 1 layers, expected 2\n" },
        { "--resume @/wide --from @/learned",
          "learned: it has 32 elements of width, expected 16\n" },
        { "--resume @/long --from @/learned",
          "learned: it has 20 tokens of context, expected 21 or more\n" },
    };
    static const char *const others[][2] = { { "two", "--layers 2" },
                                             { "wide", "--head-dim 8" },
                                             { "long", "--context 21" } };
    for (int i = 0; i < 3; i++) { /* of another teacher, stopped while it matches */
        assert_runs("language_model train --data @ --layers 1 --heads 2 --head-dim 16 --context 20 "
                    "--steps 0 --warm-up 0 --quiet --save @/teacher %s" ON_CPU,
                    others[i][1]);
        assert_runs("language_model train --from @/teacher --data @ --match 2 --steps 1 --quiet "
                    "--save @/%s" ON_CPU,
                    others[i][0]);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status = run("language_model train --data @ %s" ON_CPU, rows[i].options);
        ck_assert_msg(status == 1 || status == 2, "%s: %d: %s", rows[i].options, status, output);
        assert_says(rows[i].sentence);
        ck_assert_ptr_eq(strchr(output, '\n'), output + strlen(output) - 1);
    }
}

TEST(conversion_runs_where_the_tests_run)
{
    const char *device = getenv("DEVICE");
    double bits[2];
    for (int i = 0; i < 2; i++) {
        assert_runs(CONVERT "--attention linear --match 2 --steps 4 --quiet --device %s",
                    i == 0 || !device ? "cpu" : device);
        bits[i] = number_after("heldout_bits=");
    }
    ck_assert_double_eq_tol(bits[0], bits[1], 1e-3);
}

int main(void)
{
    return run_program_tests("conversion", setup);
}
