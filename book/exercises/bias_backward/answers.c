/* Answers to exercise 3.1 */
#include "exercise.h"
#include "../answer.h"

static void wrong_axis(Gradient db, const Real *g, int R, int C)
{
    for (int r = 0; r < R; r++) {
        Real sum = 0;
        for (int c = 0; c < C; c++)
            sum += g[r * C + c];
        add(db, r, sum);
    }
}

static void each_row(Gradient db, const Real *g, int R, int C)
{
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            add(db, c, g[r * C + c]);
}

static void each_column(Gradient db, const Real *g, int R, int C)
{
    Real all = 0;
    for (int i = 0; i < R * C; i++)
        all += g[i];
    for (int c = 0; c < C + is("loop_end") - is("one_less"); c++) {
        Real sum = 0;
        for (int r = 0; r < R; r++)
            sum += g[is("row_stride") ? r * R + c : is("column_major") ? c * R + r : r * C + c];
        add(db, c,
            is("mean")         ? sum / R
            : is("first_row")  ? g[c]
            : is("counts")     ? R
            : is("everything") ? all
            : is("negative")   ? -sum
            : is("unknown")    ? sum + 0.5
                               : sum);
    }
}

void bias_backward(Gradient db, const Real *g, int R, int C)
{
    (is("wrong_axis") ? wrong_axis : is("each_row") ? each_row : each_column)(db, g, R, C);
}
