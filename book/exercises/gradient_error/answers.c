/* Answers to exercise 2.1, compiled with -Dright, -Dtiny, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

double gradient_error(Function *f, Real *x, int n, const Real *dx)
{
#ifdef tiny
    const double step = 1e-12;
#elif defined vanishing
    const double step = 1e-20;
#elif defined large
    const double step = 0.1;
#else
    const double step = 1e-5;
#endif
    int visited = n, size = n;
#ifdef last_missing
    visited = n - 1;
#elif defined first_alone
    visited = 1;
#elif defined other_size
    size = n - 1;
#endif
    double error = 0, scale = 0, sum = 0, squares = 0, squared_errors = 0;
    for (int j = 0; j < visited; j++) {
        const double before = x[j];
#ifdef relative_step
        const double h = step * fmax(1, fabs(before));
#else
        const double h = step;
#endif
        x[j] = before + h;
#ifdef together
        for (int i = 0; i < n; i++)
            x[i] += i == j ? 0 : h;
#endif
        const double up = f(x, size);
#ifdef one_side
        x[j] = before;
#else
        x[j] = before - h;
#endif
#ifdef together
        for (int i = 0; i < n; i++)
            x[i] -= i == j ? 0 : 2 * h;
#endif
        const double down = f(x, size);
#ifdef together
        for (int i = 0; i < n; i++)
            x[i] += i == j ? 0 : h;
#endif
#if defined divided_by_h || defined one_side
        const double difference = (up - down) / h;
#elif defined precedence
        const double difference = (up - down) / 2 * h;
#elif defined undivided
        const double difference = up - down;
#else
        const double difference = (up - down) / (2 * h);
#endif
#ifdef last_kept
        if (j < n - 1)
            x[j] = before;
#elif !defined kept
        x[j] = before;
#endif
#ifdef without_signs
        const double d = fabs(fabs(dx[j]) - fabs(difference));
#elif defined only_above
        const double d = dx[j] - difference;
#elif defined only_below
        const double d = difference - dx[j];
#elif defined by_each
        const double d = fabs(dx[j] - difference) / fabs(difference);
#else
        const double d = fabs(dx[j] - difference);
#endif
#ifdef nan_passes
        error = fmax(error, d);
#elif defined nan_lost
        error = d <= error ? error : d;
#else
        error = isnan(error) || d <= error ? error : d;
#endif
        sum += d;
        squares += difference * difference;
        squared_errors += d * d;
#ifdef by_dx
        scale = fmax(scale, fabs(dx[j]));
#else
        scale = fmax(scale, fabs(difference));
#endif
    }
#if defined absolute || defined by_each
    scale = 1;
#elif defined added
    error = sum;
#elif defined mean
    error = sum / n;
#elif defined norms
    error = sqrt(squared_errors);
    scale = sqrt(squares);
#elif defined infinite
    error = isnan(error) ? INFINITY : error;
#elif defined unknown
    error += 0.5;
#elif defined nothing
    error = 0;
    scale = 0;
#endif
    (void)(sum + squares + squared_errors);
    return error / scale;
}
