/* Answers to exercise 6.2 */
#include "exercise.h"
#include "../answer.h"

#include <math.h>

static Real dot(const Real *x, const Real *y, int n, int repeated)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c % repeated];
    return sum;
}

static Real length(Real squares)
{
    return is("without_root") ? squares : sqrt(squares);
}

/* dx_c of a row with the sums xx = x.x, yy = y.y, xy = x.y */
static Real element(Real x, Real y, Real g, Real xx, Real yy, Real xy)
{
    const Real p = 1 / length(xx), q = 1 / length(yy), out = p * q * xy;
    return is("length_constant") ? g * y * p * q
           : is("plus")          ? g * p * (q * y + out * p * x)
           : is("one_length")    ? g * (p * q * y - out * p * x)
           : is("no_upstream")   ? p * (q * y - out * p * x)
           : is("dot_product")   ? g * p * (q * y - xy * p * x)
           : is("of_y")          ? g * q * (p * x - out * q * y)
           : is("without_y")     ? g * p * (y - out / q * p * x)
           : is("two_terms")     ? g * (q * y / sqrt(xx) - q * xy * x / pow(xx, 1.5)) /* right */
           : is("negative")      ? g * p * (out * p * x - q * y)
                                 : g * p * (q * y - out * p * x);
}

void cosine_backward(Gradient dx, const Real *g, const Real *x, const Real *y, int R, int C)
{
    for (int row = 0; row < R; row++) {
        const int begin = is("kept") || is("all_rows") ? 0 : row * C;
        const int end = is("all_rows") ? R * C : (row + 1) * C;
        const Real *own_y = is("y_per_row") ? y + row * C : y;
        const Real xx = dot(x + begin, x + begin, end - begin, end - begin);
        const Real yy = dot(own_y, own_y, C, C), xy = dot(x + begin, own_y, end - begin, C);
        for (int c = 0; c < C; c++)
            add(dx, row * C + c,
                element(x[row * C + c], own_y[c], g[is("first_upstream") ? 0 : row], xx, yy, xy));
    }
}
