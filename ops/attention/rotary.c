/* rotary position embedding (Su et al. 2021, RoFormer, equation 34): pair i of a head, (x_a, x_b),
 * is rotated by the angle t = p base^(-2 i / dims) of its position p
 *   out_a = x_a cos t - x_b sin t     out_b = x_a sin t + x_b cos t
 * a = 2 i, b = 2 i + 1 or, by halves, a = i, b = i + dims / 2; elements from dims on are copied.
 * So q_i.k_j depends on the positions by their difference alone.
 * Backward: a rotation's transpose is the rotation by -t, so dx <- dout, rotated by -t.
 * Angles, cosines and sines are computed in double: near position 10^6 a float's angle is off by
 * 0.03. Saved for the backward pass: cosines and sines, dims values per position. */
#include "ops/attention/rotary.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void rotary_cos_sin_plain(Real *cos_sin, const int32_t *positions, double base, int64_t P,
                          int64_t pairs)
{
    EACH_ROW(row, P, 40 * pairs)
        for (int64_t i = 0; i < pairs; i++) {
            const double p = positions ? positions[row] : (double)row;
            const double t = p * pow(base, -(double)i / (double)pairs);
            cos_sin[row * 2 * pairs + i] = (Real)cos(t);
            cos_sin[(row * 2 + 1) * pairs + i] = (Real)sin(t);
        }
}

/* Pair i is elements i step and i step + other. */
ALWAYS_INLINE void rotate_pairs(Gradient out, const Real *x, const Real *cos_sin, Real sign,
                                int64_t pairs, int64_t step, int64_t other)
{
    PRAGMA(omp simd)
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t a = i * step, b = a + other;
        const Real cosine = cos_sin[i], sine = sign * cos_sin[pairs + i];
        const Real x_a = x[a], x_b = x[b];
        gradient_add(out, a, x_a * cosine - x_b * sine);
        gradient_add(out, b, x_a * sine + x_b * cosine);
    }
}

void rotary_plain(Gradient out, const Real *x, const Real *cos_sin, Rotary r)
{
    EACH_ROW(row, r.R * r.H, 2 * r.D) {
        const int64_t pairs = row % r.H < r.heads ? r.pairs : 0;
        const Real *x_row = x + row * r.D;
        const Real *of_row = cos_sin + (r.first + row / r.H) % r.P * 2 * r.pairs;
        const Gradient out_row = gradient_from(out, row * r.D);
        if (r.halves)
            rotate_pairs(out_row, x_row, of_row, r.inverse ? -1 : 1, pairs, 1, pairs);
        else
            rotate_pairs(out_row, x_row, of_row, r.inverse ? -1 : 1, pairs, 2, 1);
        for (int64_t c = 2 * pairs; c < r.D; c++)
            gradient_add(out_row, c, x_row[c]);
    }
}

static void rotary_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Rotary r = *(const Rotary *)node->attributes;
    r.inverse = true;
    kernels_of(x)->rotary(tape_contribution(node, x), tape_upstream(node, 0), node->saved[0]->data,
                          r);
}

static Rotary rotary_of(Tape *tape, Tensor *x, const RotaryOptions *o)
{
    tape_use(tape, "op_rotary: x", x);
    if (x->shape.rank != 4)
        tape_error(tape, "op_rotary: x %s, expected four axes, [B, N, H, D]", tensor_text(x).text);
    const int64_t B = x->shape.size[0], N = x->shape.size[1], H = x->shape.size[2];
    const int64_t D = x->shape.size[3], dims = o->dims ? o->dims : D, heads = o->heads;
    if (dims < 2 || dims > D || dims % 2 != 0)
        tape_error(tape, "op_rotary: dims is %lld, expected an even number from 2 to %lld: x %s",
                   (long long)dims, (long long)D, tensor_text(x).text);
    if (heads < 0 || heads > H)
        tape_error(tape, "op_rotary: heads is %lld, expected 1 to %lld, or 0 for all: x %s",
                   (long long)heads, (long long)H, tensor_text(x).text);
    if (!(o->base >= 0 && isfinite(o->base)))
        tape_error(tape, "op_rotary: base is %g, expected more than 0, or 0 for 10000", o->base);
    if (o->positions) {
        tape_use_i32(tape, "op_rotary: positions", o->positions);
        if (!shape_equal(o->positions->shape, shape(N)) &&
            !shape_equal(o->positions->shape, shape(B, N)))
            tape_error(tape, "op_rotary: positions is %s, expected [%lld] or [%lld,%lld]: x %s",
                       shape_text(o->positions->shape).text, (long long)N, (long long)B,
                       (long long)N, tensor_text(x).text);
    }
    return (Rotary){ .R = B * N,
                     .H = H,
                     .D = D,
                     .heads = heads ? heads : H,
                     .pairs = dims / 2,
                     .P = o->positions ? shape_count(o->positions->shape) : N,
                     .halves = o->halves };
}

Tensor *op_rotary(Tape *tape, Tensor *x, RotaryOptions options)
{
    const Rotary r = rotary_of(tape, x, &options);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *cos_sin = tape_tensor(tape, shape(r.P, 2 * r.pairs));
    op_kernels_on(x->device, TENSOR_REAL)
        ->rotary_cos_sin(cos_sin->data, options.positions ? options.positions->integers : NULL,
                         options.base > 0 ? options.base : 10000, r.P, r.pairs);
    kernels_of(x)->rotary((Gradient){ out->data, false }, x->data, cos_sin->data, r);
    tape_record(tape, (Node){ "op_rotary", rotary_backward, .inputs = { x, options.positions },
                              .outputs = { out }, .saved = { cos_sin },
                              .attributes = tape_save(tape, &r, sizeof r) });
    return out;
}
