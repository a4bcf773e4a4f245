/* Weights to and from safetensors files. */
#include "nn/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
static const FileType real_type = FILE_F64;
#else
static const FileType real_type = FILE_F32;
#endif

static Name prefixed(const char *prefix, const Tensor *weight)
{
    Name name;
    int length = snprintf(name.text, sizeof name.text, "%s%s", prefix, weight->name);
    if (length < 0 || length >= NAME_BYTES)
        error_raise("params: the name \"%s...\" is too long for a file", name.text);
    return name;
}

void params_file_entries(Params *params, const char *prefix, const Real *host, FileEntry *entries,
                         Name *names)
{
    const Real *values = params_flat_values(params)->data;
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        names[i] = prefixed(prefix, weight);
        entries[i] = (FileEntry){ .name = names[i].text,
                                  .type = real_type,
                                  .shape = weight->shape,
                                  .data = host + (weight->data - values) };
    }
}

bool params_file_read(Params *params, const TensorFile *file, const char *prefix, Real *host)
{
    const Real *values = params_flat_values(params)->data;
    memset(host, 0, (size_t)params_flat_count(params) * sizeof(Real));
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        if (!tensor_file_read(file, prefixed(prefix, weight).text, weight->shape,
                              host + (weight->data - values)))
            return false;
    }
    return true;
}

/* Allocates the flat buffers and host memory for a copy of one; on failure reports and returns
 * NULL. */
static Real *allocate_host(Params *params, const char *function)
{
    size_t bytes = (size_t)params_flat_count(params) * sizeof(Real);
    const char *error = params_allocate(params);
    Real *host = error ? NULL : memory_allocate(bytes);
    if (error)
        error_report("%s: the weights %s", function, error);
    else if (!host)
        error_report("%s: %s", function, device_exhausted(params_device(params), bytes).text);
    return host;
}

bool params_save(Params *params, const char *path)
{
    const size_t count = (size_t)params_count(params);
    const size_t bytes = (size_t)params_flat_count(params) * sizeof(Real);
    Real *host = allocate_host(params, "params_save");
    if (!host)
        return false;
    FileEntry *entries = memory_allocate(count * sizeof *entries);
    Name *names = memory_allocate(count * sizeof *names);
    bool good = entries && names;
    if (good) {
        device_copy_out(params_device(params), host, params_flat_values(params)->data, bytes);
        params_file_entries(params, "", host, entries, names);
        good = tensor_file_save(entries, (int)count, NULL, 0, path);
    } else {
        error_report("params_save: %s",
                     device_exhausted(params_device(params), count * sizeof *names).text);
    }
    free(names);
    free(entries);
    free(host);
    return good;
}

/* Whether every entry is a weight; a checkpoint's optimizer state is skipped. */
static bool all_known(const Params *params, const TensorFile *file, const char *path)
{
    for (int i = 0; i < tensor_file_count(file); i++) {
        const char *name = tensor_file_entry(file, i)->name;
        const bool state = strncmp(name, STATE_PREFIX, strlen(STATE_PREFIX)) == 0;
        if (!params_find(params, name) && !state)
            return error_report("params_load: %s: there is no weight for the entry \"%.80s\"", path,
                                name);
    }
    return true;
}

bool params_load(Params *params, const char *path)
{
    Real *host = allocate_host(params, "params_load");
    TensorFile *file = host ? tensor_file_open(path) : NULL;
    bool good = file && params_file_read(params, file, "", host) && all_known(params, file, path);
    if (good) {
        device_copy_in(params_device(params), params_flat_values(params)->data, host,
                       (size_t)params_flat_count(params) * sizeof(Real));
        params_written(params);
    }
    tensor_file_close(file);
    free(host);
    return good;
}
