/* Answers to exercise 5.2, compiled with -Dright, -Dnegative, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

void cross_entropy_backward(Gradient dx, const Real *x, const int *t, Real g, int N, int C)
{
    Real factor = g / N, sum_of_all = 0;
#ifdef without_mean
    factor = g;
#elif defined mean_twice
    factor = g / (N * N);
#elif defined mean_of_elements
    factor = g / (N * C);
#elif defined bare
    factor = 1;
#elif defined without_g
    factor = (Real)1 / N;
#elif defined negative
    factor = -g / N;
#endif
    for (int i = 0; i < N * C; i++)
        sum_of_all += exp(x[i]);
#ifdef one_row
    N = 1;
#elif defined loop_end
    N++;
#endif
    for (int r = 0; r < N; r++) {
        const Real *row = x + r * C;
        Real m = row[0], sum = 0;
#ifdef max_from_0
        m = 0;
#endif
        for (int c = 1; c < C; c++)
            m = fmax(m, row[c]);
#ifdef max_of_all
        for (int i = 0; i < N * C; i++)
            m = fmax(m, x[i]);
#elif defined no_max || defined log_without_max
        m = 0;
#endif
        for (int c = 0; c < C; c++)
            sum += exp(row[c] - m);
        for (int c = 0; c < C; c++) {
            Real p = exp(row[c] - m) / sum, y = c == t[r];
#ifdef log_without_max
            p = exp(row[c] - log(sum));
#elif defined all_rows
            p = exp(row[c]) / sum_of_all;
#elif defined without_y
            y = 0;
#elif defined first_target
            y = c == t[0];
#elif defined target_alone
            p *= y;
#elif defined count_from_1
            y = c + 1 == t[r];
#endif
#ifdef y_without_factor
            gradient_add(dx, r * C + c, factor * p - y);
#elif defined stores
            dx.data[r * C + c] = factor * (p - y);
#elif defined subtracts_later
            gradient_add(dx, r * C + c, factor * p);
            if (c == t[r])
                dx.data[r * C + c] -= factor;
#elif defined added_twice
            gradient_add(dx, r * C + c, factor * p);
            if (c == t[r])
                gradient_add(dx, r * C + c, -factor);
#else
            gradient_add(dx, r * C + c, factor * (p - y));
#endif
        }
    }
}
