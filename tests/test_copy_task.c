#include "tests/programs.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A model and sequences so small that a step takes a fraction of a millisecond. */
#define TINY                                                                                       \
    "--length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 8 "       \
    "--threads 2 --drop-at 0 "

/* Where the claim is about the program, not about its device: each run's evaluation of 1000
 * sequences takes the emulated device seconds. */
static void without_emulation(void)
{
    setenv("TAPEGRAD_CUDA_ON_HOST_DEVICES", "0", 1);
}

/* Of the last line of a run. */
static double final_loss(void)
{
    return number_after("final loss=");
}

/* ------------------------------------------------------------------------------------ copy_task */

TEST(learning_rate_drops)
{
    without_emulation();
    assert_runs("copy_task " TINY "--steps 6 --learning-rate 0.01 --drop-at 4 --log @/log.csv");
    size_t length;
    char *text = contents("log.csv", &length), *line = text;
    for (int step = 1; step <= 6; step++) {
        double accuracy, learning_rate;
        line = strchr(line, '\n') + 1;
        ck_assert_int_eq(sscanf(line, "%*d,%*f,%lf,%lf", &accuracy, &learning_rate), 2);
        ck_assert_msg(accuracy >= 0 && accuracy <= 1, "%s", line);
        ck_assert_double_eq_tol(learning_rate, step < 4 ? 0.01 : 0.001, 1e-9);
    }
    free(text);
    ck_assert_double_eq_tol(final_loss(), log(4), 1.5); /* four tokens, almost untrained */
    ck_assert_double_gt(number_after(" tokens_per_second="), 0);
}

TEST(quiet_prints_the_final_line_alone)
{
    assert_runs("copy_task " TINY "--steps 2 --device cpu --quiet");
    ck_assert_ptr_eq(strstr(output, "final loss="), output);
    ck_assert_str_eq(strchr(output, '\n'), "\n");
}

/* Of the steps after the first; it changes no result. */
TEST(profile_is_a_table_of_operations)
{
    assert_runs("copy_task " TINY "--steps 4 --quiet --save @/plain.safetensors");
    assert_runs("copy_task " TINY "--steps 4 --quiet --save @/same.safetensors --profile 2");
    assert_says("profile of steps 2 to 3\n");
    assert_says("\nop_cross_entropy                       2 ");
    assert_says("\nclipping, optim_step                   2 ");
    assert_says("\npeak memory ");
    assert_same_files("plain.safetensors", "same.safetensors");
}

TEST(precision_is_chosen_by_the_device)
{
    static const char slow[] = "precision: bf16 by conversion, slower than float32: cpu ";
    assert_runs("copy_task " TINY "--steps 2 --precision auto");
    assert_says(device_has_bf16(test_device()) ? "precision: bf16\n" : "precision: float32\n");
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1); /* without AVX512_BF16 */
    assert_runs("copy_task " TINY "--steps 2 --precision auto --device cpu");
    assert_says("precision: float32\n");
    if (sizeof(Real) == sizeof(double))
        return;
    assert_runs("copy_task " TINY "--steps 2 --precision bf16 --device cpu");
    assert_says(slow);
    ck_assert_ptr_null(strstr(strstr(output, slow) + 1, slow));
}

TEST(learns)
{
    assert_runs("copy_task " TINY "--layers 2 --head-dim 16 --feed-forward 64 --batch 16 "
                "--steps %d --learning-rate 0.004 --quiet",
                SLOW ? 20 : 700);
    ck_assert_msg(number_after(" accuracy=") > (SLOW ? 0.3 : 0.9), "%s", output);
    ck_assert_msg(final_loss() < (SLOW ? 1.4 : 0.3), "%s", output);
}

TEST(softmax_learns_too)
{
    assert_runs("copy_task " TINY "--steps %d --learning-rate 0.01 --attention softmax --quiet",
                SLOW ? 10 : 60);
    ck_assert_msg(final_loss() < (SLOW ? 1.5 : 1.2), "%s",
                  output); /* log 3 = 1.10 is the loss of guessing */
}

TEST(learns_by_every_feature_map)
{
    without_emulation();
    static const char *const maps[] = { "relu", "softplus", "squared-relu", "polynomial",
                                        "random" };
    for (int i = 0; i < 5; i++) {
        assert_runs("copy_task " TINY "--steps %d --learning-rate 0.01 --features %s --quiet",
                    SLOW ? 10 : 60, maps[i]);
        ck_assert_msg(final_loss() < (SLOW ? 1.5 : 1.2), "%s: %s", maps[i], output);
    }
}

/* A resumed run draws the same projections. */
TEST(lsh_learns_too)
{
    assert_runs("copy_task " TINY "--steps %d --learning-rate 0.01 --attention lsh --rounds 2 "
                "--quiet",
                SLOW ? 10 : 150);
    ck_assert_msg(final_loss() < (SLOW ? 1.5 : 1.1), "%s", output);
}

/* A resumed run draws the same hashes as the whole run. */
TEST(resumed_lsh_is_bitwise_equal)
{
    assert_runs("copy_task " TINY "--attention lsh --rounds 2 --dropout 0.1 --steps 9 "
                "--save @/whole.safetensors");
    assert_runs("copy_task " TINY "--attention lsh --rounds 2 --dropout 0.1 --steps 4 "
                "--save @/part.safetensors");
    assert_runs("copy_task --resume @/part.safetensors --steps 9 --threads 2 "
                "--save @/part.safetensors");
    assert_same_files("whole.safetensors", "part.safetensors");
}

TEST(resumed_random_features_are_bitwise_equal)
{
    assert_runs("copy_task " TINY "--features random --steps 8 --save @/whole.safetensors");
    assert_runs("copy_task " TINY "--features random --steps 5 --save @/part.safetensors");
    assert_runs("copy_task --resume @/part.safetensors --steps 8 --threads 2 "
                "--save @/part.safetensors");
    assert_same_files("whole.safetensors", "part.safetensors");
}

#define TRAINING TINY "--dropout 0.1 --weight-decay 0.01 --clip 1 --drop-at 8 "

/* A killed run leaves rows beyond its last checkpoint; the last row may be cut off. */
TEST(resume_replaces_what_the_log_has_beyond_the_checkpoint)
{
    without_emulation();
    assert_runs("copy_task " TRAINING "--steps 12 --save @/whole.safetensors --log @/whole.csv");
    assert_runs("copy_task " TRAINING "--steps 5 --save @/part.safetensors");
    assert_runs("copy_task " TRAINING "--steps 9 --log @/part.csv");
    size_t length;
    free(contents("part.csv", &length));
    char path[128];
    snprintf(path, sizeof path, "%s/part.csv", directory);
    ck_assert_int_eq(truncate(path, (off_t)length - 7), 0);
    assert_runs("copy_task --resume @/part.safetensors --steps 12 --threads 2 --log @/part.csv "
                "--save @/part.safetensors");
    assert_same_logs("whole.csv", "part.csv");
    assert_same_files("whole.safetensors", "part.safetensors");
}

TEST(save_every_saves_during_the_run)
{
    without_emulation();
    assert_runs("copy_task " TRAINING "--steps 5 --save @/five.safetensors");
    assert_runs("copy_task " TRAINING "--steps 7 --save @/seven.safetensors --save-every 5");
    assert_runs("copy_task --load @/seven.safetensors --evaluate --threads 2");
    assert_says("steps=7 ");
}

/* The steps are counted from 1, the optimizer is new, and options other than the model's may
 * change. */
TEST(starts_from_the_weights_of_a_checkpoint)
{
    assert_runs("copy_task " TRAINING "--steps 30 --save @/run.safetensors");
    const double loss = final_loss();
    assert_runs("copy_task --load @/run.safetensors --threads 2 --steps 1 "
                "--learning-rate 1e-6");
    ck_assert_double_eq(number_after(" steps="), 1);
    ck_assert_double_eq_tol(final_loss(), loss, 1e-3);
    assert_runs("copy_task " TRAINING "--steps 1 --learning-rate 1e-6");
    ck_assert_double_gt(final_loss(), loss + 0.02); /* without --load */
}

/* Without a CUDA device the program fails: there is no fallback. */
TEST(a_missing_cuda_device_ends_the_program)
{
    int status = run("copy_task " TINY "--steps 1 --device cuda");
    if (status == 0) {
        final_loss();
    } else {
        ck_assert_int_eq(status, 1);
        assert_says("copy_task: device_open: ");
        assert_says("cuda");
        ck_assert_str_eq(strchr(output, '\n'), "\n");
    }
}

/* The steps of the checkpoint run.safetensors. */
static long long steps_saved(void)
{
    assert_runs("copy_task --load @/run.safetensors --evaluate --threads 1");
    return (long long)number_after("steps=");
}

/* Replaces the file by a directory of its name, over which no file can be saved. */
static void block(const char *file)
{
    do
        unlink(file);
    while (mkdir(file, 0700) != 0); /* the run may have saved in between */
}

/* Waits a moment; fails when the child has ended. */
static void wait_beside(pid_t child)
{
    ck_assert_msg(!has_ended(child), "the program ended before what was awaited");
    usleep(10000);
}

static void wait_for_file(pid_t child, const char *file)
{
    struct stat status;
    while (stat(file, &status) != 0 || !S_ISREG(status.st_mode))
        wait_beside(child);
}

static void wait_for_text(pid_t child, const char *name, const char *text)
{
    for (bool found = false; !found; wait_beside(child)) {
        size_t length;
        char *bytes = contents(name, &length);
        found = strstr(bytes, text) != NULL;
        free(bytes);
    }
}

TEST(a_failed_save_is_tried_again)
{
    without_emulation();
    char file[128];
    snprintf(file, sizeof file, "%s/blocked.safetensors", directory);
    for (int last = 0; last < 2; last++) { /* whether the last save fails, too */
        const pid_t child = start("out", "copy_task " TINY "--steps 100000000 --save-every 10 "
                                         "--quiet --save @/blocked.safetensors 2>@/errors");
        wait_for_file(child, file);
        block(file);
        wait_for_text(child, "errors", " could not be saved: tensor_file_save: ");
        if (!last) {
            ck_assert_int_eq(rmdir(file), 0);
            wait_for_file(child, file);
        }
        ck_assert_int_eq(end_by(child, SIGINT), last ? EXIT_FAILURE : 128 + SIGINT);
        assert_file_says("out", "final loss=");
        ck_assert_int_eq(remove(file), 0);
    }
}

/* head ends after the first progress line; the next one, 2000 steps later, is the signal. */
TEST(a_reader_that_ends_saves_too)
{
    without_emulation();
    assert_runs("copy_task " TINY "--steps 20000 --save @/run.safetensors --log @/piped.csv | "
                "head -n 1");
    const long long steps = steps_saved();
    ck_assert_int_lt(steps, 20000);
    ck_assert_int_eq(steps, log_lines("piped.csv") - 1);
}

TEST(output_that_cannot_be_written_is_an_error)
{
    static const char *const programs[] = { "copy_task " TINY "--steps 1 --quiet",
                                            "copy_task --help",
                                            "images --help",
                                            "images train --help",
                                            "language_model --help",
                                            "language_model train --help",
                                            "first_program tape",
                                            "derive_attention",
                                            "derive_ctc",
                                            "derive_gates",
                                            "derive_lstm",
                                            "own_operation",
                                            "convolution 1",
                                            "gru 1",
                                            "gpt2 examples/sonnets.txt 1",
                                            "tiny_gpt 1",
                                            "two_moons" };
    without_emulation();
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        ck_assert_msg(run("%s >/dev/full", programs[i]) == 1, "%s", programs[i]);
        ck_assert_msg(run("%s >&- 2>/dev/null; exit $?; true", programs[i]) == 1, "%s",
                      programs[i]);
    }
    run("copy_task --help >/dev/full 2>@/errors; cat @/errors");
    assert_says("copy_task: standard output: No space left on device\n");
}

/* Files that are opened first get no standard descriptor. */
TEST(closed_descriptors_are_no_files)
{
    without_emulation();
    run("copy_task " TINY "--steps 3 --save @/closed.safetensors --log @/closed.csv "
        "<&- >&- 2>&-; echo status $?");
    assert_says("status 1\n");
    ck_assert_int_eq(log_lines("closed.csv"), 4);
    assert_runs("copy_task --load @/closed.safetensors --evaluate");
    assert_runs("copy_task " TINY "--steps 3 --log @/open.csv");
    assert_same_logs("closed.csv", "open.csv");
}

#define FIFTY "12345678901234567890123456789012345678901234567890"

/* The log of three steps, whose last row is replaced. */
TEST(bad_logs_are_refused)
{
    without_emulation();
#define ROW "3,1,1,1,1"
    static const char *const rows[] = { "1e300,1,1,1,1\n",
                                        "1.5,1,1,1,1\n",
                                        "0,1,1,1,1\n",
                                        "3,1\n",
                                        ROW FIFTY FIFTY FIFTY FIFTY FIFTY "\n",
                                        FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY "\n" ROW "\n" };
    char path[128];
    assert_runs("copy_task " TINY "--steps 3 --save @/run.safetensors --log @/bad.csv");
    snprintf(path, sizeof path, "%s/bad.csv", directory);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        FILE *file = fopen(path, "r+");
        ck_assert_ptr_nonnull(file);
        for (int line = 0; line < 3; line++)
            while (fgetc(file) != '\n')
                ;
        fseek(file, 0, SEEK_CUR);
        fputs(rows[i], file);
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_int_eq(
            run("copy_task --resume @/run.safetensors --steps 4 --threads 2 --log @/bad.csv"), 1);
        assert_says("bad.csv: expected rows of a step and 4 numbers, found ");
    }
    FILE *file = fopen(path, "w");
    fputs("something else\n", file);
    fclose(file);
    ck_assert_int_eq(run("copy_task --resume @/run.safetensors --steps 4 --log @/bad.csv"), 1);
    assert_says("expected a log that starts with step,loss,accuracy,learning_rate,seconds");
}

TEST(pipes_are_refused)
{
    char path[128];
    snprintf(path, sizeof path, "%s/pipe", directory);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_int_eq(run("copy_task --resume @/pipe"), 1);
    assert_says("pipe: not a regular file\n");
    ck_assert_int_eq(run("copy_task --save @/pipe"), 2);
    assert_says("pipe: it exists and is not a regular file\n");
    ck_assert_int_eq(run("copy_task --log @/pipe"), 2);
    assert_says("pipe: it exists and is not a regular file\n");
    ck_assert_int_eq(run("language_model train --train @/pipe"), 1);
    assert_says("pipe: is not a regular file; expected a text\n");
}

/* A full disk: the log may have 1024 bytes. */
TEST(a_log_that_cannot_be_written_ends_no_training)
{
    struct rlimit old, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){ .rlim_cur = 1024, .rlim_max = old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const int status = run("copy_task " TINY "--steps 60 --log @/full.csv");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(status, 1);
    assert_says("full.csv: File too large; it ends at step ");
    assert_says("final ");
}

TEST(plot_shows_the_drop_and_the_bands)
{
    without_emulation();
    if (!draws())
        return;
    assert_runs("copy_task " TINY "--steps 401 --drop-at 200 --plot @/run.svg");
    assert_file_says("run.svg", "learning rate / 10", "mean of 2 values; band: minimum to maximum");
}

/* ------------------------------------------------------------------------------- other programs */

/* On the CPU: a thousand steps take the emulated device minutes. */
TEST(first_program_learns)
{
    without_emulation();
    assert_runs("first_program");
    ck_assert_msg(number_after("step 1000  loss ") < 0.1, "%s", output);
}

TEST(first_program_prints_its_tape)
{
    assert_runs("first_program tape");
    assert_says("digraph tape {");
    assert_says("causal_linear_attention");
    assert_says("cross_entropy");
    ck_assert_str_eq(strrchr(output, '}'), "}\n");
}

TEST(derive_ctc_agrees_with_all_paths)
{
    assert_runs("derive_ctc");
    assert_says("dlogits   sum of differences");
}

TEST(derive_lstm_agrees_with_itself)
{
    assert_runs("derive_lstm");
    assert_says("dW_hh sum of differences");
}

TEST(derive_gates_agrees_with_finite_differences)
{
    assert_runs("derive_gates");
    assert_says("attention    largest difference from finite differences");
    assert_says("delta rule   largest difference from finite differences");
}

TEST(derive_attention_agrees_with_itself)
{
    assert_runs("derive_attention");
    assert_says("gradients: op_causal_linear_attention against cumulative sums:");
    int lines = 0;
    for (char *line = strstr(output, "(allowed"); line; line = strstr(line + 1, "(allowed"))
        lines++;
    ck_assert_int_eq(lines, 6);
}

TEST(own_operation_passes_its_check_and_learns)
{
    assert_runs("own_operation");
    ck_assert_msg(number_after("gradient check: largest error ") < GRADIENT_TOLERANCE, "%s",
                  output);
    assert_says("step 1000 ");
}

TEST(two_moons_are_classified)
{
    assert_runs("two_moons");
    /* a misclassified point costs at least ln 2 / 200: at most 2 are */
    ck_assert_msg(number_after("step 300  loss ") < 3 * log(2) / 200, "%s", output);
}

TEST(convolution_reads_digits)
{
    assert_runs(SLOW ? "convolution 1" : "convolution");
    const double accuracy = number_after("accuracy ");
    ck_assert_msg(SLOW || accuracy > 0.95, "%s", output);
}

TEST(gru_learns_parity_of_longer_sequences)
{
    assert_runs(SLOW ? "gru 1" : "gru");
    const double accuracy = number_after("accuracy on 200 bits ");
    ck_assert_msg(SLOW || accuracy > 0.99, "%s", output);
}

TEST(tiny_gpt_learns_and_writes)
{
    assert_runs(SLOW ? "tiny_gpt 1" : "tiny_gpt 100");
    if (!SLOW) { /* untrained, it also writes the byte 0 */
        ck_assert_msg(number_after("step 100  loss ") < 3, "%s", output); /* at first ln 256 */
        ck_assert_uint_eq(strlen(strchr(strstr(output, "step "), '\n') + 1), 64 + 1);
    }
    ck_assert_int_ne(run("tiny_gpt 1 no_such_file"), 0);
    assert_says("no_such_file: No such file or directory");
    ck_assert_int_ne(run("tiny_gpt 1 /dev/null"), 0);
    assert_says("/dev/null: expected more than 64 bytes");
}

TEST(numbers_of_arguments_are_whole)
{
    static const char *const wrong[] = { "convolution 1e1",
                                         "gru 1x",
                                         "tiny_gpt ''",
                                         "gpt2 examples/sonnets.txt -1",
                                         "gpt2 examples/sonnets.txt 1 two",
                                         "gpt2 examples/sonnets.txt 1 1 0",
                                         "gru 99999999999" };
    without_emulation();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_msg(run("%s", wrong[i]) == 2, "%s: %s", wrong[i], output);
        assert_says(": expected a whole number of ");
    }
}

/* Bytes of text, and tokens of GPT-2's vocabulary, which are printed as numbers. */
TEST(gpt2_learns_and_writes)
{
    without_emulation();
    assert_runs("gpt2 examples/sonnets.txt 100");
    ck_assert_msg(number_after("step 100  loss ") < 3, "%s", output); /* at first ln 256 */
    const uint16_t tokens[130] = { [1] = 50256, [65] = 50256, [129] = 50256 };
    char path[128];
    snprintf(path, sizeof path, "%s/tokens.bin", directory);
    FILE *file = fopen(path, "wb");
    ck_assert(file && fwrite(tokens, sizeof tokens, 1, file) == 1 && fclose(file) == 0);
    assert_runs("gpt2 @/tokens.bin 4 1 1");
    const double first = number_after("step 1  loss ");
    ck_assert_double_eq_tol(first, 10.825, 0.8); /* ln 50257; tied weights expect the token again */
    ck_assert_double_lt(number_after("step 4  loss "), first - 0.2);
    ck_assert_int_ne(run("gpt2 /dev/null"), 0);
    assert_says("/dev/null: expected a file of more than 64 tokens");
    ck_assert_int_ne(run("gpt2 examples/sonnets.txt 1 1 1 @/tokens.bin"), 0);
    assert_says("tokens.bin: it is not a safetensors file");
}

int main(void)
{
    return run_program_tests("copy_task", NULL);
}
