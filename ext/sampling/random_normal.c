/* random_normal: n standard normal numbers, four per Philox block, by Box and Muller (1958) as in
 * tensor/philox.h. Element i is number i % 4 of the block i / 4 after the generator's state, on any
 * thread. No gradient flows: the numbers are constants, and the node is not kept. */
#include "ext/sampling/kernels.h"
#include "ext/sampling/sampling.h"

void draw_normal_plain(Real *out, Random random, const uint64_t *start, int64_t n)
{
    (void)start; /* no captured steps on the CPU */
    EACH(block, (n + 3) / 4) {
        double normal[4];
        philox_normal(philox(random.seed, random.stream, random.counter + (uint64_t)block), normal);
        for (int64_t i = 4 * block; i < 4 * block + 4 && i < n; i++)
            out[i] = (Real)normal[i % 4];
    }
}

Tensor *op_random_normal(Tape *tape, Shape shape)
{
    error_name("op_random_normal");
    Tensor *out = tape_tensor(tape, shape);
    tape_use(tape, "op_random_normal", out); /* the operation begins, as by an argument */
    const int64_t n = tensor_count(out);
    const Random random = tape_draw(tape, (n + 3) / 4);
    sampling_kernels(out)->normal(out->data, random, tape_random_start(tape), n);
    tape_record(tape, (Node){ .name = "op_random_normal", .outputs = { out } });
    return out;
}
