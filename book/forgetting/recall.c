/* How far the answers of a memory of 8 pairs are off, whose keys overlap. Returns 1 if the error of
 * a sum is not near the derived one. */
#include "memory.h"

enum { PAIRS = 8, DRAWS = 1000, VALUE = 4, MAX_D = 64 };

/* Draws keys of length 1 and values. Adds to errors the |answer - v|^2 of a sum, of the delta rule,
 * and of the delta rule after PASSES passes; returns the sum of |v|^2. */
static double recall(Random *random, int D, double errors[3])
{
    enum { PASSES = 100 };
    Real normal[PAIRS * (MAX_D + VALUE)];
    double k[PAIRS][MAX_D], v[PAIRS][VALUE], u[VALUE], size = 0;
    double S[3][MAX_D * VALUE] = { 0 };
    random_normal(random, normal, PAIRS * (MAX_D + VALUE));
    for (int i = 0; i < PAIRS; i++) {
        for (int d = 0; d < D; d++)
            k[i][d] = (double)normal[i * MAX_D + d];
        for (int m = 0; m < VALUE; m++)
            v[i][m] = (double)normal[PAIRS * MAX_D + i * VALUE + m];
        const double length = sqrt(dot(k[i], k[i], D));
        for (int d = 0; d < D; d++)
            k[i][d] /= length;
        size += dot(v[i], v[i], VALUE);
    }
    for (int i = 0; i < PAIRS * PASSES; i++) {
        const double *k_i = k[i % PAIRS], *v_i = v[i % PAIRS];
        if (i < PAIRS) {
            update(S[0], 1, k_i, v_i, D, VALUE);
            correct(S[1], u, k_i, v_i, 1, D, VALUE);
        }
        correct(S[2], u, k_i, v_i, 1, D, VALUE);
    }
    for (int rule = 0; rule < 3; rule++)
        for (int i = 0; i < PAIRS; i++) {
            answer(u, S[rule], k[i], D, VALUE);
            for (int m = 0; m < VALUE; m++)
                errors[rule] += (u[m] - v[i][m]) * (u[m] - v[i][m]);
        }
    return size;
}

static void print_recall(void)
{
    Random random = random_new(/*seed*/ 1, random_stream("recall"));
    printf("[recall]\n   D  sqrt(7/D)   sum  delta  100 passes\n");
    for (int D = 4; D <= MAX_D; D *= 2) {
        double errors[3] = { 0 }, size = 0;
        for (int draw = 0; draw < DRAWS; draw++)
            size += recall(&random, D, errors);
        printf("%4d %10.2f %5.2f %6.2f %11.2f\n", D, sqrt(7.0 / D), sqrt(errors[0] / size),
               sqrt(errors[1] / size), sqrt(errors[2] / size));
        failed |= fabs(sqrt(errors[0] / size) - sqrt(7.0 / D)) > 0.05 * sqrt(7.0 / D);
    }
}

int main(void)
{
    print_recall();
    return failed;
}
