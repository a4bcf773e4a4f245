/* The numbers of chapter 12 on mistakes in a step: the sentences of the library. */
#include "gpt.h"

#include <setjmp.h>

static jmp_buf after_error;

static void catch_error(const char *sentence, void *context)
{
    (void)sentence;
    (void)context;
    longjmp(after_error, 1);
}

static void step_first(void)
{
    optim_step(optimizer);
}

static void no_reset(void)
{
    tape_backward(tape, batch_loss(random_new(1, 0)));
    optim_step(optimizer);
    tape_backward(tape, batch_loss(random_new(2, 0)));
}

static void nan_weight(void)
{
    params_flat_values(params)->data[0] = NAN;
    train_step();
}

static void nan_weight_found(void)
{
    tape_check_finite(tape, true);
    nan_weight();
}

/* Prints the sentence that misuse raises, in lines that fit a phone. */
static void print_error(const char *section, void misuse(void))
{
    char text[400];
    begin(1);
    tapegrad_on_error(catch_error, NULL);
    if (!setjmp(after_error))
        misuse();
    snprintf(text, sizeof text, "%s", tapegrad_error());
    printf("[%s]", section);
    size_t column = 40;
    for (const char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        const bool fits = column + 1 + strlen(word) <= 40;
        printf("%s%s", fits ? " " : "\n", word);
        column = fits ? column + 1 + strlen(word) : strlen(word);
    }
    printf("\n");
    tape_reset(tape);
    end();
}

int main(void)
{
    print_error("step first", step_first);
    print_error("no reset", no_reset);
    print_error("NaN", nan_weight);
    print_error("NaN found", nan_weight_found);
    return 0;
}
