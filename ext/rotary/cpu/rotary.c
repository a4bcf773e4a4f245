/* rotary in bf16. */
#include "ext/rotary/kernels.h"
#include "ops/cpu/shared/bf16.h"

static void rotary_cos_sin_bf16(Real *cos_sin, const int32_t *positions, double base, int64_t P,
                                int64_t pairs)
{
    rotary_plain.cos_sin(cos_sin, positions, base, P, pairs);
}

static void rotary_rotate_bf16(Gradient out, const Real *x, const Real *cos_sin, Rotary r)
{
    const int64_t C = r.H * r.D;
    BF16_BLOCKS(block, r.R, C, 2) {
        const Gradient out_rows = bf16_gradient(&block, out, C);
        Rotary rows = r;
        rows.R = block.rows;
        rows.first = block.first;
        rotary_plain.rotate(out_rows, bf16_read(&block, x, C), cos_sin, rows);
        bf16_write(&block, out.data, out_rows.data, C);
    }
}

const RotaryKernels rotary_cpu_bf16 = { rotary_cos_sin_bf16, rotary_rotate_bf16 };
