/* dropout with probability p (Srivastava et al. 2014)
 *   out_i = k_i x_i / (1 - p)     k_i = 1 when u_i >= p, else 0     u_i uniform in [0, 1)
 * Backward, g = dL/dout:
 *   dx_i <- k_i g_i / (1 - p)
 * Kept: nothing but where the generator stood. u_i is made of word i % 4 of its block at counter
 * start + i / 4, so that backward draws the same numbers again, and any thread can draw any. */
#include "ops/internal.h"

typedef struct Dropout {
    Random random;  /* before the draw */
    uint32_t limit; /* u_i = (word_i / 2^8) 2^-24 is kept from limit = ceil(2^24 p) on */
    Real scale;     /* 1 / (1 - p) */
} Dropout;

/* Numbers are drawn this many blocks at a time, in vector instructions. */
enum { BLOCKS = 32, WORDS = 4 * BLOCKS };

/* word [WORDS] <- the blocks from counter on: philox() for each, a round for all at a time. */
static void draw_words(uint32_t word[WORDS], Random random, uint64_t counter)
{
    uint32_t x0[BLOCKS], x1[BLOCKS], x2[BLOCKS], x3[BLOCKS];
    uint32_t k0 = (uint32_t)random.seed, k1 = (uint32_t)(random.seed >> 32);
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++) {
        x0[i] = (uint32_t)(counter + (uint64_t)i);
        x1[i] = (uint32_t)((counter + (uint64_t)i) >> 32);
        x2[i] = (uint32_t)random.stream;
        x3[i] = (uint32_t)(random.stream >> 32);
    }
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < BLOCKS; i++)
            philox_round(&x0[i], &x1[i], &x2[i], &x3[i], k0, k1);
        philox_next_key(&k0, &k1);
    }
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++) {
        word[4 * i] = x0[i];
        word[4 * i + 1] = x1[i];
        word[4 * i + 2] = x2[i];
        word[4 * i + 3] = x3[i];
    }
}

/* out [n] <- k x / (1 - p): forward of x, and backward of dout */
static void dropout_cpu(Real *out, bool accumulate, const Real *x, Dropout d, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MINIMUM)
    for (int64_t start = 0; start < n; start += WORDS) {
        uint32_t word[WORDS];
        draw_words(word, d.random, d.random.counter + (uint64_t)start / 4);
        int64_t count = n - start < WORDS ? n - start : WORDS;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            contribute(&out[start + i], accumulate,
                       word[i] >> 8 >= d.limit ? d.scale * x[start + i] : 0);
    }
}

static void dropout_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x->device, dropout,
                (dx.data, dx.accumulate, tape_upstream(node, 0), *(const Dropout *)node->saved,
                 tensor_count(x)));
}

Tensor *op_dropout(Tape *tape, Tensor *x, Real probability)
{
    tape_use(tape, "op_dropout: x", x);
    if (!(probability >= 0 && probability < 1))
        tape_error(tape, "op_dropout: probability is %g, expected 0 or more and less than 1",
                   (double)probability);
    if (probability == 0 || !tape_is_recording(tape))
        return x;
    Dropout d = { .random = tape_draw(tape, (tensor_count(x) + 3) / 4),
                  .limit = (uint32_t)ceil(0x1p24 * (double)probability),
                  .scale = 1 / (1 - probability) };
    Tensor *out = tape_tensor(tape, x->shape);
    DEVICE_CALL(out->device, dropout, (out->data, false, x->data, d, tensor_count(x)));
    tape_record(tape, (Node){ .name = "op_dropout",
                              .backward = dropout_backward,
                              .inputs = { x },
                              .outputs = { out },
                              .saved = tape_save(tape, &d, sizeof d) });
    return out;
}
