/* What the factor 1 / sqrt D is for, and online softmax of one row. Returns 1 if the row in tiles
 * differs from the whole row. */
#include "attention.h"

#include <stdio.h>
#include <tapegrad.h>

static bool failed;

/* 16 keys per query, of 64 normal numbers: root mean square of the scores, mean of the largest P */
static void print_scale(void)
{
    enum { ROWS = 200, KEYS = 16, SIZE = 64 };
    double squares = 0, largest[2] = { 0, 0 };
    Random random = random_new(1, 1);
    for (int row = 0; row < ROWS; row++) {
        Real q[SIZE], k[SIZE];
        double s[KEYS] = { 0 }, m = -INFINITY;
        random_normal(&random, q, SIZE);
        for (int j = 0; j < KEYS; j++) {
            random_normal(&random, k, SIZE);
            for (int c = 0; c < SIZE; c++)
                s[j] += (double)(q[c] * k[c]);
            squares += s[j] * s[j] / (ROWS * KEYS);
            m = fmax(m, s[j]);
        }
        for (int scaled = 0; scaled < 2; scaled++) {
            double l = 0;
            for (int j = 0; j < KEYS; j++)
                l += exp((s[j] - m) / (scaled ? sqrt(SIZE) : 1));
            largest[scaled] += 1 / l / ROWS;
        }
    }
    printf("[scale]\n               size  largest P\n");
    printf("q.k           %5.1f  %9.2f\n", sqrt(squares), largest[0]);
    printf("q.k / sqrt D  %5.1f  %9.2f\n", sqrt(squares / SIZE), largest[1]);
}

/* Online softmax of a row of six scores in three tiles, with v = 1, ..., 6 in one column */
static void print_row(void)
{
    const double s[6] = { 1, 2, 4, 3, 0, 2 },
                 v[6][M] = { { 1 }, { 2 }, { 3 }, { 4 }, { 5 }, { 6 } };
    double m = -INFINITY, l = 0, o[M] = { 0 }, sum = 0, sum_v = 0, wrong = 0, wrong_v = 0;
    printf("[row]\nscores  factor  m       l       o\n");
    for (int j = 0; j < 6; j += 2) {
        const double before = m;
        add_tile(&m, &l, o, s + j, v + j, 2);
        printf("%.0f, %.0f    %.4f  %.0f %7.4f %7.4f\n", s[j], s[j + 1], exp(before - m), m, l,
               o[0]);
        for (int t = j; t < j + 2; t++) {
            sum += exp(s[t]);
            sum_v += exp(s[t]) * v[t][0];
            wrong += exp(s[t] - m);
            wrong_v += exp(s[t] - m) * v[t][0];
        }
    }
    printf("out = o / l          %.4f\n", o[0] / l);
    printf("the whole row        %.4f\n", sum_v / sum);
    printf("without the factor   %.4f\n", wrong_v / wrong);
    failed |= !(fabs(o[0] / l - sum_v / sum) < 1e-12);
}

int main(void)
{
    print_scale();
    print_row();
    return failed;
}
