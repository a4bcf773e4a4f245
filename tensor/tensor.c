/* Reading and writing tensors from the host. */
#include "tensor/device.h"

#include <math.h>
#include <stdio.h>

Tensor *tensor_root(const Tensor *tensor)
{
    return tensor->base ? tensor->base : (Tensor *)tensor;
}

int64_t tensor_count(const Tensor *tensor)
{
    return shape_count(tensor->shape);
}

size_t tensor_element_bytes(const Tensor *tensor)
{
    static const size_t bytes[] = { [TENSOR_REAL] = sizeof(Real),
                                    [TENSOR_INT32] = sizeof(int32_t),
                                    [TENSOR_BF16] = sizeof(uint16_t) };
    return bytes[tensor->type];
}

size_t tensor_bytes(const Tensor *tensor)
{
    return (size_t)tensor_count(tensor) * tensor_element_bytes(tensor);
}

Real *tensor_elements_on(const Tensor *like, const Real *x, int64_t count)
{
    return (Real *)((char *)x + count * (int64_t)tensor_element_bytes(like));
}

Real *tensor_at(const Tensor *tensor, int64_t index)
{
    return tensor_elements_on(tensor, tensor->data, index);
}

const char *tensor_unreadable(const Tensor *tensor, TensorType type)
{
    if (!tensor)
        return "is NULL";
    const char *error = tensor->allocate ? tensor->allocate((Tensor *)tensor) : NULL;
    if (error)
        return error;
    if ((tensor->type == TENSOR_INT32) != (type == TENSOR_INT32))
        return type == TENSOR_REAL ? "has dtype int32, expected Real"
                                   : "has dtype Real, expected int32";
    if (!tensor_root(tensor)->data)
        return "was released already: by the backward pass (tensor_keep prevents that), by "
               "tape_release or by tape_reset";
    return NULL;
}

TensorText tensor_label(const char *label, const Tensor *tensor)
{
    const char *name = tensor ? tensor->name : NULL;
    TensorText result;
    snprintf(result.text, sizeof result.text, "%s%s%s", label, name ? " " : "", name ? name : "");
    return result;
}

TensorText tensor_text(const Tensor *tensor)
{
    TensorText result;
    snprintf(result.text, sizeof result.text, "%s%sis %s", tensor->name ? tensor->name : "",
             tensor->name ? " " : "", shape_text(tensor->shape).text);
    return result;
}

static void check_readable(const char *function, const Tensor *tensor, TensorType type)
{
    const char *error = tensor_unreadable(tensor, type);
    if (error && tensor)
        error_raise("%s: %s of shape %s %s", function, tensor_label("the tensor", tensor).text,
                    shape_text(tensor->shape).text, error);
    if (error)
        error_raise("%s: the tensor %s", function, error);
}

/* check_readable(), and that host is not NULL. */
static void check_host_copy(const char *function, const Tensor *tensor, TensorType type,
                            const void *host)
{
    check_readable(function, tensor, type);
    error_need(function, "host", host);
}

void tensor_read(const Tensor *tensor, Real *host)
{
    check_host_copy("tensor_read", tensor, TENSOR_REAL, host);
    if (tensor->type == TENSOR_BF16)
        tensor->device->functions->read_bf16(tensor, host);
    else
        device_copy_out(tensor->device, host, tensor->data, tensor_bytes(tensor));
}

int64_t tensor_find_not_finite(const Tensor *tensor, bool minus_infinity, Real *value)
{
    enum { CHUNK = 1 << 15 };
    Real chunk[CHUNK];
    const int64_t n = tensor_count(tensor);
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t count = n - start < CHUNK ? n - start : CHUNK;
        Tensor part = *tensor;
        part.shape = (Shape){ 1, { count } };
        part.data = tensor_at(tensor, start);
        tensor_read(&part, chunk);
        for (int64_t i = 0; i < count; i++)
            if (!isfinite(chunk[i]) && !(minus_infinity && chunk[i] == -(Real)INFINITY)) {
                *value = chunk[i];
                return start + i;
            }
    }
    return -1;
}

void tensor_read_i32(const Tensor *tensor, int32_t *host)
{
    check_host_copy("tensor_read_i32", tensor, TENSOR_INT32, host);
    device_copy_out(tensor->device, host, tensor->integers, tensor_bytes(tensor));
}

void tensor_write(Tensor *tensor, const Real *host)
{
    check_host_copy("tensor_write", tensor, TENSOR_REAL, host);
    if (tensor->type == TENSOR_BF16)
        tensor->device->functions->write_bf16(tensor, host);
    else
        device_copy_in(tensor->device, tensor->data, host, tensor_bytes(tensor));
    tensor_written(tensor);
}

void tensor_written(Tensor *tensor)
{
    check_readable("tensor_written", tensor, TENSOR_REAL);
    Tensor *root = tensor_root(tensor);
    if (root->bf16_copy)
        root->bf16_copy(root, true);
}

/* Returns the bounds of the new integers; raises if they violate those of the operations. */
static IntegerBounds check_integers(const Tensor *tensor, const int32_t *host)
{
    const IntegerBounds required = tensor_root(tensor)->required_bounds;
    const int64_t count = tensor_count(tensor);
    IntegerBounds bounds = { true, true, INT32_MAX, INT32_MIN };
    for (int64_t i = 0; i < count; i++) {
        bounds.min = host[i] < bounds.min ? host[i] : bounds.min;
        bounds.max = host[i] > bounds.max ? host[i] : bounds.max;
        bounds.spanning = bounds.spanning && host[i] == bounds.max;
        if (required.known && (host[i] < required.min || host[i] > required.max))
            error_raise("tensor_write_i32: element %lld is %d, expected %d to %d, as the "
                        "operations that use this tensor need",
                        (long long)i, (int)host[i], (int)required.min, (int)required.max);
    }
    if (required.spanning &&
        (!bounds.spanning || bounds.min != required.min || bounds.max != required.max))
        error_raise("tensor_write_i32: the elements do not ascend from %d to %d, as the operations "
                    "that use this tensor need",
                    (int)required.min, (int)required.max);
    return bounds;
}

void tensor_write_i32(Tensor *tensor, const int32_t *host)
{
    check_host_copy("tensor_write_i32", tensor, TENSOR_INT32, host);
    tensor_root(tensor)->bounds = check_integers(tensor, host);
    device_copy_in(tensor->device, tensor->integers, host, tensor_bytes(tensor));
}

double tensor_item(const Tensor *tensor)
{
    check_readable("tensor_item", tensor, TENSOR_REAL);
    if (tensor_count(tensor) != 1)
        error_raise("tensor_item: %s has shape %s, expected one element",
                    tensor_label("the tensor", tensor).text, shape_text(tensor->shape).text);
    Real item;
    tensor_read(tensor, &item);
    return (double)item;
}

Tensor *tensor_keep(Tensor *tensor)
{
    error_need("tensor_keep", "the tensor", tensor);
    tensor_root(tensor)->keep = true;
    return tensor;
}

Tensor *tensor_gradient(Tensor *tensor)
{
    error_need("tensor_gradient", "the tensor", tensor);
    Tensor *root = tensor_root(tensor);
    if (!root->has_gradient || !root->gradient->data)
        error_raise("tensor_gradient: %s of shape %s has no gradient; it must require one (a "
                    "tape_variable, a parameter, or a tensor that depends on them, with "
                    "tensor_keep), and a backward pass must have reached it",
                    tensor_label("the tensor", tensor).text, shape_text(tensor->shape).text);
    if (tensor != root)
        tensor->gradient->data =
            (Real *)((char *)root->gradient->data + ((char *)tensor->data - (char *)root->data));
    return tensor->gradient;
}
