/* Answers to exercise 6.2, compiled with -Dright, -Dplus, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

#ifdef y_per_row
#define FIRST_Y (row * C)
#else
#define FIRST_Y 0
#endif
#ifdef without_root
#define ROOT(sum) (sum)
#else
#define ROOT(sum) sqrt(sum)
#endif

void cosine_backward(Gradient dx, const Real *g, const Real *x, const Real *y, int R, int C)
{
    Real xx = 0, yy = 0, xy = 0;
    for (int c = 0; c < C; c++)
        yy += y[c] * y[c];
#ifdef all_rows
    for (int i = 0; i < R * C; i++) {
        xx += x[i] * x[i];
        xy += x[i] * y[i % C];
    }
#endif
    for (int row = 0; row < R; row++) {
#if !defined kept && !defined all_rows
        xx = xy = 0;
#endif
#ifdef y_per_row
        yy = 0;
        for (int c = 0; c < C; c++)
            yy += y[row * C + c] * y[row * C + c];
#endif
#ifndef all_rows
        for (int c = 0; c < C; c++) {
            xx += x[row * C + c] * x[row * C + c];
            xy += x[row * C + c] * y[FIRST_Y + c];
        }
#endif
        const Real p = 1 / ROOT(xx), q = 1 / ROOT(yy), out = p * q * xy;
        for (int c = 0; c < C; c++) {
            const int i = row * C + c;
            const Real yc = y[FIRST_Y + c];
#ifdef length_constant
            gradient_add(dx, i, g[row] * yc * p * q + 0 * out);
#elif defined plus
            gradient_add(dx, i, g[row] * p * (q * yc + out * p * x[i]));
#elif defined one_length
            gradient_add(dx, i, g[row] * (p * q * yc - out * p * x[i]));
#elif defined no_upstream
            gradient_add(dx, i, p * (q * yc - out * p * x[i]));
#elif defined first_upstream
            gradient_add(dx, i, g[0] * p * (q * yc - out * p * x[i]));
#elif defined dot_product
            gradient_add(dx, i, g[row] * p * (q * yc - xy * p * x[i]) + 0 * out);
#elif defined of_y
            gradient_add(dx, i, g[row] * q * (p * x[i] - out * q * yc));
#elif defined without_y
            gradient_add(dx, i, g[row] * p * (yc - out / q * p * x[i]));
#elif defined two_terms /* the right one, in other words */
            gradient_add(dx, i, g[row] * (q * yc / sqrt(xx) - q * xy * x[i] / pow(xx, 1.5)));
#elif defined negative
            gradient_add(dx, i, g[row] * p * (out * p * x[i] - q * yc));
#elif defined stores
            dx.data[i] = g[row] * p * (q * yc - out * p * x[i]);
#else
            gradient_add(dx, i, g[row] * p * (q * yc - out * p * x[i]));
#endif
        }
    }
}
