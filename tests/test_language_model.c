/* examples/language_model: training, evaluation, sampling. */
#include "examples/language_model/model.h"
#include "examples/shared/attention.h"
#include "tests/language_model.h"

#include <math.h>

/* ------------------------------------------------------------------------------------- training */

/* The program says which bits per byte a run reaches; a coin per word costs 1 / 5 bits per byte. */
TEST(learns_words_and_writes_them)
{
    assert_runs("language_model train --load @/learned --data @ --evaluate" ON_CPU);
    const double bits = number_after("heldout_bits=");
    ck_assert_msg(bits < 0.35, "%s", output);
    ck_assert_double_eq_tol(number_after("heldout_nats="), bits * log(2), 1e-5); /* of bytes */
    ck_assert_double_eq(number_after("heldout_tokens="), 999);
    static const char *const steps[] = { "", "--int8", "--precision bf16" };
    for (int i = 0; i < (sizeof(Real) == sizeof(float) ? 3 : 2); i++) {
        assert_runs("language_model evaluate --load @/learned --data @ %s" ON_CPU, steps[i]);
        ck_assert_double_eq_tol(number_after("heldout_bits="), bits, i == 0 ? 1e-5 : 0.02);
    }
}

TEST(every_optimizer_learns_words)
{
    for (int i = 0; optimizers[i]; i++) {
        assert_runs("language_model train --data @ --layers 1 --heads 2 --head-dim 16 --context 20 "
                    "--feed-forward 64 --steps 50 --warm-up 5 --learning-rate 2e-2 --optimizer %s "
                    "--quiet --save @/by" ON_CPU,
                    optimizers[i]);
        const double bits = number_after("heldout_bits=");
        ck_assert_msg(bits < 0.8, "%s: %s", optimizers[i], output);
        assert_runs("language_model evaluate --load @/by --data @" ON_CPU);
        ck_assert_double_eq_tol(number_after("heldout_bits="), bits, 1e-5);
        assert_runs("language_model train --load @/by --data @ --evaluate" ON_CPU);
        ck_assert_double_eq_tol(number_after("heldout_bits="), bits, 1e-5);
    }
}

TEST(learns_any_text)
{
    unsigned char bytes[1024] = { 0 };
    write_file("zeros", bytes, 64); /* one repeated byte */
    for (int i = 0; i < 1024; i++)
        bytes[i] = (unsigned char)(i * i / 3);
    write_file("bytes", bytes, sizeof bytes);
    assert_runs("language_model train --train @/zeros --valid @/zeros --steps 2" TINY);
    assert_runs("language_model train --train @/zeros --valid @/zeros --steps 2 --tokens characters"
                " --save @/zero" TINY);
    ck_assert_double_eq(number_after("heldout_bits="), 0); /* a vocabulary of one character */
    assert_runs("language_model train --train @/bytes --split 0.1 --steps 2 --save @/any" TINY);
    assert_runs("language_model sample --load @/any --length 40" ON_CPU);
}

#define RUN "language_model train --train @/words --valid @/words --dropout 0.1 " TINY

TEST(evaluating_and_saving_change_no_step)
{
#define UPDATES "--tokens-per-update 64 --steps 8 --optimizer %s "
    for (int i = 0; optimizers[i]; i++) {
        assert_runs(RUN UPDATES "--save @/whole", optimizers[i]);
        assert_runs(RUN UPDATES "--save @/part --save-every 4 --evaluate-every 3", optimizers[i]);
        assert_same_files("whole", "part");
    }
}

TEST(loaded_weights_are_saved_and_trained_further)
{
    assert_runs("language_model train --load @/learned --data @ --steps 0 --warm-up 0 --quiet "
                "--save @/again" ON_CPU);
    const double bits = number_after("heldout_bits=");
    assert_runs("language_model evaluate --load @/again --data @" ON_CPU);
    ck_assert_double_eq_tol(number_after("heldout_bits="), bits, 1e-5);
    assert_runs("language_model train --load @/learned --data @ --steps 2 --warm-up 0 --quiet "
                "--learning-rate 1e-4" ON_CPU);
    ck_assert_double_eq_tol(number_after("heldout_bits="), bits, 0.1);
    ck_assert_double_ne(number_after("heldout_bits="), bits);
}

/* Every token but the first counts once, of texts of any length, in windows of 20. */
TEST(evaluates_every_token)
{
    static const int sizes[] = { 2, 20, 22, 321, 322 };
    char bytes[322];
    for (int i = 0; i < 322; i++)
        bytes[i] = "tick "[i % 5];
    for (int i = 0; i < 6; i++) {
        const int size = sizes[i < 5 ? i : 4];
        const double before = i < 5 ? 0 : number_after("heldout_bits=") * (size - 1);
        if (i == 5)
            bytes[321] = 'z'; /* costs bits, wherever the windows end */
        write_file("part", bytes, (size_t)size);
        assert_runs("language_model train --evaluate --load @/learned --valid @/part" ON_CPU);
        const double bits = number_after("heldout_bits=");
        assert_runs("language_model evaluate --load @/learned --valid @/part" ON_CPU);
        ck_assert_double_eq(number_after("heldout_tokens="), size - 1);
        ck_assert_double_eq_tol(number_after("heldout_bits="), bits, 1e-5);
        if (i == 5)
            ck_assert_double_gt(bits * (size - 1) - before, 4);
    }
}

/* The same windows in one batch or in four: the same weights but for rounding. */
TEST(accumulation_equals_one_large_batch)
{
    double heldout[2];
    for (int i = 0; i < 2; i++) {
        assert_runs(RUN "--dropout 0 --steps 8 --batch %d --tokens-per-update 128 --log @/log%d",
                    i == 0 ? 8 : 2, i);
        heldout[i] = number_after("heldout_nats=");
    }
    ck_assert_double_eq_tol(heldout[0], heldout[1], 2e-5);
    assert_runs(RUN "--dropout 0 --steps 8 --batch 2");
    ck_assert_double_gt(fabs(number_after("heldout_nats=") - heldout[0]), 1e-4);
    size_t length;
    char *logs[2] = { contents("log0", &length), contents("log1", &length) };
    const char *rows[2] = { strstr(logs[0], "\n8,"), strstr(logs[1], "\n8,") };
    ck_assert(rows[0] && rows[1]);
    ck_assert_double_eq_tol(atof(rows[0] + 3), atof(rows[1] + 3), 1e-4); /* the training loss */
    free(logs[0]);
    free(logs[1]);
}

TEST(texts_that_get_no_better_end_the_training)
{
    assert_runs("language_model train --train @/words --valid @/words.gz --layers 1 --heads 1 "
                "--head-dim 8 --context 16 --steps 1000 --warm-up 0 --learning-rate 1 --quiet "
                "--evaluate-every 5 --patience 2" ON_CPU);
    ck_assert_double_lt(number_after("steps="), 1000);
    assert_says("final (patience)");
}

/* ----------------------------------------------------------------------------------- generation */

#define SAMPLE "language_model sample --load @/learned "

static void assert_words(const char *text, int count)
{
    for (int i = 0; i < count; i++, text += 5)
        ck_assert_msg(!strncmp(text, "tick ", 5) || !strncmp(text, "tock ", 5), "%s", text);
}

TEST(samples_are_words)
{
    static const char *const steps[] = { "", "--int8", "--precision bf16" };
    for (int i = 0; i < (sizeof(Real) == sizeof(float) ? 3 : 2); i++) {
        assert_runs(SAMPLE "--prompt 'tock ' --length 50 --temperature 0.5 %s" ON_CPU, steps[i]);
        const char *text = strstr(output, "tock "); /* bf16 may print a caution before it */
        ck_assert_ptr_nonnull(text);
        ck_assert_uint_eq(strlen(text), 5 + 50 + 1);
        assert_words(text, 11);
    }
    assert_runs(SAMPLE "--length 5"); /* without a prompt */
    char prompt[501] = "";
    for (int i = 0; i < 500; i += 5)
        memcpy(prompt + i, i % 3 ? "tick " : "tock ", 6);
    assert_runs(SAMPLE "--length 10 --temperature 0 --prompt '%s'" ON_CPU, prompt);
    ck_assert(memcmp(output, prompt, 500) == 0);
    assert_words(output, 102);
}

TEST(seeds_determine_the_sample)
{
    char *samples[3];
    for (int i = 0; i < 3; i++) {
        assert_runs(SAMPLE "--length 100 --temperature 3 --seed %d" ON_CPU, i == 2 ? 2 : 1);
        samples[i] = strdup(output);
    }
    ck_assert_str_eq(samples[0], samples[1]);
    ck_assert_str_ne(samples[0], samples[2]);
    for (int i = 0; i < 3; i++)
        free(samples[i]);
}

/* Every 10 tokens, half of the context of 20, the state is rebuilt from the last ones, as by a
 * program with all tokens so far as its prompt. */
TEST(a_sample_as_prompt_continues_it)
{
    assert_runs(SAMPLE "--temperature 0 --prompt 'tock tick tock ' --length 40" ON_CPU);
    char *all = strdup(output);
    assert_runs(SAMPLE "--temperature 0 --prompt 'tock tick tock ' --length 20" ON_CPU);
    output[strlen(output) - 1] = 0; /* the newline */
    char *prompt = strdup(output);
    ck_assert_uint_eq(strlen(prompt), 15 + 20);
    assert_runs(SAMPLE "--temperature 0 --prompt '%s' --length 20" ON_CPU, prompt);
    ck_assert_str_eq(output, all);
    free(all);
    free(prompt);
}

/* The first tokens are those that the CPU chooses. */
TEST(runs_where_the_tests_run)
{
    const char *device = getenv("DEVICE");
    char *samples[2];
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 || !device ? "cpu" : device;
        assert_runs("language_model train --train @/words --valid @/valid.txt --steps 1 --save "
                    "@/one" TINY "--device %s",
                    name);
        assert_runs("language_model sample --load @/one --prompt t --temperature 0 --length 2 "
                    "--device %s",
                    name);
        samples[i] = strdup(output);
    }
    ck_assert_str_eq(samples[0], samples[1]);
    free(samples[0]);
    free(samples[1]);
}

/* The greedy continuation by decode steps is the likeliest token of the parallel form, within the
 * context and after the state was rebuilt from its second half. */
TEST(greedy_samples_equal_the_parallel_form)
{
    enum { CONTEXT = 12, START = 3, COUNT = 40 };
    static const char *const attentions[] = { "softmax", "linear", "window", "based" };
    for (int a = 0; a < 4; a++) {
        Sentence sentence = { "" };
        Vocabulary vocabulary;
        ck_assert(vocabulary_of_items(&vocabulary, TOKENS_BYTES, BYTES, NULL, &sentence));
        LanguageOptions options = { .context = CONTEXT, .window = 3, .positions = "learned" };
        options.common = (TrainingOptions){ .layers = 2, .heads = 2, .head_dim = 8 };
        options.common.attention = attentions[a];
        options.common.features = "elu+1";
        Params *params = params_new(test_device(), 7);
        Model model = model_new(params, &options, &vocabulary);
        Real *values = test_normal(3, BYTES * 16);
        tensor_write(model.embedding.weight, values); /* larger than at the start: no ties */
        Tape *tape = tape_new(test_device());
        tape_set_recording(tape, false);
        tape_set_training(tape, false);
        Generator *generator = generator_new(&model, tape, (GenerationConfig){ 0 });
        int32_t history[COUNT] = { 5, 250, 17 };
        int64_t first = 0; /* of the tokens in the state */
        for (int64_t n = START; n < COUNT; n++) {
            if (n - first > CONTEXT)
                first = n - 1 - CONTEXT / 2;
            Tensor *logits = generator_next(generator, history, n);
            Tensor *x = tape_input_i32(tape, history + first, shape(1, n - first));
            Tensor *all = model_forward(tape, &model, x);
            const Real *expected = test_values(all) + (n - first - 1) * BYTES;
            assert_close(test_values(logits), expected, BYTES, 1e-4);
            tensor_read_i32(op_argmax(tape, logits, -1), &history[n]);
            tape_reset(tape);
        }
        generator_free(generator);
        tape_free(tape);
        params_free(params);
        vocabulary_free(&vocabulary);
    }
}

/* Chance is 1 of 32 values, and 1 of 2 bits. */
TEST(softmax_attention_recalls_and_the_delta_rule_counts_parity)
{
    assert_runs("recall recall %d softmax cpu", SLOW ? 3 : 500);
    ck_assert_double_gt(number_after("recall softmax: accuracy "), SLOW ? 0 : 90);
    assert_runs("recall parity %d delta cpu", SLOW ? 3 : 300);
    ck_assert_double_gt(number_after("parity delta: accuracy "),
                        SLOW ? 35 : 95); /* by a state that flips: beta reaches 2 */
    assert_runs("recall parity 3 linear");
    ck_assert_double_gt(number_after("parity linear: accuracy "), 35);
    assert_runs("recall --help");
    assert_says("usage: recall recall|parity [STEPS [ATTENTION [DEVICE]]]\n");
    ck_assert_int_eq(run("recall copy"), 2);
    assert_says("recall: copy: expected recall|parity [STEPS [ATTENTION [DEVICE]]]\n");
    static const char *const steps[] = { "abc", "0", "-1", "10x" };
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(run("recall parity %s", steps[i]), 2);
        assert_says(": expected a whole number of steps from 1 to 1000000000\n");
    }
    ck_assert_int_eq(run("recall parity 1 mean"), 2);
    assert_says("recall: mean: expected the name of a kind of attention, as softmax\n");
}

/* --------------------------------------------------------------------------------------- misuse */

TEST(errors_are_one_sentence)
{
    assert_runs("language_model prepare --train @/words --vocabulary-size 260 --vocabulary @/v260");
    assert_runs("language_model prepare --train @/words --vocabulary-size 258 --vocabulary @/v258");
    assert_runs("language_model train --tokens pairs --vocabulary @/v260 --data @ --steps 1 --save "
                "@/pairs" TINY);
    write_file("damaged.gz", "\x1f\x8b\x08\x00nothing but damage", 22);
    write_file("not_utf8", "caf\xe9 au lait", 12);
    write_file("accents", "caf\xc3\xa9", 5);
    write_file("byte", "a", 1);
    assert_fails(2, "no command: expected prepare, train, evaluate, sample or export; see --help\n",
                 "");
    assert_fails(0, "usage: language_model COMMAND", "--help");
    assert_fails(1, "none: cannot be read: No such file or directory\n",
                 "train --train @/none --valid @/words");
    assert_fails(1, "empty is empty, expected a text\n", "train --train @/empty --valid @/words");
    assert_fails(1, "damaged.gz: expected gzipped data without damage, but zlib says: ",
                 "train --train @/damaged.gz --valid @/words");
    assert_fails(1, " is a directory; expected a text\n", "train --train @ --valid @/words");
    assert_fails(2, "or valid.txt.gz, or --valid FILE, or --split X\n", "train --train @/words");
    assert_fails(2, "--context 128: expected fewer than the 1 tokens of the training text\n",
                 "train --train @/byte --valid @/words");
    assert_fails(1, "the held-out text has 1 tokens, expected 2 or more\n",
                 "train --train @/words --valid @/byte");
    assert_fails(2, "--context 4000: expected fewer than the 4000 tokens of the training text\n",
                 "train --data @ --context 4000");
    assert_fails(2, "--tokens pairs: expected together with --vocabulary FILE",
                 "train --data @ --tokens pairs");
    assert_fails(2, "v258: expected the vocabulary of the checkpoint ",
                 "train --load @/pairs --vocabulary @/v258 --data @ --steps 1 --warm-up 0");
    assert_fails(2, "v258: its tokens are pairs, expected bytes, as of --tokens\n",
                 "train --data @ --vocabulary @/v258");
    assert_fails(1,
                 "words: expected a vocabulary, as language_model prepare writes it: it is no "
                 "such file, incomplete or too long\n",
                 "train --data @ --tokens pairs --vocabulary @/words");
    assert_fails(1, "not_utf8: the bytes before position 4 are not UTF-8; expected --tokens bytes",
                 "train --train @/not_utf8 --valid @/words --tokens characters");
    assert_fails(1, "not_utf8: the bytes before position 4 are not UTF-8; expected --tokens bytes",
                 "prepare --train @/not_utf8 --vocabulary @/none --tokens characters");
    ck_assert_ptr_null(strstr(strstr(output, "not_utf8") + 1, "not_utf8"));
    assert_fails(1, "empty is empty, expected a text\n",
                 "prepare --train @/empty --vocabulary @/none --tokens characters");
    assert_fails(1, "accents: the vocabulary has no character U+0061, which ends at byte 2",
                 "train --train @/words --valid @/accents --tokens characters");
    assert_fails(2,
                 "--tokens-per-update 100: expected a multiple of --batch 16 times --context 128\n",
                 "train --data @ --tokens-per-update 100");
    assert_fails(2, "--warm-up 5: expected fewer than the 5 steps\n",
                 "train --data @ --warm-up 5 --steps 5");
    assert_fails(2, "--patience 2: expected together with --evaluate-every N\n",
                 "train --data @ --patience 2 --evaluate-every 0");
    assert_fails(
        2,
        "--attention mean: expected softmax, linear, decay, unnormalized, delta, hybrid, window "
        "or based\n",
        "train --attention mean");
    assert_fails(2, "sample: expected --load FILE, a checkpoint of language_model train\n",
                 "sample");
    assert_fails(2, "prepare: expected --vocabulary FILE, which it writes\n", "prepare --data @");
    assert_fails(2,
                 "--last-rate 0: expected without --optimizer schedule-free, which averages "
                 "instead\n",
                 "train --data @ --optimizer schedule-free --last-rate 0");
    assert_fails(2, "--optimizer sgd: expected adamw, radam, muon or schedule-free\n",
                 "train --data @ --optimizer sgd");
}

/* Hashes of the weights' names and offsets as commit 3ce8106 had them. */
TEST(presets_keep_names_and_offsets)
{
    static const struct {
        const char *name;
        uint64_t hash;
    } presets[] = {
        { "softmax", 0xaddb29740697eff0 }, { "linear", 0xaddb29740697eff0 },
        { "decay", 0x34d2aebc48c03f6a },   { "unnormalized", 0x998493513c33db98 },
        { "delta", 0x692a066ecadfb712 },   { "hybrid", 0xba64de5998bf96c9 },
        { "window", 0xaddb29740697eff0 },  { "based", 0xaddb29740697eff0 },
    };
    for (size_t i = 0; attention_names[i]; i++) {
        ck_assert_str_eq(attention_names[i], presets[i].name);
        Params *params = params_new(test_device(), 1);
        TransformerConfig config = { .layers = 4, .heads = 2, .head_dim = 4, .feed_forward = 5 };
        attention_set(&config, params, presets[i].name,
                      (KindOptions){ .features = "elu+1", .window = 3 });
        nn_transformer(params, "t", config);
        const Real *flat = params_flat_values(params)->data;
        uint64_t hash = 14695981039346656037u;
        for (int w = 0; w < params_count(params); w++) {
            const Tensor *of = params_at(params, w);
            char line[256];
            snprintf(line, sizeof line, "%s %d\n", of->name, (int)((const Real *)of->data - flat));
            for (const char *c = line; *c; c++)
                hash = (hash ^ (unsigned char)*c) * 1099511628211u;
        }
        ck_assert_msg(hash == presets[i].hash, "%s: 0x%016llx", presets[i].name,
                      (unsigned long long)hash);
        params_free(params);
    }
}

TEST(options_without_effect_are_refused)
{
    assert_fails(2, "--tokens bytes: expected characters or pairs\n",
                 "prepare --data @ --tokens bytes --vocabulary @/v");
    assert_fails(2, "unrecognized option '--valid'",
                 "prepare --data @ --valid @/words --vocabulary @/v");
    assert_fails(2, "train.txt, which is read\n", "prepare --data @ --vocabulary @/train.txt");
    assert_fails(2, "--split 0.2: expected without --data ", "train --data @ --split 0.2");
    assert_fails(2, "--split 0.2: expected without --valid ",
                 "evaluate --load @/learned --train @/words --valid @/words --split 0.2");
    for (int i = 0; i < 3; i++) {
        static const char *const kinds[] = { "unnormalized", "delta", "hybrid" };
        char arguments[96], sentence[96];
        snprintf(sentence, sizeof sentence,
                 "--features relu: expected without --attention %s, which has none\n", kinds[i]);
        snprintf(arguments, sizeof arguments, "train --data @ --attention %s --features relu",
                 kinds[i]);
        assert_fails(2, sentence, arguments);
    }
    assert_fails(2, "--window 8: expected without --attention hybrid, which has none\n",
                 "train --data @ --attention hybrid --window 8");
    assert_fails(2, "--beta2 0.9: expected without --evaluate, which trains nothing\n",
                 "train --data @ --load @/learned --evaluate --beta2 0.9");
}

TEST(bad_options_are_one_sentence)
{
    assert_fails(2, "unrecognized option '--bogus'", "sample --bogus");
    assert_fails(2, "--length 1e10: expected a whole number", "sample --length 1e10");
    assert_fails(2, "--temperature nan: expected a number", "sample --temperature nan");
    assert_fails(2, "--top-p 2: expected a number from 1e-06 to 1\n", "sample --top-p 2");
    assert_fails(2, "--top-p 0: expected a number from 1e-06 to 1\n", "sample --top-p 0");
    assert_fails(2, "--device tpu: expected auto, plain, cpu, cpu:repeatable or cuda\n",
                 "sample --device tpu");
    assert_fails(2, "words: expected another file than --train ",
                 "train --train @/words --valid @/valid.txt --save @/words");
    assert_fails(2, "learned: expected without --resume ",
                 "train --data @ --load @/learned --resume @/learned");
    assert_fails(1, "/none: No such file or directory\n", "sample --load @/none");
    assert_fails(1, "words: it is not a safetensors file", "sample --load @/words");
    assert_fails(1, "", "sample --load @/learned >/dev/full");
}

int main(void)
{
    return run_program_tests("language_model", setup);
}
