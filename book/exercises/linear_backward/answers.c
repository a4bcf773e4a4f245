/* Answers to exercise 4.1, compiled with -Dright, -Dmean, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <stddef.h>

#ifdef last_term
#define ADD =
#else
#define ADD +=
#endif

#ifdef w_as_inputs
#define DX g[r * O + o] * w[i * O + o]
#elif defined own_operand
#define DX g[r * O + o] * x[r * I + i]
#elif defined no_upstream
#define DX w[o * I + i]
#elif defined unknown
#define DX g[r * O + o] * w[o * I + i] / 2
#else
#define DX g[r * O + o] * w[o * I + i]
#endif

#ifdef dw_transposed
#define DW_AT i *O + o
#elif defined outside
#define DW_AT o *I + i + 1
#else
#define DW_AT o *I + i
#endif
#ifdef g_in_dw
#define DW g[o * R + r] * x[r * I + i]
#elif defined mean
#define DW g[r * O + o] * x[r * I + i] / R
#elif defined own_operand
#define DW g[r * O + o] * w[o * I + i]
#elif defined no_upstream
#define DW x[r * I + i]
#else
#define DW g[r * O + o] * x[r * I + i]
#endif

#ifdef sum_of_row
#define DB_AT r
#else
#define DB_AT o
#endif
#ifdef g_in_db
#define DB g[o * R + r]
#elif defined mean
#define DB g[r * O + o] / R
#elif defined db_counts || defined no_upstream
#define DB 1
#else
#define DB g[r * O + o]
#endif

#ifdef replaces
static void clear(Real *values, int n)
{
    for (int i = 0; i < n; i++)
        values[i] = 0;
}
#endif

void linear_backward(Real *dx, Real *dw, Real *db, const Real *g, const Real *x, const Real *w,
                     int R, int I, int O)
{
#ifdef replaces
    clear(dx, R * I);
    clear(dw, O * I);
    clear(db, O);
#elif defined crash
    *(volatile Real *)NULL = 0;
#elif defined loop_end
    R--;
#endif
    for (int r = 0; r < R; r++)
        for (int o = 0; o < O; o++) {
#ifndef without_db
            db[DB_AT] ADD DB;
#endif
            for (int i = 0; i < I; i++) {
                dx[r * I + i] ADD DX;
                dw[DW_AT] ADD DW;
            }
        }
}
