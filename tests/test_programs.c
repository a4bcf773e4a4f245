/* A table of the programs that train, and one test per claim about all of them. Claims about one
 * program are in its own test file. */
#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "tests/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Program {
    /* Of its file; of the command that trains; the data and the device. */
    const char *name, *command, *run;
    /* Further options of a run, which --evaluate refuses; NULL if it has no --evaluate. */
    const char *scoring;
    const char *model;         /* of which a step takes a millisecond or less */
    const char *header;        /* of the log */
    int scored;                /* steps from one full row of the log to the next */
    double last_rate;          /* the learning rate of the last step; it never increases */
    const char *printed[6];    /* by a run; the results are first */
    const char *title, *curve; /* of the plot */
    const char *resumed;       /* options of a run whose learning rate does not depend on --steps */
    const char *stopped[3];    /* options of runs that signals end */
    const char *no_data,
        *bad_data;       /* errors without --data and of --data /nowhere; NULL: no data */
    const char *data[2]; /* files of --data */
    const char *loading; /* reads the weights of a checkpoint alone */
} Program;

#define LAYERS "--layers 1 --heads 2 --head-dim 8 --feed-forward 16 "
#define TRAINING "--learning-rate 0.01 --dropout 0.1 "
#define COPY_TASK "--weight-decay 0.01 --clip 1 --drop-at 8"
#define UPDATES "--tokens-per-update 64 --optimizer " /* of two batches */

static const Program programs[] = {
    { .name = "copy_task",
      .command = "copy_task",
      .run = "",
      .scoring = "",
      .model = LAYERS TRAINING "--length 8 --symbols 3 --batch 8 --drop-at 0",
      .header = "step,loss,accuracy,learning_rate,seconds",
      .scored = 1,
      .last_rate = 0.01,
      .printed = { "final loss=", " accuracy=", "\ngiven  ", "\nwrote  ", " tokens/s",
                   " tokens_per_second=" },
      .title = "Learning to copy: causal linear attention, 1 layers, 2 heads of 8, length 8",
      .curve = "accuracy",
      .resumed = COPY_TASK,
      .stopped = { COPY_TASK, COPY_TASK, COPY_TASK },
      .loading = "copy_task --steps 1" },
    { .name = "images",
      .command = "images train",
      .run = "--data @",
      .scoring = "--evaluate-every 3 --evaluate-images 5",
      .model = LAYERS TRAINING "--rows 6 --columns 5 --logistics 3 --batch 4 --clip 1 "
                               "--optimizer radam --schedule constant",
      .header = "step,training_bits,test_bits,learning_rate,seconds",
      .scored = 3,
      .last_rate = 0.01,
      .printed = { "final test_bits=", " test_images=6 ", " epochs=2.4 ", "  training ",
                   " images/s", " images_per_second=" },
      .title = "MNIST pixel by pixel: causal linear attention, 1 layers, 2 heads of 8",
      .curve = "bits per dimension",
      .resumed = "--optimizer muon --warm-up 7",
      .stopped = { "", "--schedule cosine", "--schedule cosine --optimizer muon --warm-up 9" },
      .no_data = "expected --data DIR, the directory of the MNIST database of handwritten digits "
                 "(LeCun, Cortes and Burges): train-images-idx3-ubyte and ",
      .bad_data = "there is no t10k-images-idx3-ubyte, with or without .gz; ",
      .data = { "t10k-images-idx3-ubyte", "train-images-idx3-ubyte" },
      .loading = "images sample --plot @/a.png" },
    { .name = "language_model",
      .command = "language_model train",
      .run = "--data @ --device cpu",
      .scoring = "--evaluate-every 3",
      .model = LAYERS TRAINING "--context 16 --batch 2 --warm-up 0",
      .header = "step,training_bits,heldout_bits,heldout_nats,learning_rate,seconds",
      .scored = 3,
      .last_rate = 0.001,
      .printed = { "final heldout_bits=", " heldout_nats=", " heldout_tokens=99 ", "  held out ",
                   " tokens/s" },
      .title = "A language model of bytes: causal softmax attention, 1 layers, 2 heads of 8",
      .curve = "held out",
      .resumed = UPDATES "schedule-free",
      .stopped = { UPDATES "adamw", UPDATES "radam", UPDATES "muon" },
      .no_data = "expected --data DIR, with train.txt or train.txt.gz, or --train FILE\n",
      .bad_data = "there is no train.txt, with or without .gz\n",
      .data = { "train.txt", "valid.txt" },
      .loading = "language_model sample" },
    { .name = "speech",
      .command = "speech train",
      .run = "--data @ --device cpu --strings 2",
      .model = LAYERS TRAINING "--context 1 --lookahead 1 --batch 4 --min-digits 1 --max-digits 2",
      .header = "step,loss,validation_error,learning_rate,seconds",
      .scored = 2,
      .last_rate = 0.01,
      .printed = { "final validation_error=", " epochs=3 ", " seconds_per_epoch=", "  loss ",
                   " strings/s", " peak_mib=" },
      .title = "Strings of spoken digits: linear attention, 1 layers of 16",
      .curve = "validation error",
      .resumed = "--attention lsh --patience 0",
      .stopped = { "", "", "" },
      .no_data = "expected --data DIR, the folder with the recordings of the Free Spoken ",
      .bad_data = "no recordings named DIGIT_SPEAKER_INDEX.wav in it ",
      .data = { "recordings/0_a_0.wav", "recordings/5_a_45.wav" },
      .loading = "speech recognize @/recordings/0_a_0.wav" },
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* speech is built only where its libraries are found. */
static bool is_tested(const Program *program)
{
    char path[256];
    const char *build = getenv("TAPEGRAD_BUILD");
    snprintf(path, sizeof path, "%s/programs/speech", build ? build : "build");
    return strcmp(program->name, "speech") != 0 || access(path, X_OK) == 0;
}

#define EACH_PROGRAM(program)                                                                      \
    for (const Program *program = programs; program < programs + PROGRAMS; program++)              \
        if (is_tested(program))

/* ----------------------------------------------------------------------------------------- data */

static FILE *create(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    return file;
}

static void put_big_endian(FILE *file, uint32_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        fputc((int)(number >> shift & 255), file);
}

static void put_little_endian(FILE *file, uint32_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(number >> 8 * i & 255), file);
}

static void write_images(const char *name, int count)
{
    enum { ROWS = 6, COLUMNS = 5 };
    FILE *file = create(name);
    put_big_endian(file, 0x803);
    put_big_endian(file, (uint32_t)count);
    put_big_endian(file, ROWS);
    put_big_endian(file, COLUMNS);
    for (int i = 0; i < count * ROWS * COLUMNS; i++)
        fputc(i * i % 251, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_text(const char *name, int count)
{
    FILE *file = create(name);
    for (int i = 0; i < count; i++)
        fputs(i * i % 7 < 3 ? "tick " : "tock ", file);
    ck_assert_int_eq(fclose(file), 0);
}

/* A WAV file of 16 bits: a tone. */
static void write_recording(int digit, int index)
{
    enum { RATE = 8000, SAMPLES = 1600 };
    char name[64];
    snprintf(name, sizeof name, "recordings/%d_a_%d.wav", digit, index);
    FILE *file = create(name);
    fputs("RIFF", file);
    put_little_endian(file, 36 + 2 * SAMPLES, 4);
    fputs("WAVEfmt ", file);
    put_little_endian(file, 16, 4); /* the size of what follows, up to the samples */
    put_little_endian(file, 1, 2);  /* PCM */
    put_little_endian(file, 1, 2);  /* channels */
    put_little_endian(file, RATE, 4);
    put_little_endian(file, 2 * RATE, 4);
    put_little_endian(file, 2, 2);
    put_little_endian(file, 16, 2);
    fputs("data", file);
    put_little_endian(file, 2 * SAMPLES, 4);
    for (int i = 0; i < SAMPLES; i++)
        put_little_endian(file, (uint32_t)lround(9000 * sin(0.2 * (digit + 1) * i + index)), 2);
    ck_assert_int_eq(fclose(file), 0);
}

/* Nine steps are several epochs of these data. A program generates oneDNN's kernels at its start:
 * those for AVX-512 would take most of the time of these runs. */
static void setup(void)
{
    static const int indices[] = { 0, 5, 6, 45 }; /* of a test, of the training, of a validation */
    char path[128];
    setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
    snprintf(path, sizeof path, "%s/recordings", directory);
    if (mkdir(path, 0700) != 0)
        return; /* an earlier test has written all */
    write_images("train-images-idx3-ubyte", 10);
    write_images("t10k-images-idx3-ubyte", 6);
    write_text("train.txt", 100);
    write_text("valid.txt", 20);
    for (int digit = 0; digit < 6; digit++)
        for (int i = 0; i < 4; i++)
            write_recording(digit, indices[i]);
}

/* ----------------------------------------------------------------------------------------- runs */

static int threads = 2;

/* Where the claim is about the programs, not about their device: one thread, and not the emulated
 * device, which takes seconds. */
static void without_emulation(void)
{
    setenv("TAPEGRAD_CUDA_ON_HOST_DEVICES", "0", 1);
    threads = 1;
}

#define RUN "%s %s --threads %d %s "
#define RUN_OF(program)                                                                            \
    (program)->command, (program)->run, threads, (program)->scoring ? (program)->scoring : ""

/* Trains; variant: further options of the model and the training. */
static void assert_trains(const Program *program, const char *variant, const char *options)
{
    assert_runs(RUN "%s %s %s", RUN_OF(program), program->model, variant, options);
}

/* The results and steps that output has after the word, as "loss=1 accuracy=0.5 steps=9". */
static char *results_after(const char *word)
{
    const char *start = strstr(output, word), *steps = start ? strstr(start, " steps=") : NULL;
    ck_assert_msg(steps != NULL, "%s", output);
    start += strlen(word);
    return strndup(start, (size_t)(steps + 1 + strcspn(steps + 1, " ") - start));
}

/* Continues the run with files named part; it must end as the run with files named whole, which had
 * these results. */
static void assert_continues(const Program *program, const char *options, const char *results)
{
    assert_runs(RUN "--resume @/part --save @/part --log @/part.csv %s", RUN_OF(program), options);
    char *found = results_after("final ");
    ck_assert_str_eq(found, results);
    ck_assert_msg(!strstr(output, "step 1/"), "%s", output);
    free(found);
    assert_same_files("whole", "part");
    assert_same_logs("whole.csv", "part.csv");
}

/* --------------------------------------------------------------------------------------- claims */

/* The numbers of a line, NaN for an empty field; returns how many. */
static int read_fields(const char *line, double *fields, int max)
{
    int count = 0;
    for (const char *end = line + strcspn(line, "\n"); line <= end; count++) {
        const size_t length = strcspn(line, ",\n");
        char *rest;
        ck_assert_int_lt(count, max);
        fields[count] = length > 0 ? strtod(line, &rest) : NAN;
        ck_assert_msg(length == 0 || rest == line + length, "%s", line);
        line += length + 1;
    }
    return count;
}

/* Columns are the step, values, the learning rate and the seconds. */
static void assert_log(const Program *program, int steps)
{
    enum { MAX_COLUMNS = 8 };
    size_t length;
    char *text = contents("log.csv", &length), *line = text;
    const size_t header = strlen(program->header);
    double fields[MAX_COLUMNS], rate = 0.01, seconds = 0;
    int columns = 1;
    for (const char *c = program->header; *c; c++)
        columns += *c == ',';
    ck_assert_msg(!strncmp(text, program->header, header) && text[header] == '\n', "%s", text);
    ck_assert_int_eq(log_lines("log.csv"), 1 + steps);
    for (int step = 1; step <= steps; step++) {
        line = strchr(line, '\n') + 1;
        ck_assert_int_eq(read_fields(line, fields, MAX_COLUMNS), columns);
        bool ok = fields[0] == step && fields[1] > 0 && fields[columns - 2] > 0 &&
                  fields[columns - 2] <= rate && fields[columns - 1] >= seconds;
        for (int column = 2; column < columns - 2; column++)
            ok &= step % program->scored ? isnan(fields[column]) : fields[column] >= 0;
        ck_assert_msg(ok, "%s", line);
        rate = fields[columns - 2];
        seconds = fields[columns - 1];
    }
    ck_assert_double_eq_tol(rate, program->last_rate, 1e-9);
    ck_assert_str_eq(strchr(line, '\n'), "\n");
    free(text);
}

TEST(log_has_a_header_and_a_row_per_step)
{
    without_emulation();
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 6 --log @/log.csv");
        assert_log(program, 6);
        assert_says("step 6/6  ");
        for (int i = 0; i < 6 && program->printed[i]; i++)
            assert_says(program->printed[i]);
        ck_assert_double_eq(number_after(" steps="), 6);
        ck_assert_double_ge(number_after(" seconds="), 0);
    }
}

TEST(two_runs_are_bitwise_equal)
{
    unsetenv("ONEDNN_MAX_CPU_ISA");
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 6 --save @/0 --log @/0.csv");
        assert_trains(program, "", "--steps 6 --save @/1 --log @/1.csv");
        assert_same_files("0", "1");
        assert_same_logs("0.csv", "1.csv");
        assert_trains(program, "", "--steps 6 --log @/2.csv --seed 2");
        assert_other_logs("0.csv", "2.csv");
    }
}

/* Step 5 of 9 is inside the second epoch of images; one step before it has images of two epochs. In
 * speech the learning rate halves before and after. */
TEST(resumed_run_is_bitwise_equal)
{
    EACH_PROGRAM(program) {
        assert_trains(program, program->resumed, "--steps 9 --save @/whole --log @/whole.csv");
        char *results = results_after("final ");
        assert_trains(program, program->resumed,
                      "--steps 5 --save @/part --save-every 3 --log @/part.csv");
        assert_continues(program, "--steps 9", results);
        free(results);
    }
}

TEST(resumed_run_has_at_least_its_steps)
{
    without_emulation();
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 3 --save @/run");
        ck_assert_int_eq(run(RUN "--resume @/run --steps 2", RUN_OF(program)), 2);
        assert_says(": 2 steps: expected at least the 3 that ");
    }
}

TEST(evaluation_of_a_checkpoint_has_the_results_of_its_run)
{
    without_emulation();
    EACH_PROGRAM(program) {
        if (!program->scoring)
            continue;
        assert_trains(program, "", "--steps 3 --save @/run");
        char *results = results_after("final ");
        assert_runs("%s %s --threads %d --load @/run --evaluate", program->command, program->run,
                    threads);
        char *evaluated = results_after("evaluation ");
        ck_assert_str_eq(evaluated, results);
        free(evaluated);
        free(results);
    }
}

/* -------------------------------------------------------------------------------------- signals */

/* Each step prints a line, of 50 to 100 bytes. Four to eight lines fit into the pipe, so the
 * program waits for a reader before its last step. */
enum { STEPS = 10, AWAITED = 4, PIPE_FREE = 400 };

/* The FIFO `out`, full but for PIPE_FREE bytes. */
static int open_fifo(void)
{
    enum { PAGE = 4096 };
    static char filler[PAGE - PIPE_FREE];
    char path[128];
    snprintf(path, sizeof path, "%s/out", directory);
    ck_assert(mkfifo(path, 0600) == 0 || errno == EEXIST);
    const int fifo = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_eq(fcntl(fifo, F_SETPIPE_SZ, PAGE), PAGE);
    memset(filler, '\n', sizeof filler);
    ck_assert_int_eq(write(fifo, filler, sizeof filler), sizeof filler);
    return fifo;
}

/* Reads until the child has ended; returns its exit status. */
static int read_output(pid_t child, int fifo)
{
    size_t length = 0;
    for (bool ended = false; !ended;) {
        ended = has_ended(child);
        const ssize_t got = read(fifo, output + length, sizeof output - 1 - length);
        if (got > 0)
            length += (size_t)got;
        else
            usleep(1000);
    }
    int status;
    output[length] = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the program was killed: %s", output);
    return WEXITSTATUS(status);
}

static void assert_stops(const Program *program, const char *variant, int signal_number)
{
    char log[128];
    snprintf(log, sizeof log, "%s/part.csv", directory);
    ck_assert(unlink(log) == 0 || errno == ENOENT);
    const int fifo = open_fifo();
    const pid_t child = start("out", RUN "%s %s --steps %d --save @/part --log @/part.csv",
                              RUN_OF(program), program->model, variant, STEPS);
    await_lines(child, "part.csv", 1 + AWAITED);
    ck_assert_int_eq(kill(child, signal_number), 0);
    ck_assert_int_eq(read_output(child, fifo), 128 + signal_number);
    close(fifo);
    assert_says(program->printed[0]);
    const double steps = number_after(" steps=");
    ck_assert_double_eq(steps, log_lines("part.csv") - 1);
    ck_assert_msg(steps < STEPS, "%s", output);
}

/* Schedules of the learning rate over all steps continue, too. */
TEST(signals_save_and_end_with_their_status)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
    without_emulation();
    threads = 2; /* one of them receives the signal */
    char options[64];
    snprintf(options, sizeof options, "--steps %d --save @/whole --log @/whole.csv", STEPS);
    EACH_PROGRAM(program) {
        for (int i = 0; i < 3; i++) {
            assert_trains(program, program->stopped[i], options);
            char *results = results_after("final ");
            assert_stops(program, program->stopped[i], signals[i]);
            assert_continues(program, "", results);
            free(results);
        }
    }
}

/* Whether progress lines, which begin with a carriage return, wrap on a terminal of 80 columns. */
static bool wraps(const char *text)
{
    int column = 0;
    bool progress = false, wrap = true, wrapped = false;
    for (; *text; text++) {
        if (*text == '\r' || *text == '\n') {
            progress = *text == '\r' && text[1] != '\n';
            column = 0;
        } else if (*text == '\033') {
            wrap = strncmp(text, "\033[?7l", 5) && (wrap || !strncmp(text, "\033[?7h", 5));
            text += strcspn(text, "hlK");
        } else {
            wrapped |= ++column > 80 && wrap && progress;
        }
    }
    return wrapped || !wrap;
}

TEST(progress_is_one_line_of_a_terminal)
{
    without_emulation();
    char path[128];
    snprintf(path, sizeof path, "%s/terminal", directory);
    EACH_PROGRAM(program) {
        const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        ck_assert(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
        ck_assert_int_eq(symlink(ptsname(terminal), path), 0);
        const pid_t child = start("terminal", RUN "%s --steps 6", RUN_OF(program), program->model);
        size_t length = 0; /* at the end read fails */
        for (ssize_t got; (got = read(terminal, output + length, sizeof output - 1 - length)) > 0;)
            length += (size_t)got;
        output[length] = 0;
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(status == 0 && !wraps(output), "%s", output);
        assert_says("step 6/6  0:00 left  ");
        ck_assert_int_eq(unlink(path), 0);
        close(terminal);
    }
}

/* ---------------------------------------------------------------------------------------- plots */

static void write_file(const char *name, const char *text, mode_t mode)
{
    char path[160];
    FILE *file = create(name);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    ck_assert_int_eq(chmod(path, mode), 0);
}

/* The user's settings change no picture. */
TEST(plot_is_an_svg)
{
    without_emulation();
    if (!draws())
        return;
    write_file(".gnuplot", "exit status 3\n", 0600);
    setenv("HOME", directory, 1);
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 3 --plot \"@/it's.svg\"");
        assert_file_says("it's.svg", "<svg", program->title, program->curve, "</svg>");
    }
}

/* gnuplot would take the name for a command. */
TEST(name_of_a_plot_is_no_command)
{
    static const char name[] = "|cat >test_programs.svg";
    without_emulation();
    if (!draws())
        return;
    assert_trains(&programs[0], "", "--steps 3 --plot '|cat >test_programs.svg'");
    ck_assert_int_eq(unlink(name), 0);
    ck_assert_int_ne(unlink("test_programs.svg"), 0);
}

TEST(curve_without_points_is_omitted)
{
    without_emulation();
    if (!draws())
        return;
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 1 --plot @/run.svg");
        assert_file_says("run.svg", "<svg", program->title, "</svg>");
        ck_assert_msg(!strstr(output, "warning"), "%s", output);
    }
}

/* A gnuplot that fails, and one whose picture is not whole, as on a full disk. */
TEST(a_plot_that_fails_keeps_the_results_and_the_older_plot)
{
    static const char *const gnuplots[] = { "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho '<svg>'\n" };
    static const char *const reasons[] = {
        "run.svg: gnuplot could not draw it; its error is printed above\n",
        "run.svg: gnuplot printed 6 bytes, expected a whole picture\n"
    };
    without_emulation();
    setenv("PATH", directory, 1);
    EACH_PROGRAM(program) {
        for (int i = 0; i < 2; i++) {
            write_file("gnuplot", gnuplots[i], 0700);
            write_file("run.svg", "<svg>older</svg>", 0600);
            ck_assert_int_eq(run(RUN "%s --steps 3 --save @/run --plot @/run.svg", RUN_OF(program),
                                 program->model),
                             1);
            assert_says(program->printed[0]);
            assert_says(reasons[i]);
            assert_file_says("run.svg", "<svg>older</svg>");
        }
    }
}

TEST(missing_gnuplot_is_reported_before_the_training)
{
    without_emulation();
    setenv("PATH", "/nowhere", 1);
    EACH_PROGRAM(program) {
        ck_assert_int_eq(run(RUN "%s --steps 3 --plot @/run.svg", RUN_OF(program), program->model),
                         1);
        assert_says("gnuplot, which draws it, was not found; install gnuplot-nox or omit --plot\n");
        ck_assert_ptr_null(strstr(output, "step"));
    }
}

/* --------------------------------------------------------------------------------------- errors */

#define WRITABLE "expected a file that can be written: tensor_file_can_save: "
static const struct {
    const char *options, *sentence;
} refused[] = {
    { "--layers 0", ": --layers 0: expected a whole number from 1 to 64\n" },
    { "--layers two", ": --layers two: expected a whole number from 1 to 64\n" },
    { "--steps ''", ": --steps : expected a whole number from " },
    { "--seed -1", ": --seed -1: expected a whole number from 0 to 4294967295\n" },
    { "--dropout nan", ": --dropout nan: expected a number from 0 to 0.9\n" },
    { "--learning-rate 0.1x", ": --learning-rate 0.1x: expected a number from 1e-06 to 1\n" },
    { "--features mean", ": --features mean: expected elu+1, relu, softplus, identity, "
                         "squared-relu, polynomial, random or fourier\n" },
    { "--attention mean", ": --attention mean: expected " },
    { "--attention softmax --features relu",
      ": --features relu: expected without --attention softmax" },
    { "--device tpu", ": --device tpu: expected auto, plain, cpu, cpu:repeatable or cuda\n" },
    { "--precision int8", ": --precision int8: expected float32, tf32, bf16 or auto\n" },
    { "--preset slow", ": --preset slow: expected " },
    { "--bogus", ": unrecognized option '--bogus'; --help lists all\n" },
    { "--steps", ": option '--steps' requires an argument\n" },
    { "more", ": more: expected an option; --help lists them\n" },
    { "--save-every 5", ": --save-every 5: expected together with --save FILE\n" },
    { "--save ''", ": --save : " WRITABLE ": the name is empty\n" },
    { "--save /nowhere/x", ": --save /nowhere/x: " WRITABLE "/nowhere/x: cannot create a temporary "
                           "file beside it: No such file" },
    { "--save @/.", "/.: it exists and is not a regular file\n" },
    { "--log /dev/full", WRITABLE "/dev/full: it exists and is not a regular file\n" },
    { "--log @/a --save @/a", "a: expected another file than --log " },
    { "--plot a.png", ": --plot a.png: expected a file name without control characters that ends "
                      "in .svg\n" },
};

/* The program's name and the sentence are all that it prints. */
TEST(bad_options_are_one_sentence)
{
    EACH_PROGRAM(program) {
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
            const int status = run("%s %s", program->command, refused[i].options);
            const size_t length = strlen(program->name);
            const bool named = !strncmp(output, program->name, length) && output[length] == ':';
            ck_assert_msg(status == 2 && named && strstr(output, refused[i].sentence),
                          "%s %s: status %d: %s, expected %s", program->command, refused[i].options,
                          status, output, refused[i].sentence);
            ck_assert_str_eq(strchr(output, '\n'), "\n");
        }
    }
}

TEST(missing_data_are_reported)
{
    EACH_PROGRAM(program) {
        char sentence[256];
        if (!program->no_data)
            continue;
        snprintf(sentence, sizeof sentence, "%s: %s", program->name, program->no_data);
        ck_assert_int_eq(run("%s", program->command), 2);
        assert_says(sentence);
        snprintf(sentence, sizeof sentence, "%s: --data /nowhere: %s", program->name,
                 program->bad_data);
        ck_assert_int_eq(run("%s --data /nowhere", program->command), 1);
        assert_says(sentence);
    }
}

/* Changes the first element of a weight of the checkpoint "run" to NaN. */
static void write_nan(void)
{
    char path[128];
    size_t length;
    snprintf(path, sizeof path, "%s/run", directory);
    char *bytes = contents("run", &length);
    static const char name[] = "transformer.layers.0.ff1.weight";
    TensorFile *checkpoint = tensor_file_open(path);
    const FileEntry *weight = tensor_file_find(checkpoint, name);
    ck_assert_ptr_nonnull(weight);
    Real *values = test_zeros(shape_count(weight->shape));
    ck_assert(tensor_file_read_bytes(checkpoint, name, values));
    tensor_file_close(checkpoint);
    char *at = memmem(bytes, length, values, 16 * sizeof(Real));
    ck_assert_ptr_nonnull(at);
    memset(at, 0xff, sizeof(Real));
    ck_assert(tensor_file_write(path, bytes, (int64_t)length));
    free(bytes);
}

TEST(weights_of_a_diverged_training_are_refused)
{
    without_emulation();
    EACH_PROGRAM(program) {
        assert_trains(program, "", "--steps 1 --save @/run");
        write_nan();
        ck_assert_int_eq(run("%s --load @/run --device cpu", program->loading), 1);
        assert_says("run: a weight is ");
        assert_says("nan, expected finite ones: its training diverged\n");
    }
}

/* By any option, also by another name. */
TEST(files_of_the_data_are_not_overwritten)
{
    static const char *const options[] = { "--save @/%s", "--log @/%s", "--plot @/linked.svg" };
    without_emulation();
    EACH_PROGRAM(program) {
        for (int i = 0; program->no_data && i < 6; i++) {
            char option[80], data[160], linked[128];
            snprintf(data, sizeof data, "%s/%s", directory, program->data[i / 3]);
            snprintf(linked, sizeof linked, "%s/linked.svg", directory);
            snprintf(option, sizeof option, options[i % 3], program->data[i / 3]);
            ck_assert_int_eq(symlink(data, linked), 0);
            ck_assert_int_eq(run(RUN "%s --steps 1 %s", RUN_OF(program), program->model, option),
                             2);
            assert_says(": expected another file than ");
            assert_says(", which is read\n");
            ck_assert_int_eq(unlink(linked), 0);
        }
    }
}

int main(void)
{
    for (const Program *program = programs; program < programs + PROGRAMS; program++)
        if (!is_tested(program))
            printf("not tested: %s, which was not built\n", program->name);
    fflush(stdout); /* the tests are forked */
    return run_program_tests("programs", setup);
}
