/* Chapter 9: the ranks of n x n matrices of weights, of n queries and n keys with D = 2. A rank is
 * the number of pivots of elimination. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { POINTS = 8 };
typedef double Kernel(const Real *q, const Real *k);

static double phi(Real x)
{
    return (double)x > 0 ? (double)x + 1 : exp((double)x);
}

static double exponential(const Real *q, const Real *k)
{
    return exp((double)(q[0] * k[0] + q[1] * k[1]));
}

static double elu_plus_one(const Real *q, const Real *k)
{
    return phi(q[0]) * phi(k[0]) + phi(q[1]) * phi(k[1]);
}

static double squared(const Real *q, const Real *k)
{
    return pow(1 + (double)q[0] * (double)k[0] + (double)q[1] * (double)k[1], 2);
}

static int rank(Kernel *kernel, int n, Real q[POINTS][2], Real k[POINTS][2])
{
    double A[POINTS][POINTS];
    int found = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            A[i][j] = kernel(q[i], k[j]);
    for (int c = 0; c < n; c++) {
        int pivot = found;
        for (int r = found; r < n; r++)
            pivot = fabs(A[r][c]) > fabs(A[pivot][c]) ? r : pivot;
        if (pivot >= n || fabs(A[pivot][c]) < 1e-9)
            continue;
        for (int j = 0; j < n; j++) {
            const double saved = A[pivot][j];
            A[pivot][j] = A[found][j];
            A[found][j] = saved;
        }
        for (int r = found + 1; r < n; r++) {
            const double factor = A[r][c] / A[found][c];
            for (int j = c; j < n; j++)
                A[r][j] -= factor * A[found][j];
        }
        found++;
    }
    return found;
}

int main(void)
{
    Real q[POINTS][2], k[POINTS][2];
    Random random = random_new(/*seed*/ 1, random_stream("rank"));
    random_normal(&random, q[0], 2 * POINTS);
    random_normal(&random, k[0], 2 * POINTS);
    printf("[rank]\n  n   e^(q.k)   elu + 1   (1 + q.k)^2\n");
    for (int n = 1; n <= POINTS; n++)
        printf("%3d%10d%10d%14d\n", n, rank(exponential, n, q, k), rank(elu_plus_one, n, q, k),
               rank(squared, n, q, k));
    return rank(exponential, POINTS, q, k) != POINTS || rank(elu_plus_one, POINTS, q, k) != 2;
}
