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

void add_parts(Device *device, Gradient dw, const Real *partial, int64_t parts, int64_t C)
{
    if (dw.data)
        kernels_on(device, TENSOR_REAL)->column_sums(dw, partial, parts, C);
}
