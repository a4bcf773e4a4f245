/* The binary operations, where and broadcasts in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* A broadcast operand: converted as a whole if it is repeated, else one block at a time. */
typedef struct Repeated {
    const Real *x;
    Broadcast view;
    Real *converted; /* or NULL */
} Repeated;

static Repeated repeated_of(const Real *x, Broadcast view)
{
    const int64_t count = view.P * view.Q;
    if (count == broadcast_count(view))
        return (Repeated){ x, view, NULL };
    Real *converted = device_workspace(count);
    convert_elements(TENSOR_REAL, converted, TENSOR_BF16, x, count);
    return (Repeated){ converted, view, converted };
}

static const Real *operand_block(Bf16Block *block, const Repeated *operand)
{
    if (!operand->converted)
        return bf16_read(block, operand->x, 1);
    return broadcast_block(bf16_buffer(block, 1), operand->x, operand->view, block->first,
                           block->rows);
}

void binary_forward_bf16(BinaryFunction f, Real *out, const Real *a, Broadcast a_view,
                         const Real *b, Broadcast b_view, int64_t n)
{
    const Repeated a_operand = repeated_of(a, a_view), b_operand = repeated_of(b, b_view);
    BF16_BLOCKS(block, n, 1, 3) {
        const Real *a_block = operand_block(&block, &a_operand);
        const Real *b_block = operand_block(&block, &b_operand);
        Real *out_block = bf16_buffer(&block, 1);
        binary_loops(f).forward(out_block, a_block, b_block, block.rows);
        bf16_write(&block, out, out_block, 1);
    }
    device_workspace_free(b_operand.converted);
    device_workspace_free(a_operand.converted);
}

void binary_backward_bf16(BinaryFunction f, int side, Gradient dx, const Real *dout,
                          const Real *out, const Real *read, Broadcast view)
{
    const int64_t n = broadcast_count(view);
    const Repeated operand = repeated_of(read, view);
    BF16_BLOCKS(block, n, 1, 4) {
        const Gradient dx_block = bf16_gradient(&block, dx, 1);
        const Real *dout_block = bf16_read(&block, dout, 1);
        const Real *out_block = bf16_read(&block, out, 1);
        const Real *read_block = operand_block(&block, &operand);
        binary_loops(f).backward[side](dx_block, dout_block, out_block, read_block, block.rows);
        bf16_write(&block, dx.data, dx_block.data, 1);
    }
    device_workspace_free(operand.converted);
}

/* A block's operands are contiguous. */
static Broadcast view_of_block(const Bf16Block *block)
{
    return (Broadcast){ 1, 1, 1, block->rows, 1 };
}

void where_forward_bf16(Real *out, Choice in, int64_t n)
{
    const Repeated c = repeated_of(in.c, in.c_view), a = repeated_of(in.a, in.a_view),
                   b = repeated_of(in.b, in.b_view);
    BF16_BLOCKS(block, n, 1, 4) {
        const Broadcast view = view_of_block(&block);
        Real *out_block = bf16_buffer(&block, 1);
        const Choice in_block = { operand_block(&block, &c),
                                  operand_block(&block, &a),
                                  operand_block(&block, &b),
                                  view,
                                  view,
                                  view };
        where_forward_plain(out_block, in_block, block.rows);
        bf16_write(&block, out, out_block, 1);
    }
    device_workspace_free(b.converted);
    device_workspace_free(a.converted);
    device_workspace_free(c.converted);
}

void where_backward_bf16(Gradient dx, bool of_a, const Real *dout, const Real *c, Broadcast c_view)
{
    const Repeated operand = repeated_of(c, c_view);
    BF16_BLOCKS(block, broadcast_count(c_view), 1, 3) {
        const Gradient dx_block = bf16_gradient(&block, dx, 1);
        const Real *dout_block = bf16_read(&block, dout, 1);
        where_backward_plain(dx_block, of_a, dout_block, operand_block(&block, &operand),
                             view_of_block(&block));
        bf16_write(&block, dx.data, dx_block.data, 1);
    }
    device_workspace_free(operand.converted);
}

void broadcast_copy_bf16(Gradient out, Real factor, const Real *x, Broadcast b, bool real_x)
{
    const Repeated operand = real_x ? (Repeated){ x, b, NULL } : repeated_of(x, b);
    BF16_BLOCKS(block, broadcast_count(b), 1, 2) {
        const Gradient out_block = bf16_gradient(&block, out, 1);
        const Real *x_block =
            real_x ? broadcast_block(bf16_buffer(&block, 1), x, b, block.first, block.rows)
                   : operand_block(&block, &operand);
        PRAGMA(omp simd)
        for (int64_t i = 0; i < block.rows; i++)
            gradient_add(out_block, i, factor * x_block[i]);
        bf16_write(&block, out.data, out_block.data, 1);
    }
    device_workspace_free(operand.converted);
}
