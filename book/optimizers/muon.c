/* The numbers of chapter 7 on Muon: the polynomial, and a step of the library for a gradient whose
 * singular values are known. */
#include "bowl.h"

#include <stdio.h>

static void print_polynomial(void)
{
    printf("[polynomial]\ns     after 1     2     3     4     5\n");
    for (int i = 0; i < 4; i++) {
        static const double values[] = { 1, 0.1, 0.01, 0.001 };
        printf("%-7g", values[i]);
        for (int times = 1; times <= 5; times++)
            printf(" %.3f", polynomial(values[i], times));
        printf("\n");
    }
    double least = 2, most = 0;
    for (int i = 100; i <= 10000; i++) {
        least = fmin(least, polynomial(i / 1e4, 5));
        most = fmax(most, polynomial(i / 1e4, 5));
    }
    printf("from 0.01 to 1: %.3f to %.3f\n", least, most);
    right &= least > 0.68 && most < 1.14;
}

/* The gradient U diag(3, 0.3), U a rotation by 30 degrees. The step keeps U. */
static void print_step(void)
{
    const double lr = 0.01, cosine = cos(acos(-1) / 6), sine = 0.5, s[] = { 3, 0.3 };
    const double norm = hypot(s[0], s[1]), U[] = { cosine, -sine, sine, cosine };
    Run run = begin((Formulas){ .method = MUON, .lr = lr, .beta = 0.95 });
    Real g[4];
    for (int i = 0; i < 4; i++)
        g[i] = (Real)(U[i] * s[i % 2]);
    library_step(&run, (Real[4]){ 0 }, g);
    const Real *w = run.w->data;
    printf("[singular]\n               s_1    s_2\ngradient       %.3f  %.3f\n", s[0], s[1]);
    printf("by its norm    %.3f  %.3f\nMuon's step  ", s[0] / norm, s[1] / norm);
    for (int i = 0; i < 2; i++)
        printf("  %.3f", hypot((double)w[i], (double)w[2 + i]) / lr);
    printf("\n");
    for (int i = 0; i < 4; i++)
        require_equal(w[i] / (Real)lr, -U[i] * polynomial(s[i % 2] / norm, 5));
    end(&run);
}

int main(void)
{
    tape = tape_new(device_open("plain"));
    print_polynomial();
    print_step();
    tape_free(tape);
    return !right;
}
