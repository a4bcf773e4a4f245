/* Copies of the weights in bf16.
 * Products in bf16 need weights in bf16. From the first such product on, Params holds a bf16 copy
 * of the flat values. Every writer of values updates the copy: CUDA's kernels of optimizers in the
 * same pass, all others by params_written. The copy is never stale. */
#include "nn/internal.h"
#include "ops/shared/internal.h"

void params_written(const Params *params)
{
    if (params->bf16)
        op_convert(params->device, (Gradient){ params->bf16->data, false }, params->values->data,
                   true, params->flat_count);
}

/* The address of the tensor's elements in the bf16 copy. written: the values have changed, so
 * update the copy if there is one. Otherwise a missing copy is made, except during graph capture,
 * which would not fill it. NULL: there is no copy, or memory is exhausted. */
Real *params_bf16_copy(Tensor *tensor, bool written)
{
    Params *params = tensor->params;
    if (written) {
        params_written(params);
    } else if (!params->bf16 && !device_is_capturing(params->device)) {
        const size_t bytes = (size_t)params->flat_count * sizeof(uint16_t);
        params->bf16 = device_allocate(params->device, bytes);
        params_written(params);
    }
    if (!params->bf16)
        return NULL;
    const ptrdiff_t offset = tensor->data - (Real *)params->values->data;
    return (Real *)((uint16_t *)params->bf16->data + offset);
}
