/* Command lines and checkpoints of programs (examples/shared/options.c): kinds of wrong arguments
 * that test_programs lacks, and the combinations that a program itself rejects; test_speech has its
 * own. */
#include "tests/programs.h"

#include <stdlib.h>

#define TINY                                                                                       \
    "--length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 8 "       \
    "--threads 2 --drop-at 0 "
#define FIFTY "12345678901234567890123456789012345678901234567890"
#define LONG_NAME "/tmp/" FIFTY FIFTY FIFTY FIFTY FIFTY FIFTY

typedef struct Wrong {
    const char *arguments, *sentence;
} Wrong;

/* The program ends with status 2 and the sentence, which its name begins if an option does. */
static void assert_refused(const char *program, const Wrong *wrong, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int status = run("%s %s", program, wrong[i].arguments);
        char expected[256];
        snprintf(expected, sizeof expected, "%s%s%s", *wrong[i].sentence == '-' ? program : "",
                 *wrong[i].sentence == '-' ? ": " : "", wrong[i].sentence);
        ck_assert_msg(status == 2 && strstr(output, expected), "%s: status %d: %s, expected %s",
                      wrong[i].arguments, status, output, expected);
    }
}
#define ASSERT_REFUSED(program, wrong)                                                             \
    assert_refused(program, wrong, sizeof(wrong) / sizeof *(wrong))

#define WRITABLE "expected a file that can be written: "
#define NOT_REGULAR ": it exists and is not a regular file\n"
#define NAME "expected a file name without control characters"
static const Wrong of_copy_task[] = {
    { "--steps 1.5", "--steps 1.5: expected a whole number from 1 to 1000000000\n" },
    { "--batch ''", "--batch : expected a whole number from 1 to 65536\n" },
    { "--learning-rate 0", "--learning-rate 0: expected a number from 1e-06 to 1\n" },
    { "--weight-decay 0.1x", "--weight-decay 0.1x: expected a number from 0 to 1\n" },
    { "--attention mean", "--attention mean: expected linear, softmax or lsh\n" },
    { "--preset slow", "--preset slow: expected quick or paper\n" },
    { "--steps 5 --profile 5",
      "--profile 5: expected at most 4, the steps of this run but the first\n" },
    { "-xy", "copy_task: unrecognized option '-x'; --help lists all\n" },
    { "--quiet=1", "copy_task: unrecognized option '--quiet=1'; --help lists all\n" },
    { "--evaluate=1", "copy_task: unrecognized option '--evaluate=1'; --help lists all\n" },
    { "--drop 0.3", "copy_task: option '--drop' is ambiguous: --drop-at, --dropout\n" },
    { "--th=2 --s 7", "option '--s' is ambiguous: --symbols, --steps, --seed, --save, "
                      "--save-every, --score-every\n" },
    { "--he 2", "option '--he' is ambiguous: --heads, --head-dim, --help\n" },
    { "--resume a --load b", "--load b: expected without --resume a\n" },
    { "--evaluate", "--evaluate: expected together with --load FILE\n" },
    { "--rounds 4", "--rounds 4: expected without --attention linear, which has none\n" },
    { "--heads 3 --head-dim 5", "--heads 3 --head-dim 5: expected an even product" },
    { "--save /tmp", "--save /tmp: " WRITABLE "tensor_file_can_save: /tmp" NOT_REGULAR },
    { "--save /dev/null", "tensor_file_can_save: /dev/null" NOT_REGULAR },
    { "--save " LONG_NAME, "File name too long\n" },
    { "--plot .svg", "--plot .svg: " NAME },
    { "--plot \"`printf 'a\\n!touch b\\n.svg'`\"", "--plot a?!touch b?.svg: " NAME },
    { "--log \"`printf 'a\\177'`\"", "--log a?: " NAME "\n" },
    { "--plot @/a.svg --save @/./a.svg", "a.svg: expected another file than --plot " },
    { "--resume @/a --log @/a", "a: expected another file than --log " },
    { "--load @/b --evaluate --plot @/b.svg --log @/b.svg",
      "b.svg: expected another file than --log " },
};

static const Wrong of_images[] = {
    { "", "images: no command: expected train, sample, evaluate or benchmark; see --help\n" },
    { "draw", "images: draw: expected train, sample, evaluate or benchmark; see --help\n" },
    { "sample --layers 2", "unrecognized option '--layers'" }, /* of another command */
    { "train --attention lsh",
      "--attention lsh: expected linear, decay, softmax, lsh-1 or lsh-4\n" },
    { "train --form fast",
      "--form fast: expected best, recurrent, chunked, chunk-parallel or quadratic\n" },
    { "train --steps 5 --epochs 1", "--steps 5: expected without --epochs 1\n" },
    { "train --attention softmax --features relu",
      "--features relu: expected without --attention softmax, lsh-1 and lsh-4, which have none\n" },
    { "sample", "images: sample: expected --load FILE, a checkpoint of images train, and --plot" },
    { "benchmark --method softmax --features relu",
      "images: --features relu: expected without --method softmax, which has none" },
    { "train --data x --evaluate --warm-up 5",
      "images: --warm-up 5: expected without --evaluate, which trains nothing" },
    { "evaluate --data x", "images: evaluate: expected --load FILE, a checkpoint of images train" },
    { "benchmark --method lsh",
      "--method lsh: expected all, linear, decay, stateful-softmax, softmax, lsh-1 or lsh-4\n" },
    { "sample --load @/a.png --plot @/a.png", "a.png: expected another file than --load " },
    { "sample --plot a.svg", "--plot a.svg: " NAME " that ends in .png\n" },
    { "train --t 0", "images: option '--t' is ambiguous: --test-images, --threads\n" },
    { "benchmark --csv /tmp", "--csv /tmp: " WRITABLE },
};

TEST(bad_options_are_reported)
{
    ASSERT_REFUSED("copy_task", of_copy_task);
    ASSERT_REFUSED("images", of_images);
}

TEST(a_checkpoint_fixes_its_options)
{
    static const Wrong wrong[] = {
        { "--resume @/run --layers 3", "--layers 3: the checkpoint " },
        { "--resume @/run --layers 3", "run has --layers 1, which cannot change\n" },
        { "--resume @/run --attention softmax", "has --attention lsh, which cannot change\n" },
        { "--resume @/run --rounds 4", " has --rounds 2, which cannot change\n" },
        { "--resume @/run --dropout 0.2", " has --dropout 0.1, which cannot change\n" },
        { "--resume @/run --seed 7", "--seed 7: " },
        { "--resume @/run --steps 4", "copy_task: 4 steps: expected at least the 5 that " },
        { "--load @/run --evaluate --length 32", "has --length 16, which cannot change" },
        { "--resume @/run --evaluate", "expected without --evaluate, which trains nothing" },
        { "--load @/run --layers 3", " has --layers 1, which cannot change\n" },
        { "--load @/run --evaluate --log @/x",
          "expected without --evaluate, which trains nothing" },
        { "--load @/run --evaluate --dropout 0",
          "expected without --evaluate, which trains nothing" },
    };
    assert_runs("copy_task " TINY
                "--attention lsh --rounds 2 --dropout 0.1 --steps 5 --save @/run");
    ASSERT_REFUSED("copy_task", wrong);
    assert_runs("copy_task --resume @/run --layers 1 --dropout 0.10 --threads 2");
    assert_says(" steps=5 ");
    assert_runs("copy_task --load @/run --evaluate --threads 2 --seed 2 --batch 3");
}

TEST(files_that_are_no_checkpoints_are_reported)
{
    char path[128];
    const Real one = 1;
    const FileEntry entry = { "one", sizeof(Real) == 8 ? FILE_F64 : FILE_F32, shape(1),
                              (void *)&one };
    snprintf(path, sizeof path, "%s/weights", directory);
    ck_assert(tensor_file_save(&entry, 1, NULL, 0, path));
    ck_assert_int_eq(run("copy_task --load @/weights --evaluate"), 1);
    assert_says("expected a checkpoint of copy_task, but it has no --preset");
    assert_runs("copy_task " TINY "--steps 1 --save @/run");
    ck_assert_int_eq(run("images sample --load @/run --plot @/a.png"), 1);
    assert_says("run: expected a checkpoint of images, but it is one of copy_task\n");
    static const char *const missing[] = { "copy_task --resume @/missing",
                                           "images sample --load @/missing --plot @/a.png" };
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run("%s", missing[i]), 1);
        assert_says("missing: No such file or directory");
    }
}

TEST(every_command_prints_its_options)
{
    static const char *const commands[] = { "copy_task",
                                            "images train",
                                            "images",
                                            "images sample",
                                            "images evaluate",
                                            "images benchmark",
                                            "language_model prepare",
                                            "language_model train",
                                            "language_model evaluate",
                                            "language_model sample" };
    for (int i = 0; i < 10; i++) {
        assert_runs("%s --help", commands[i]);
        assert_says(i == 0   ? "--save-every N"
                    : i == 2 ? "images sample "
                    : i == 6 ? "--vocabulary FILE"
                             : "--threads N");
        for (const char *line = output; *line; line = strchr(line, '\n') + 1)
            ck_assert_msg(strcspn(line, "\n") <= 80, "more than 80 columns: %s", line);
    }
}

int main(void)
{
    return run_program_tests("options", NULL);
}
