/* embedding in bf16: its rows are; the weight and its gradient are Real. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void embedding_forward_bf16(Real *out, const Real *weight, const int32_t *indices, int64_t R,
                            int64_t D)
{
    BF16_BLOCKS(block, R, D, 1) {
        Real *rows = bf16_buffer(&block, D);
        embedding_forward_plain(rows, weight, indices + block.first, block.rows, D);
        bf16_write(&block, out, rows, D);
    }
}

/* Converts dout as a whole: plain divides the columns among the threads, not the rows. */
void embedding_backward_bf16(Gradient dweight, const Real *dout, const int32_t *indices, int64_t R,
                             int64_t V, int64_t D)
{
    Real *converted = device_workspace(R * D);
    cast_cpu((Gradient){ converted, false }, dout, false, R * D);
    embedding_backward_plain(dweight, converted, indices, R, V, D);
    device_workspace_free(converted);
}
