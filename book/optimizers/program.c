/* The numbers of chapter 7: the library's optimizers in a bowl. bowl.h compares each step with the
 * chapter's formulas, in formulas.h, and each gradient with central differences. */
#include "bowl.h"

#include <stdio.h>

static const double curvatures[] = { 1, 25 }, none[] = { 0, 0 };

static void print_rates(void)
{
    static const double rates[] = { 0.02, 0.07, 0.079, 0.081, 0.09 };
    printf("[rate]\nlr     p_1     p_2 after 50 steps\n");
    for (int i = 0; i < 5; i++) {
        Run run = begin((Formulas){ .method = SGD, .lr = rates[i], .p = { 4, 1 } });
        advance(&run, curvatures, none, 50);
        require_equal(run.w->data[0], 4 * pow(1 - rates[i], 50));
        require_equal(run.w->data[3], pow(1 - 25 * rates[i], 50));
        printf("%.3f  %.4f  %.2g\n", rates[i], weight(&run, 0), weight(&run, 1));
        end(&run);
    }
}

/* The steps of a weight whose gradient is 1. */
static void print_memory(void)
{
    printf("[memory]\nt   step / lr\n");
    Run run = begin((Formulas){ .method = SGD, .lr = 0.001, .beta = 0.9 });
    for (int t = 1; t <= 60; t++) {
        const double before = weight(&run, 0);
        advance(&run, none, (double[]){ 1, 0 }, 1);
        if (t <= 3 || t % 30 == 0)
            printf("%-2d  %.2f\n", t, (before - weight(&run, 0)) / 0.001);
    }
    end(&run);
}

/* The distance to the minimum after 10, 30 and 100 steps. */
static void print_distances(const char *name, Method method, double lr, double beta)
{
    static const int steps[] = { 10, 20, 70 };
    Run run = begin((Formulas){ .method = method, .lr = lr, .beta = beta, .p = { 4, 1 } });
    printf("%-8s", name);
    for (int i = 0; i < 3; i++) {
        advance(&run, curvatures, none, steps[i]);
        printf("  %7.2g", hypot(weight(&run, 0), weight(&run, 1)));
    }
    printf("\n");
    end(&run);
}

static void print_adam(void)
{
    printf("[adam]\nt      g    m      v  m_hat sqrt(v_hat)\n");
    Run run = begin((Formulas){ .method = ADAM, .lr = 0.1, .beta = 0.9, .p = { 4, 1 } });
    const Formulas *f = &run.f;
    double step[3], biased[3];
    for (int t = 0; t < 3; t++) {
        const double p = weight(&run, 1);
        advance(&run, curvatures, none, 1);
        printf("%d  %5.2f %.2f  %.3f  %5.2f %.2f\n", t + 1, 25 * p, f->m[1], f->v[1], f->m_hat[1],
               sqrt(f->v_hat[1]));
        step[t] = (p - weight(&run, 1)) / 0.1;
        biased[t] = f->m[1] / sqrt(f->v[1]);
    }
    printf("step / lr          %.2f %.2f %.2f\n", step[0], step[1], step[2]);
    printf("without correction %.2f %.2f %.2f\n", biased[0], biased[1], biased[2]);
    end(&run);
}

static void print_rectification(void)
{
    static const int times[] = { 6, 10, 100, 1000, 10000 };
    printf("[rectification]\nt      rho_t    deviation  r\n");
    for (int i = 0; i < 5; i++)
        printf("%-5d  %7.2f  %.3f      %.3f\n", times[i], rho_at(times[i]),
               sqrt(variance(rho_at(times[i]))), rectification(times[i]));
}

/* The weights begin at 1; their gradients are 0.01 and 100, with alternating signs. */
static void print_decay(const char *name, Method method)
{
    Run run = begin((Formulas){
        .method = method, .lr = 0.001, .beta = 0.9, .weight_decay = 0.1, .p = { 1, 1 } });
    for (int t = 0; t < 5000; t++) {
        advance(&run, none, (double[]){ 0.01, 100 }, 1);
        advance(&run, none, (double[]){ -0.01, -100 }, 1);
    }
    printf("%-5s  %.3f       %.3f\n", name, weight(&run, 0), weight(&run, 1));
    end(&run);
}

int main(void)
{
    tape = tape_new(device_open("plain"));
    print_rates();
    print_memory();
    printf("[momentum]\n               10       30      100\n");
    print_distances("SGD", SGD, 0.077, 0);
    print_distances("momentum", SGD, 0.1, 0.5);
    print_adam();
    print_rectification();
    printf("[decay]\n       |g| = 0.01  |g| = 100\n");
    print_decay("Adam", ADAM);
    print_decay("AdamW", ADAMW);
    printf("[paths]\n               10       30      100\n");
    print_distances("SGD", SGD, 0.07, 0);
    print_distances("momentum", SGD, 0.07, 0.5);
    print_distances("Adam", ADAM, 0.07, 0.5);
    print_distances("RAdam", RADAM, 0.07, 0.5);
    print_distances("Muon", MUON, 0.07, 0.5);
    tape_free(tape);
    return !right;
}
