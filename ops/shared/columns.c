#include "ops/shared/columns.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void column_sums_plain(Gradient sums, const Real *x, int64_t R, int64_t C)
{
    EACH(c, C) {
        double sum = 0;
        for (int64_t row = 0; row < R; row++)
            sum += x[row * C + c];
        gradient_add(sums, c, (Real)sum);
    }
}
