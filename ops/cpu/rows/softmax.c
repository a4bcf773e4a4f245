/* softmax and log_softmax in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"
#include "ops/shared/rows.h"

typedef void Row(Real *out, const Real *x, int64_t C);
typedef void RowBackward(Gradient dx, const Real *g, const Real *out, int64_t C);

static void rows_in_bf16(Row *of_row, Real *out, const Real *x, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 2) {
        const Real *x_rows = bf16_read(&block, x, C);
        Real *out_rows = bf16_buffer(&block, C);
        for (int64_t i = 0; i < block.rows * C; i += C)
            of_row(out_rows + i, x_rows + i, C);
        bf16_write(&block, out, out_rows, C);
    }
}

static void rows_backward_in_bf16(RowBackward *of_row, Gradient dx, const Real *dout,
                                  const Real *out, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 3) {
        const Gradient dx_rows = bf16_gradient(&block, dx, C);
        const Real *dout_rows = bf16_read(&block, dout, C), *out_rows = bf16_read(&block, out, C);
        for (int64_t i = 0; i < block.rows * C; i += C)
            of_row(gradient_from(dx_rows, i), dout_rows + i, out_rows + i, C);
        bf16_write(&block, dx.data, dx_rows.data, C);
    }
}

void softmax_forward_bf16(Real *out, const Real *x, int64_t R, int64_t C)
{
    rows_in_bf16(softmax_row, out, x, R, C);
}

void softmax_backward_bf16(Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C)
{
    rows_backward_in_bf16(softmax_row_backward, dx, dout, out, R, C);
}

void log_softmax_forward_bf16(Real *out, const Real *x, int64_t R, int64_t C)
{
    rows_in_bf16(log_softmax_row, out, x, R, C);
}

void log_softmax_backward_bf16(Gradient dx, const Real *dout, const Real *out, int64_t R, int64_t C)
{
    rows_backward_in_bf16(log_softmax_row_backward, dx, dout, out, R, C);
}
