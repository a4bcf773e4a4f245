/* Registering weights: names, initializers, joined weights, constants. */
#include "nn/internal.h"
#include "tensor/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static Constant *find_constant(const Params *params, const char *name)
{
    Constant *constant = params->constants;
    while (constant && strcmp(constant->name.text, name) != 0)
        constant = constant->next;
    return constant;
}

/* Every save would refuse a name that this refuses. */
static void check_file_name(const char *function, const Params *params, const char *name)
{
    if (name[0] == 0)
        error_raise("%s: the name is empty", function);
    if (*file_utf8_end(name))
        error_raise("%s: the name \"%s\" is not UTF-8", function, file_name_text(name).text);
    if (strcmp(name, FILE_METADATA_NAME) == 0)
        error_raise("%s: the name is %s, which the file format reserves", function, name);
    if (strncmp(name, STATE_PREFIX, strlen(STATE_PREFIX)) == 0)
        error_raise("%s: the name %s starts with " STATE_PREFIX ", which checkpoints reserve",
                    function, name);
    if (params_find(params, name))
        error_raise("%s: there is a weight named %s already", function, name);
    if (find_constant(params, name))
        error_raise("%s: there is a constant named %s already", function, name);
}

static void check_name(const Params *params, const char *name)
{
    check_file_name("params_add", params, name);
    if (params->values)
        error_raise("params_add: %s comes too late: storage was allocated at the first use of a "
                    "weight; register all weights before it",
                    name);
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
                                 .allocate = params_allocate_weights };
    weight->tensor = weight->gradient;
    weight->tensor.bf16_copy = params_bf16_copy;
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

void *params_memory(Params *params, size_t bytes)
{
    error_need("params_memory", "params", params);
    Memory *memory = memory_allocate(sizeof *memory + bytes);
    if (!memory)
        error_raise("params_memory: memory is exhausted: %lld bytes", (long long)bytes);
    memory->next = params->memory;
    params->memory = memory;
    return memset(memory->bytes, 0, bytes);
}

Tensor *params_new_constant(const char *function, Params *params, const char *name, Shape shape,
                            bool required)
{
    if (name)
        check_file_name(function, params, name);
    const size_t bytes = (size_t)shape_count(shape) * sizeof(Real);
    Constant *constant = memory_allocate(sizeof *constant);
    Block *block = device_allocate(params->device, bytes);
    if (!constant || !block) {
        free(constant);
        device_free(params->device, block);
        error_raise("%s: %s", function, device_exhausted(params->device, bytes).text);
    }
    constant->next = params->constants;
    constant->required = required;
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
    Tensor *constant = params_new_constant("params_constant", params, NULL, shape, false);
    tensor_write(constant, host);
    return constant;
}
