/* Sinusoidal positions (Vaswani et al. 2017, section 3.5):
 *   P[n, 2i] = sin(n / 10000^(2i / width))     P[n, 2i + 1] = cos(n / 10000^(2i / width)) */
#include "nn/internal.h"

#include <math.h>
#include <stdlib.h>

static void fill(Real *positions, int64_t length, int64_t width)
{
    for (int64_t n = 0; n < length; n++)
        for (int64_t column = 0; column < width; column++) {
            double angle = (double)n / pow(10000, (double)(column / 2 * 2) / (double)width);
            positions[n * width + column] = (Real)(column % 2 ? cos(angle) : sin(angle));
        }
}

Tensor *nn_sinusoidal_positions(Params *params, int64_t length, int64_t width)
{
    if (length < 1 || width < 1)
        error_raise("nn_sinusoidal_positions: length is %lld and width %lld, expected 1 or more",
                    (long long)length, (long long)width);
    Tensor *positions =
        params_new_constant("nn_sinusoidal_positions", params, NULL, shape(length, width), false);
    Real *host = memory_allocate(tensor_bytes(positions));
    if (!host)
        error_raise("nn_sinusoidal_positions: %s",
                    device_exhausted(params->device, tensor_bytes(positions)).text);
    fill(host, length, width);
    tensor_write(positions, host);
    free(host);
    return positions;
}
