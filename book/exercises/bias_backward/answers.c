/* Answers to exercise 3.1, compiled with -Dright, -Dmean, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#ifdef stores
#define add(i, value) db.data[i] = value
#elif defined adds_always
#define add(i, value) db.data[i] += value
#else
#define add(i, value) gradient_add(db, i, value)
#endif
#ifdef row_stride
#define AT (r * R + c)
#elif defined column_major
#define AT (c * R + r)
#else
#define AT (r * C + c)
#endif

void bias_backward(Gradient db, const Real *g, int R, int C)
{
#ifdef wrong_axis
    for (int r = 0; r < R; r++) {
        Real sum = 0;
        for (int c = 0; c < C; c++)
            sum += g[r * C + c];
        add(r, sum);
    }
#elif defined each_row
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            add(c, g[r * C + c]);
#else
    Real all = 0;
    for (int i = 0; i < R * C; i++)
        all += g[i];
#ifdef loop_end
    for (int c = 0; c <= C; c++) {
#elif defined one_less
    for (int c = 0; c < C - 1; c++) {
#else
    for (int c = 0; c < C; c++) {
#endif
        Real sum = 0;
        for (int r = 0; r < R; r++)
            sum += g[AT];
#ifdef mean
        add(c, sum / R);
#elif defined first_row
        add(c, g[c]);
#elif defined counts
        add(c, R);
#elif defined everything
    add(c, all);
#elif defined negative
    add(c, -sum);
#elif defined unknown
    add(c, sum + (Real)0.5);
#else
    add(c, sum);
#endif
    }
#endif
}
