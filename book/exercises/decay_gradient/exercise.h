/* Exercise 10.2: the gradient of a decay. */
#include <math.h>
#include <tapegrad.h>

enum { MAX_N = 6, MAX_DM = 12 }; /* positions; D times M */

/* <x, y> */
static inline Real dot(const Real *x, const Real *y, int n)
{
    Real sum = 0;
    for (int c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* S <- S + x y^T, S [D, M] */
static inline void add_outer_product(Real *S, const Real *x, const Real *y, int D, int M)
{
    for (int d = 0; d < D; d++)
        for (int m = 0; m < M; m++)
            S[d * M + m] += x[d] * y[m];
}

void decay_gradient(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                    const Real *l, int N, int D, int M);
