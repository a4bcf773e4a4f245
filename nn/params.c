/* Params: the registry of named weights, their storage and their gradients.
 *
 * A weight has the same offset, a multiple of ALIGNMENT, in the flat buffers of values and of
 * gradients. Joined weights follow their whole in the list and share its storage and its gradient
 * without gaps; the whole is no weight of its own. Handles exist from registration on and get their
 * addresses when the flat buffers are allocated. */
#include "nn/internal.h"

#include "ops/shared/internal.h"
#include "tensor/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16 }; /* elements: 64 bytes of float */

struct Weight {
    Tensor tensor;
    Tensor gradient;
    Name name;
    Initializer initializer;
    int64_t offset;
    bool is_whole; /* of joined weights, which have it as the base of their tensors */
    Weight *next;  /* in order of registration */
};

/* ----------------------------------------------------------------------------------------- life */
Params *params_new(Device *device, uint64_t seed)
{
    error_need("params_new", "the device", device);
    Params *params = memory_allocate(sizeof *params);
    if (!params)
        error_raise("params_new: %s", device_exhausted(device, sizeof *params).text);
    *params = (Params){ .device = device, .seed = seed };
    params->weights_end = &params->weights;
    return params;
}

static const char *allocate_weights(Tensor *tensor);

/* From here on, the use of a weight or constant raises. */
static void free_storage(Params *params)
{
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.data = weight->gradient.data = NULL;
    for (Constant *constant = params->constants; constant; constant = constant->next) {
        device_free(params->device, constant->tensor.block);
        constant->tensor.data = NULL;
        constant->tensor.params = params;
        constant->tensor.allocate = allocate_weights;
    }
    device_free(params->device, params->values);
    device_free(params->device, params->gradients);
    device_free(params->device, params->bf16);
    params->values = params->gradients = params->bf16 = NULL;
    params->freed = true;
}

void params_free(Params *params)
{
    static _Thread_local Params *guarded; /* their handles stay; reachable, for leak checkers */
    if (!params)
        return;
    free_storage(params);
    free(params->shards);
    params->shards = NULL;
    if (memory_is_guarded()) {
        params->next_freed = guarded;
        guarded = params;
        return;
    }
    for (Weight *weight = params->weights, *next; weight; weight = next) {
        next = weight->next;
        while (next && next->tensor.base) /* one allocation with the whole */
            next = next->next;
        free(weight);
    }
    for (Constant *constant = params->constants, *next; constant; constant = next) {
        next = constant->next;
        free(constant);
    }
    free(params);
}

Device *params_device(const Params *params)
{
    return params->device;
}

int64_t params_offset(const Params *params, const Tensor *weight)
{
    return weight->data - params->flat_values.data;
}

/* ----------------------------------------------------------------------------------- allocation */
Random params_random(const Params *params, const char *name)
{
    return random_new(params->seed, random_stream(name));
}

/* The scale of the uniform or normal distribution. */
static Real distribution_scale(Initializer initializer, Shape shape)
{
    if (initializer.kind < INITIAL_XAVIER)
        return (Real)initializer.scale;
    const double inputs = (double)(shape_count(shape) / shape.size[0]);  /* n in */
    const double outputs = (double)(shape_count(shape) / shape.size[1]); /* n out */
    const double square = initializer.kind == INITIAL_XAVIER ? 6 / (inputs + outputs) : 2 / inputs;
    return (Real)(initializer.scale * sqrt(square));
}

/* Initial values depend on seed and name alone, not on other weights or the device. */
static void draw(const Params *params, const Weight *weight, Real *out)
{
    const int64_t n = tensor_count(&weight->tensor);
    const Initializer initializer = weight->initializer;
    const Real scale = distribution_scale(initializer, weight->tensor.shape);
    Random random = params_random(params, weight->name.text);
    switch (initializer.kind) {
    case INITIAL_DEFAULT: /* raised in check_initializer */
    case INITIAL_ZERO:
    case INITIAL_ONE:
        for (int64_t i = 0; i < n; i++)
            out[i] = initializer.kind == INITIAL_ONE;
        break;
    case INITIAL_UNIFORM:
    case INITIAL_XAVIER:
        random_uniform(&random, out, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = scale * (2 * out[i] - 1);
        break;
    case INITIAL_NORMAL:
    case INITIAL_KAIMING:
        random_normal(&random, out, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = scale * out[i];
        break;
    }
}

static Real *bf16_copy(Tensor *tensor, bool written);

static void make_flat_tensors(Params *params)
{
    params->flat_gradients = (Tensor){ .device = params->device,
                                       .type = TENSOR_REAL,
                                       .shape = { 1, { params->flat_count } },
                                       .data = params->gradients->data,
                                       .params = params };
    params->flat_values = params->flat_gradients;
    params->flat_values.data = params->values->data;
    params->flat_values.bf16_copy = bf16_copy;
}

const char *params_allocate(Params *params)
{
    if (params->freed)
        return "cannot be used after params_free";
    if (params->values)
        return NULL;
    const size_t bytes = (size_t)params->flat_count * sizeof(Real);
    Real *host = memory_allocate(bytes);
    Block *values = device_allocate(params->device, bytes);
    Block *gradients = device_allocate(params->device, bytes + sizeof(Clipping));
    if (!host || !values || !gradients) {
        free(host);
        device_free(params->device, values);
        device_free(params->device, gradients);
        snprintf(params->error, sizeof params->error, "cannot be allocated: %s",
                 device_exhausted(params->device, bytes).text);
        return params->error;
    }
    memset(host, 0, bytes); /* the padding */
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole)
            draw(params, weight, host + weight->offset);
    device_copy_in(params->device, values->data, host, bytes);
    device_zero(params->device, gradients->data, bytes + sizeof(Clipping));
    free(host);
    params->values = values;
    params->gradients = gradients;
    params->clipping = (Clipping *)((Real *)gradients->data + params->flat_count);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        weight->tensor.data = (Real *)values->data + weight->offset;
        weight->gradient.data = (Real *)gradients->data + weight->offset;
    }
    make_flat_tensors(params);
    return NULL;
}

static const char *allocate_weights(Tensor *tensor)
{
    return params_allocate(tensor->params);
}

/* ------------------------------------------------------------------------------------- bf16 copies
 * Products in bf16 need weights in bf16. From the first such product on, Params holds a bf16 copy
 * of the flat values. Every writer of values updates the copy: CUDA's kernels of optimizers in the
 * same pass, all others by params_written. The copy is never stale. */

void params_written(const Params *params)
{
    if (params->bf16)
        convert(params->device, (Gradient){ params->bf16->data, false }, params->values->data, true,
                params->flat_count);
}

/* The address of the tensor's elements in the bf16 copy. written: the values have changed, so
 * update the copy if there is one. Otherwise a missing copy is made, except during graph capture,
 * which would not fill it. NULL: there is no copy, or memory is exhausted. */
static Real *bf16_copy(Tensor *tensor, bool written)
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

/* ---------------------------------------------------------------------------------- registering */
Name nn_name(const char *path, const char *name)
{
    Name result;
    if (!path || !name)
        error_raise("params: a name is NULL");
    int length =
        snprintf(result.text, sizeof result.text, "%s%s%s", path, path[0] ? "." : "", name);
    if (length < 0 || length >= NAME_BYTES - PREFIX_BYTES)
        error_raise("params: the name \"%s\" is too long, expected at most %d bytes", result.text,
                    NAME_BYTES - PREFIX_BYTES - 1);
    return result;
}

static Name joined_name(const char *prefix, const char *name, const char *suffix)
{
    return nn_name(nn_name(prefix, name).text, suffix);
}

static void check_name(const Params *params, const char *name)
{
    if (name[0] == 0)
        error_raise("params_add: the name is empty");
    if (*file_utf8_end(name)) /* no file could hold it */
        error_raise("params_add: the name \"%s\" is not UTF-8", file_name_text(name).text);
    if (params->values)
        error_raise("params_add: %s comes too late: storage was allocated at the first use of a "
                    "weight; register all weights before it",
                    name);
    if (params_find(params, name))
        error_raise("params_add: there is a weight named %s already", name);
}

static void check_initializer(const char *name, Initializer initializer, Shape shape)
{
    if ((int)initializer.kind < INITIAL_ZERO || (int)initializer.kind > INITIAL_KAIMING)
        error_raise("params_add: %s: there is no initializer kind %d", name, (int)initializer.kind);
    if (!(initializer.scale >= 0 && isfinite((Real)initializer.scale)))
        error_raise("params_add: %s: the initializer's scale is %g, expected 0 or more", name,
                    initializer.scale);
    if (initializer.kind >= INITIAL_UNIFORM && (Real)initializer.scale == 0)
        error_raise("params_add: %s: the initializer's scale is %g, expected more than 0; for "
                    "zeros use INITIAL_ZERO",
                    name, initializer.scale);
    if (initializer.kind >= INITIAL_XAVIER && shape.rank < 2)
        error_raise("params_add: %s: the shape is %s, expected [out, in, ...] for this initializer",
                    name, shape_text(shape).text);
}

/* Allocates count weights, one or a whole with its parts, and their range of the flat buffers. */
static Weight *reserve(Params *params, const char *name, int count, Shape shape,
                       Initializer initializer)
{
    check_initializer(name, initializer, shape);
    int64_t end;
    if (__builtin_add_overflow(params->flat_count, shape_count(shape), &end) ||
        end > INT64_MAX / 64)
        error_raise("params_add: %s of shape %s makes the weights too large to address", name,
                    shape_text(shape).text);
    const size_t bytes = (size_t)count * sizeof(Weight);
    Weight *weights = memory_allocate(bytes);
    if (!weights)
        error_raise("params_add: %s: %s", name, device_exhausted(params->device, bytes).text);
    for (int i = 0; i < count; i++)
        weights[i] = (Weight){ .initializer = initializer, .offset = params->flat_count };
    params->flat_count = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return weights;
}

static Tensor *append(Params *params, Weight *weight, Name name, Shape shape, Tensor *base)
{
    weight->name = name;
    weight->gradient = (Tensor){ .device = params->device,
                                 .type = TENSOR_REAL,
                                 .shape = shape,
                                 .params = params,
                                 .allocate = allocate_weights };
    weight->tensor = weight->gradient;
    weight->tensor.bf16_copy = bf16_copy;
    weight->tensor.base = base;
    weight->tensor.gradient = &weight->gradient;
    weight->tensor.requires_grad = true;
    weight->tensor.name = weight->name.text;
    *params->weights_end = weight;
    params->weights_end = &weight->next;
    return &weight->tensor;
}

Tensor *params_add(Params *params, const char *name, Shape shape, Initializer initializer)
{
    if (!params || !name)
        error_raise("params_add: %s is NULL", params ? "the name" : "params");
    Name own = nn_name("", name);
    shape = shape_new(shape.rank, shape.size); /* checks a shape that the caller filled in */
    check_name(params, name);
    return append(params, reserve(params, name, 1, shape, initializer), own, shape, NULL);
}

/* Checks the arguments of params_add_joined; returns the shape of the whole. */
static Shape check_joined(const Params *params, const char *prefix, const char *const *names,
                          int count, const char *suffix, Shape shape)
{
    Name whole = nn_name(prefix, suffix);
    if (!params || !names)
        error_raise("params_add_joined: %s: %s is NULL", whole.text, params ? "names" : "params");
    shape = shape_new(shape.rank, shape.size);
    if (count < 1)
        error_raise("params_add_joined: %s: there are %d names, expected 1 or more", whole.text,
                    count);
    if (shape.rank < 1)
        error_raise("params_add_joined: %s: scalars have no axis to join along", whole.text);
    for (int i = 0; i < count; i++) {
        Name name = joined_name(prefix, names[i], suffix);
        check_name(params, name.text);
        for (int j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                error_raise("params_add_joined: the name %s appears twice", name.text);
    }
    if (__builtin_mul_overflow(shape.size[0], count, &shape.size[0]))
        error_raise("params_add_joined: %s is too large to address", whole.text);
    return shape_new(shape.rank, shape.size);
}

Tensor *params_add_joined(Params *params, const char *prefix, const char *const *names, int count,
                          const char *suffix, Shape shape, Initializer initializer)
{
    Shape whole = check_joined(params, prefix, names, count, suffix, shape);
    Name name = nn_name(prefix, suffix);
    Weight *weights = reserve(params, name.text, 1 + count, whole, initializer),
           *parts = weights + 1;
    Tensor *base = append(params, weights, name, whole, NULL);
    weights->is_whole = true;
    for (int i = 0; i < count; i++) {
        parts[i].offset += i * shape_count(shape);
        append(params, &parts[i], joined_name(prefix, names[i], suffix), shape, base);
    }
    return base;
}

Tensor *params_new_constant(const char *function, Params *params, const char *name, Shape shape)
{
    const size_t bytes = (size_t)shape_count(shape) * sizeof(Real);
    Constant *constant = memory_allocate(sizeof *constant);
    Block *block = device_allocate(params->device, bytes);
    if (!constant || !block) {
        free(constant);
        device_free(params->device, block);
        error_raise("%s: %s", function, device_exhausted(params->device, bytes).text);
    }
    constant->next = params->constants;
    constant->required = false;
    constant->name = nn_name("", name ? name : "");
    constant->tensor = (Tensor){ .name = name ? constant->name.text : NULL,
                                 .device = params->device,
                                 .type = TENSOR_REAL,
                                 .shape = shape,
                                 .data = block->data,
                                 .block = block };
    params->constants = constant;
    return &constant->tensor;
}

Tensor *params_constant(Params *params, const Real *host, Shape shape)
{
    error_need("params_constant", "host", host);
    shape = shape_new(shape.rank, shape.size);
    Tensor *constant = params_new_constant("params_constant", params, NULL, shape);
    tensor_write(constant, host);
    return constant;
}

/* -------------------------------------------------------------------------------------- finding */
Tensor *params_find(const Params *params, const char *name)
{
    error_need("params_find", "params", params);
    error_need("params_find", "the name", name);
    for (Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole && strcmp(weight->name.text, name) == 0)
            return &weight->tensor;
    return NULL;
}

int params_count(const Params *params)
{
    int count = 0;
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        count += !weight->is_whole;
    return count;
}

int64_t params_elements(const Params *params)
{
    int64_t count = 0;
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        count += weight->is_whole ? 0 : tensor_count(&weight->tensor);
    return count;
}

Tensor *params_at(const Params *params, int index)
{
    int i = 0;
    for (Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole && i++ == index)
            return &weight->tensor;
    error_raise("params_at: there is no weight %d; there are %d", index, params_count(params));
}

/* ------------------------------------------------------------------------------------- freezing */
void params_check_pattern(const char *function, const Params *params, const char *pattern)
{
    if (!params || !pattern)
        error_raise("%s: %s is NULL", function, params ? "the pattern" : "params");
    if (device_is_capturing(params->device))
        error_raise("%s: this step is replayed; call it before the step", function);
    for (int i = 0; i < params_count(params); i++)
        if (params_matches(pattern, params_at(params, i)))
            return;
    error_raise("%s: no weight's name matches \"%s\"", function, pattern);
}

/* The backward pass looks at the whole of joined weights, which share one gradient. */
void params_set_requires_grad(Params *params, const char *pattern, bool requires_grad)
{
    params_check_pattern("params_set_requires_grad", params, pattern);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        Tensor *tensor = &weight->tensor;
        if (weight->is_whole)
            tensor->requires_grad = false;
        else if (params_matches(pattern, tensor))
            tensor->requires_grad = requires_grad;
        tensor_root(tensor)->requires_grad |= tensor->requires_grad;
    }
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.has_gradient &= weight->tensor.requires_grad;
    params->frozen_version++;
}

/* --------------------------------------------------------------------------------- flat buffers */
static void need_storage(Params *params)
{
    const char *error = params_allocate(params);
    if (error)
        error_raise("params: the weights %s", error);
}

Tensor *params_flat_values(Params *params)
{
    need_storage(params);
    return &params->flat_values;
}

/* The only place where gradients are zero-filled: those that got no contribution, and those of
 * frozen weights that are joined to others. */
Tensor *params_flat_gradients(Params *params)
{
    need_storage(params);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        Tensor *tensor = &weight->tensor;
        if (tensor->base ? !tensor->requires_grad : !tensor->has_gradient)
            device_zero(params->device, weight->gradient.data,
                        (size_t)tensor_count(tensor) * sizeof(Real));
        tensor->has_gradient = !tensor->base;
    }
    return &params->flat_gradients;
}

bool params_have_gradients(const Params *params)
{
    bool required = false;
    for (const Weight *weight = params->weights; weight; weight = weight->next) {
        if (weight->tensor.has_gradient)
            return true;
        required |= weight->tensor.requires_grad;
    }
    return !required;
}

void params_raise_no_gradients(const char *function)
{
    error_raise("%s: no weight has a gradient since the last step; call tape_backward first",
                function);
}

FlatRange params_range(const Params *params)
{
    return params->shards ? params->shards->own : (FlatRange){ 0, params->flat_count };
}

Real *params_sum_gradients(const char *function, Params *params)
{
    if (params->shards && !params->reduced)
        params->shards->reduce(function, params);
    else if (!params->shards && !params_have_gradients(params))
        params_raise_no_gradients(function);
    params->reduced = params->shards != NULL;
    return params_flat_gradients(params)->data + params_range(params).first;
}

void params_zero_gradients(Params *params)
{
    error_need("params_zero_gradients", "params", params);
    params->clipped = params->reduced = false;
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.has_gradient = false;
}
