/* Answers to exercise 4.1 */
#include "exercise.h"
#include "../answer.h"

static void clear(Real *values, int n)
{
    for (int i = 0; i < n; i++)
        values[i] = 0;
}

void linear_backward(Real *dx, Real *dw, Real *db, const Real *g, const Real *x, const Real *w,
                     int R, int I, int O)
{
    if (is("crash"))
        write_to_null();
    if (is("replaces")) {
        clear(dx, R * I);
        clear(dw, O * I);
        clear(db, O);
    }
    const Real old = is("last_term") ? 0 : 1, share = is("mean") ? 1 / (Real)R : 1;
    for (int r = 0; r < R - is("loop_end"); r++)
        for (int o = 0; o < O; o++) {
            const Real g_ro = is("no_upstream") ? 1 : g[r * O + o], transposed = g[o * R + r];
            const Real for_b = is("g_in_db") ? transposed : is("db_counts") ? 1 : g_ro;
            Real *to_b = &db[is("sum_of_row") ? r : o];
            if (!is("without_db"))
                *to_b = old * *to_b + for_b * share;
            for (int i = 0; i < I; i++) {
                const Real x_ri = x[r * I + i], w_oi = w[o * I + i];
                const int at = is("dw_transposed") ? i * O + o : o * I + i + is("outside");
                Real *to_x = &dx[r * I + i], *to_w = &dw[at];
                const Real of_x = is("own_operand")   ? x_ri
                                  : is("w_as_inputs") ? w[i * O + o]
                                                      : w_oi;
                const Real of_w = is("own_operand") ? w_oi : x_ri;
                *to_x = old * *to_x + g_ro * of_x / (is("unknown") ? 2 : 1);
                *to_w = old * *to_w + (is("g_in_dw") ? transposed : g_ro) * of_w * share;
            }
        }
}
