/* Weights, and other flat buffers of their layout, to and from safetensors files. */
#include "nn/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Name prefixed(const char *prefix, const Tensor *weight)
{
    Name name;
    int length = snprintf(name.text, sizeof name.text, "%s%s", prefix, weight->name);
    if (length < 0 || length >= NAME_BYTES)
        error_raise("params: the name \"%s...\" is too long for a file", name.text);
    return name;
}

static size_t part_bytes(const Params *params)
{
    return (size_t)params->flat_count * sizeof(Real);
}

/* The weight's elements in a flat buffer. */
static Real *elements_of(const Params *params, const Tensor *weight, Real *flat)
{
    return flat + params_offset(params, weight);
}

#define EACH_CONSTANT(constant, params)                                                            \
    for (Constant *constant = saved_constant((params)->constants); constant;                       \
         constant = saved_constant(constant->next))

static size_t constant_bytes(const Params *params)
{
    size_t bytes = 0;
    EACH_CONSTANT(constant, params)
        bytes += tensor_bytes(&constant->tensor);
    return bytes;
}

/* Reads the constants that the file has into host, where the others get their present values, as do
 * those that do not fit, which are reported, as a missing one that is required is; without a report
 * both end the reading. */
static bool read_constants(const Params *params, const TensorFile *file, Real *host,
                           LoadReport *report, void *context)
{
    EACH_CONSTANT(constant, params) {
        const Tensor *tensor = &constant->tensor;
        const bool expected = constant->required || tensor_file_find(file, tensor->name);
        const bool read = expected && tensor_file_read(file, tensor->name, tensor->shape, host);
        if (expected && !read && !report)
            return false;
        if (expected && !read)
            report(tensor->name, tapegrad_error(), context);
        if (!read)
            device_copy_out(params->device, host, tensor->data, tensor_bytes(tensor));
        host += tensor_count(tensor);
    }
    return true;
}

static void write_constants(const Params *params, const Real *host)
{
    EACH_CONSTANT(constant, params) {
        tensor_write(&constant->tensor, host);
        host += tensor_count(&constant->tensor);
    }
}

bool params_save_parts(const char *function, Params *params, const FileParts *parts,
                       const FileMetadata *metadata, int metadata_count, const char *path)
{
    const int weights = params_count(params);
    int n = parts->count * weights, count = n;
    EACH_CONSTANT(constant, params)
        count++;
    const size_t bytes = part_bytes(params);
    const int copies = device_is_cuda(params->device) ? parts->count : 0; /* the others are read */
    const size_t all = (size_t)copies * bytes + constant_bytes(params) + 1;
    Real *host = memory_allocate(all);
    FileEntry *entries = memory_allocate((size_t)count * sizeof *entries);
    Name *names = memory_allocate((size_t)count * sizeof *names);
    bool ok = host && entries && names;
    if (!ok)
        error_report("%s: %s", function, device_exhausted(params->device, all).text);
    for (int part = 0; ok && part < copies; part++)
        device_copy_out(params->device, host + part * params->flat_count, parts->list[part].data,
                        bytes);
    for (int i = 0; ok && i < n; i++) {
        const int part = i / weights;
        Real *flat = copies ? host + part * params->flat_count : parts->list[part].data;
        const Tensor *weight = params_at(params, i % weights);
        names[i] = prefixed(parts->list[part].prefix, weight);
        entries[i] = (FileEntry){ .name = names[i].text,
                                  .type = FILE_TYPE_OF_REAL,
                                  .shape = weight->shape,
                                  .data = elements_of(params, weight, flat) };
    }
    Real *values = ok ? host + copies * params->flat_count : NULL;
    for (Constant *c = saved_constant(params->constants); ok && c; c = saved_constant(c->next)) {
        device_copy_out(params->device, values, c->tensor.data, tensor_bytes(&c->tensor));
        entries[n++] = (FileEntry){ c->tensor.name, FILE_TYPE_OF_REAL, c->tensor.shape, values };
        values += tensor_count(&c->tensor);
    }
    ok = ok && tensor_file_save(entries, count, metadata, metadata_count, path);
    free(names);
    free(entries);
    free(host);
    return ok;
}

/* Whether the entry belongs to a part, or has a prefix that is ignored; reports one that does
 * not. */
static bool is_known(const char *function, const Params *params, const FileParts *parts,
                     const char *ignored, const char *name, const char *path)
{
    if (ignored && strncmp(name, ignored, strlen(ignored)) == 0)
        return true;
    for (int part = 0; part < parts->count; part++) {
        const char *prefix = parts->list[part].prefix;
        const size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 && params_find(params, name + length))
            return true;
    }
    EACH_CONSTANT(constant, params)
        if (strcmp(name, constant->tensor.name) == 0)
            return true;
    return error_report("%s: %s: there is no weight for the entry \"%.80s\"", function, path, name);
}

/* Reads every weight of every part into host, one after the other; with write, copies each to its
 * part, if that is in the part's range. */
static bool read_parts(const Params *params, const FileParts *parts, const TensorFile *file,
                       Real *host, bool write)
{
    const int weights = params_count(params);
    bool ok = true;
    for (int i = 0; ok && i < parts->count * weights; i++) {
        const Tensor *weight = params_at(params, i % weights);
        const FilePart *part = &parts->list[i / weights];
        const int64_t start = params_offset(params, weight) - part->range.first;
        ok = tensor_file_read(file, prefixed(part->prefix, weight).text, weight->shape, host);
        if (ok && write && start >= 0 && start < part->range.count)
            device_copy_in(params->device, part->data + start, host, tensor_bytes(weight));
    }
    return ok;
}

/* All is checked before anything is written, by reading twice: a host copy of all parts would be as
 * large as the file in memory. */
bool params_load_parts(const char *function, Params *params, const FileParts *parts,
                       const char *ignored, const TensorFile *file, const char *path)
{
    int64_t max_count = 0;
    for (int i = 0; i < params_count(params); i++)
        if (max_count < tensor_count(params_at(params, i)))
            max_count = tensor_count(params_at(params, i));
    const size_t all = (size_t)max_count * sizeof(Real) + constant_bytes(params);
    Real *host = memory_allocate(all);
    if (!host)
        return error_report("%s: %s", function, device_exhausted(params->device, all).text);
    bool ok = read_constants(params, file, host + max_count, NULL, NULL) &&
              read_parts(params, parts, file, host, false);
    for (int i = 0; ok && i < tensor_file_count(file); i++)
        ok = is_known(function, params, parts, ignored, tensor_file_entry(file, i)->name, path);
    if (ok) {
        read_parts(params, parts, file, host, true);
        write_constants(params, host + max_count);
        params_written(params);
    }
    free(host);
    return ok;
}

/* Allocates the weights, and makes them the only part. */
static bool need_weights(const char *function, Params *params, FileParts *weights)
{
    error_need(function, "params", params);
    const char *error = params_allocate(params);
    *weights = (FileParts){ 1, { { "", params->flat_values.data, { 0, params->flat_count } } } };
    return !error || error_report("%s: the weights %s", function, error);
}

bool params_save(Params *params, const char *path)
{
    FileParts weights;
    return need_weights("params_save", params, &weights) &&
           params_save_parts("params_save", params, &weights, NULL, 0, path);
}

bool params_load(Params *params, const char *path)
{
    FileParts weights;
    if (!need_weights("params_load", params, &weights))
        return false;
    TensorFile *file = tensor_file_open(path);
    const bool ok =
        file && params_load_parts("params_load", params, &weights, STATE_PREFIX, file, path);
    tensor_file_close(file);
    return ok;
}

static void ignore(const char *name, const char *sentence, void *context)
{
    (void)name, (void)sentence, (void)context;
}

/* Reads the entries that fit into host; returns their number. */
static int read_matching_entries(Params *params, const TensorFile *file, Real *host,
                                 LoadReport *report, void *context)
{
    int count = 0;
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        Real *elements = elements_of(params, weight, host);
        if (tensor_file_read(file, weight->name, weight->shape, elements)) {
            count++;
            continue;
        }
        report(weight->name, tapegrad_error(), context);
        /* undoes a read that ended at a value that does not fit */
        device_copy_out(params->device, elements, weight->data, tensor_bytes(weight));
    }
    return count;
}

int params_load_some(Params *params, const char *path, LoadReport *report, void *context)
{
    static const char function[] = "params_load_some";
    FileParts weights;
    if (!need_weights(function, params, &weights))
        return -1;
    const size_t bytes = part_bytes(params), all = bytes + constant_bytes(params);
    TensorFile *file = tensor_file_open(path);
    Real *host = file ? memory_allocate(all) : NULL;
    int count = -1;
    if (host) {
        report = report ? report : ignore;
        device_copy_out(params->device, host, params->flat_values.data, bytes);
        count = read_matching_entries(params, file, host, report, context);
        read_constants(params, file, host + params->flat_count, report, context);
        for (int i = 0; i < tensor_file_count(file); i++) {
            const char *name = tensor_file_entry(file, i)->name;
            if (!is_known(function, params, &weights, STATE_PREFIX, name, path))
                report(name, tapegrad_error(), context);
        }
        tensor_write(&params->flat_values, host);
        write_constants(params, host + params->flat_count);
    } else if (file) {
        error_report("%s: %s", function, device_exhausted(params->device, all).text);
    }
    free(host);
    tensor_file_close(file);
    return count;
}
