/* The numbers of chapter 12 on learning: clipping, saving, names at several temperatures, and the
 * experiments with a model that does not learn. */
#include "gpt.h"

enum { STEPS = 800, MORE = 3 };

/* Trains the model and prints the norm of the gradient before clipping. */
static void train(void)
{
    int clipped = 0;
    printf("[clipping]\n");
    for (int step = 1; step <= STEPS; step++) {
        const double loss = train_step(), norm = params_gradient_norm(params);
        clipped += norm > 1;
        if (step <= 2 || step % 200 == 0)
            printf("step %3d  loss %.3f  norm %.3f\n", step, loss, norm);
    }
    printf("norms above 1: %d of %d\n", clipped, STEPS);
}

/* Returns whether the steps after a save and after a load have the same losses. */
static bool continue_twice(const char *path)
{
    double losses[2][MORE];
    bool ok = optim_save(optimizer, tape, NULL, 0, path);
    printf("[resume]\n");
    for (int run = 0; ok && run < 2; run++) {
        ok = run == 0 || optim_load(optimizer, tape, path);
        printf("%s", run == 0 ? "after saving " : "after loading");
        for (int i = 0; i < MORE; i++)
            printf(" %.7f", losses[run][i] = train_step());
        printf("\n");
    }
    remove(path);
    return ok && memcmp(losses[0], losses[1], sizeof losses[0]) == 0;
}

static void print_names(void)
{
    static const double temperatures[] = { 0.3, 1, 3 };
    printf("[names]\n");
    for (int i = 0; i < 3; i++) {
        printf("T = %g\n", temperatures[i]);
        for (int n = 0; n < 4; n++)
            print_name((Sampling){ .temperature = temperatures[i] });
    }
}

/* ---------------------------------------------------------------------------------- experiments */
/* Steps on one batch, whose BATCH lines have a probability of 1 / BATCH each at best. */
static bool learn_one_batch(void)
{
    double loss = 0;
    begin(1);
    printf("[one batch]\n");
    for (int step = 1; step <= 200; step++) {
        Tensor *of_batch = batch_loss(random_new(/*seed*/ 7, 0));
        tape_backward(tape, of_batch);
        optim_step(optimizer);
        loss = tensor_item(of_batch);
        tape_reset(tape);
        if (step == 1 || step == 20 || step == 50 || step == 200)
            printf("step %3d  loss %.4f\n", step, loss);
    }
    printf("ln %d / %d      %.4f\n", BATCH, LENGTH, log(BATCH) / LENGTH);
    end();
    return loss < 1.1 * log(BATCH) / LENGTH;
}

static void compare_rates(void)
{
    printf("[rates]\n");
    for (double rate = 1e-5; rate < 2; rate *= 10) {
        double loss = 0;
        begin(1);
        optim_set_learning_rate(optimizer, rate);
        for (int step = 1; step <= 100; step++)
            loss = train_step();
        printf("rate %-6g  loss %.3f\n", rate, loss);
        end();
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    char path[1024];
    snprintf(path, sizeof path, "%s.safetensors", argv[0]);
    begin(1);
    train();
    const bool same = continue_twice(path);
    print_names();
    end();
    const bool learned = learn_one_batch();
    compare_rates();
    return !(same && learned);
}
