/* The decay's gradient as floats: the sum of q.dq - k.dk, whose products have a pair without decay,
 * and the sum of terms that all decay. Returns 1 if the second is inexact. */
#include "memory.h"

enum { N = 4096, D = 16 }; /* M = D */
static Real q[N][D], k[N][D], v[N][D], g[N][D];

/* dl by both sums, with states and results rounded to float; in double, where exact. The sums over
 * positions are always in double. */
static void decay_gradient(double l, bool exact, double dl[2][N])
{
    static double S[D * D], R[D * D], rows[4][D], past[2][N];
    const double decay = exact ? exp(l) : (double)expf((float)l);
    double sum = 0;
    memset(S, 0, sizeof S);
    memset(R, 0, sizeof R);
    for (int step = 0; step < 2 * N; step++) {
        const bool forward = step < N;
        const int i = forward ? step : 2 * N - 1 - step;
        const Real *const from[4] = { q[i], k[i], v[i], g[i] };
        double *T = forward ? S : R, result[2][D];
        for (int r = 0; r < 4; r++)
            for (int d = 0; d < D; d++)
                rows[r][d] = (double)from[r][d];
        for (int d = 0; d < D * D; d++)
            T[d] = exact ? decay * T[d] : (double)(float)(decay * T[d]);
        apply(result[0], T, forward ? rows[3] : rows[2], D, D); /* Z g or R' v */
        update(T, 1, forward ? rows[1] : rows[0], forward ? rows[2] : rows[3], D, D);
        for (int d = 0; d < D * D; d++)
            T[d] = exact ? T[d] : (double)(float)T[d];
        apply(result[1], T, forward ? rows[3] : rows[2], D, D); /* S g or R v: dq or dk */
        for (int form = 0; form < 2; form++) {
            for (int d = 0; d < D; d++)
                result[form][d] = exact ? result[form][d] : (double)(float)result[form][d];
            const double product = dot(forward ? rows[0] : rows[1], result[form], D);
            past[form][i] = forward ? product : past[form][i] - product;
        }
    }
    for (int i = N - 1; i >= 0; i--) /* dl_i = dl_{i+1} + q.dq - k.dk */
        dl[0][i] = sum += past[1][i];
    sum = 0;
    for (int i = 0; i < N; i++) { /* dl_{i+1} = dl_i - q.Z g + k.R' v */
        dl[1][i] = sum;
        sum -= past[0][i];
    }
}

int main(void)
{
    static const double decays[] = { -0.01, -0.1, -1, -5, -10 };
    static double exact[2][N], rounded[2][N];
    Random random = random_new(/*seed*/ 1, random_stream("digits"));
    random_normal(&random, q[0], N * D);
    random_normal(&random, k[0], N * D);
    random_normal(&random, v[0], N * D);
    random_normal(&random, g[0], N * D);
    printf("[digits]\n     l  largest |dl|  all pairs   decayed\n");
    for (int row = 0; row < 5; row++) {
        double largest = 0, error[2] = { 0 };
        decay_gradient(decays[row], true, exact);
        decay_gradient(decays[row], false, rounded);
        for (int i = 0; i < N; i++) {
            largest = fmax(largest, fabs(exact[1][i]));
            for (int form = 0; form < 2; form++)
                error[form] = fmax(error[form], fabs(rounded[form][i] - exact[1][i]));
        }
        printf("%6.2f %13.0e %10.0e %9.0e\n", decays[row], largest, error[0] / largest,
               error[1] / largest);
        failed |= !(error[1] / largest < 1e-4);
    }
    return failed;
}
