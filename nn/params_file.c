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

/* The weight's elements in a host copy of a flat buffer. */
static Real *elements_of(Params *params, const Tensor *weight, Real *host)
{
    return host + (weight->data - params_flat_values(params)->data);
}

bool params_save_parts(const char *function, Params *params, const FilePart *parts, int part_count,
                       const FileMetadata *metadata, int metadata_count, const char *path)
{
    const int weights = params_count(params), count = part_count * weights;
    const size_t bytes = part_bytes(params);
    Real *host = memory_allocate((size_t)part_count * bytes);
    FileEntry *entries = memory_allocate((size_t)count * sizeof *entries);
    Name *names = memory_allocate((size_t)count * sizeof *names);
    bool ok = host && entries && names;
    if (!ok)
        error_report("%s: %s", function, device_exhausted(params->device, bytes).text);
    for (int i = 0; ok && i < count; i++) {
        const FilePart *part = &parts[i / weights];
        Real *copy = host + i / weights * params->flat_count;
        if (i % weights == 0)
            device_copy_out(params->device, copy, part->data, bytes);
        const Tensor *weight = params_at(params, i % weights);
        names[i] = prefixed(part->prefix, weight);
        entries[i] = (FileEntry){ .name = names[i].text,
                                  .type = FILE_TYPE_OF_REAL,
                                  .shape = weight->shape,
                                  .data = elements_of(params, weight, copy) };
    }
    ok = ok && tensor_file_save(entries, count, metadata, metadata_count, path);
    free(names);
    free(entries);
    free(host);
    return ok;
}

/* Whether the entry belongs to a part, or has a prefix that is ignored. */
static bool is_known(const Params *params, const FilePart *parts, int part_count,
                     const char *ignored, const char *name)
{
    bool known = ignored && strncmp(name, ignored, strlen(ignored)) == 0;
    for (int part = 0; part < part_count; part++) {
        const size_t length = strlen(parts[part].prefix);
        known |=
            strncmp(name, parts[part].prefix, length) == 0 && params_find(params, name + length);
    }
    return known;
}

static bool report_unknown(const char *function, const char *path, const char *name)
{
    return error_report("%s: %s: there is no weight for the entry \"%.80s\"", function, path, name);
}

static bool all_known(const char *function, const Params *params, const FilePart *parts,
                      int part_count, const char *ignored, const TensorFile *file, const char *path)
{
    for (int i = 0; i < tensor_file_count(file); i++) {
        const char *name = tensor_file_entry(file, i)->name;
        if (!is_known(params, parts, part_count, ignored, name))
            return report_unknown(function, path, name);
    }
    return true;
}

bool params_load_parts(const char *function, Params *params, const FilePart *parts, int part_count,
                       const char *ignored, const TensorFile *file, const char *path)
{
    const size_t bytes = part_bytes(params);
    Real *host = memory_allocate((size_t)part_count * bytes);
    if (!host)
        return error_report("%s: %s", function, device_exhausted(params->device, bytes).text);
    memset(host, 0, (size_t)part_count * bytes); /* the padding */
    bool ok = true;
    for (int part = 0; part < part_count; part++)
        for (int i = 0; ok && i < params_count(params); i++) {
            const Tensor *weight = params_at(params, i);
            Real *copy = host + part * params->flat_count;
            ok = tensor_file_read(file, prefixed(parts[part].prefix, weight).text, weight->shape,
                                  elements_of(params, weight, copy));
        }
    ok = ok && all_known(function, params, parts, part_count, ignored, file, path);
    for (int part = 0; ok && part < part_count; part++)
        device_copy_in(params->device, parts[part].data, host + part * params->flat_count, bytes);
    if (ok)
        params_written(params);
    free(host);
    return ok;
}

static bool need_weights(const char *function, Params *params)
{
    const char *error = params_allocate(params);
    return !error || error_report("%s: the weights %s", function, error);
}

bool params_save(Params *params, const char *path)
{
    if (!need_weights("params_save", params))
        return false;
    const FilePart weights = { "", params_flat_values(params)->data };
    return params_save_parts("params_save", params, &weights, 1, NULL, 0, path);
}

bool params_load(Params *params, const char *path)
{
    if (!need_weights("params_load", params))
        return false;
    const FilePart weights = { "", params_flat_values(params)->data };
    TensorFile *file = tensor_file_open(path);
    const bool ok =
        file && params_load_parts("params_load", params, &weights, 1, STATE_PREFIX, file, path);
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
    if (!need_weights("params_load_some", params))
        return -1;
    const FilePart weights = { "", params_flat_values(params)->data };
    const size_t bytes = part_bytes(params);
    TensorFile *file = tensor_file_open(path);
    Real *host = file ? memory_allocate(bytes) : NULL;
    int count = -1;
    if (host) {
        report = report ? report : ignore;
        device_copy_out(params->device, host, weights.data, bytes);
        count = read_matching_entries(params, file, host, report, context);
        for (int i = 0; i < tensor_file_count(file); i++) {
            const char *name = tensor_file_entry(file, i)->name;
            if (!is_known(params, &weights, 1, STATE_PREFIX, name)) {
                report_unknown("params_load_some", path, name);
                report(name, tapegrad_error(), context);
            }
        }
        device_copy_in(params->device, weights.data, host, bytes);
        params_written(params);
    } else if (file) {
        error_report("params_load_some: %s", device_exhausted(params->device, bytes).text);
    }
    free(host);
    tensor_file_close(file);
    return count;
}
