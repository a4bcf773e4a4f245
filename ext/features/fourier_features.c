/* Random Fourier features of the Gaussian (Rahimi and Recht 2007, Random Features for Large-Scale
 * Kernel Machines), of rows x [R, D] and a projection w [F, D] whose rows are normal
 *   y_rf = sum_d x_rd w_fd      out_r = [cos y_r, sin y_r] / sqrt F
 * Since cos a cos b + sin a sin b = cos(a - b), two rows q and k have
 *   out(q).out(k) = 1 / F sum_f cos(w_f.(q - k))
 * and since E e^(i w.u) = e^(-|u|^2 / 2) for a normal w, whose imaginary part is 0,
 *   E out(q).out(k) = e^(-|q - k|^2 / 2) = e^(q.k) e^(-|q|^2 / 2) e^(-|k|^2 / 2)
 * As weights of attention the queries' factor cancels: they are softmax attention's, times
 * e^(-|k|^2 / 2), so equal where all keys have one length.
 *
 * With u = q - k the variance of cos(w_f.u) is (1 + e^(-2 |u|^2)) / 2 - e^(-|u|^2), so an estimate
 * from F independent rows has the standard deviation
 *     (1 - e^(-|u|^2)) / sqrt(2 F)
 * and is often negative where the Gaussian is smaller than that. So a sum of weights may be near 0
 * or below it, and the quotient large; op_random_features, whose values are positive, avoid that. A
 * composition, without a kernel of its own; in bf16 it rounds y, an error of up to 2^-9 |y_rf|. */
#include "ext/features/features.h"
#include "extend.h"

#include <math.h>

Tensor *op_fourier_features(Tape *tape, Tensor *x, Tensor *projection)
{
    tape_use(tape, "op_fourier_features: x", x);
    tape_use(tape, "op_fourier_features: projection", projection);
    if (projection->shape.rank != 2)
        tape_error(tape, "op_fourier_features: projection %s, expected two axes, [F, D]",
                   tensor_text(projection).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != projection->shape.size[1])
        tape_error(tape, "op_fourier_features: x %s, expected %lld in its last axis: projection %s",
                   tensor_text(x).text, (long long)projection->shape.size[1],
                   tensor_text(projection).text);
    projection = op_cast(tape, projection, TENSOR_REAL);
    Tensor *y = op_linear(tape, x, projection, NULL);
    Tensor *waves = op_concat(tape, (Tensor *[]){ op_cos(tape, y), op_sin(tape, y) }, 2, -1);
    return op_scale(tape, waves, 1 / sqrt((double)projection->shape.size[0]));
}
