/* Generation states to and from safetensors files. Entries: "counts" [B], "max_length" [], and per
 * layer "layers.0.sums" [B, H, F, D + 1] and "layers.0.convolution", or "layers.0.keys" and
 * "layers.0.values" [B, H, max_length, D] (with a window [B, H, sinks + window, D]), in Real:
 * states in bf16 and in Real load each other's files. */
#include "ext/decode/state.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ENTRIES = MAX_STATE_TENSORS + 2, ENTRY_NAME_BYTES = 32 };

/* A state on the host: the source of a save, the destination of a load. */
typedef struct HostState {
    int count;
    FileEntry entries[MAX_ENTRIES];
    char names[MAX_ENTRIES][ENTRY_NAME_BYTES];
    int32_t max_length, *counts; /* counts: after data */
    Real data[];
} HostState;

/* An entry of a layer, or of no layer: -1. */
static void add_entry(HostState *host, int layer, const char *name, FileType type, Shape shape,
                      const void *data)
{
    char *text = host->names[host->count];
    if (layer < 0)
        snprintf(text, ENTRY_NAME_BYTES, "%s", name);
    else
        snprintf(text, ENTRY_NAME_BYTES, "layers.%d.%s", layer, name);
    host->entries[host->count++] =
        (FileEntry){ .name = text, .type = type, .shape = shape, .data = data };
}

/* Allocates the buffers and lists the entries; reports and returns NULL when memory is
 * exhausted. */
static HostState *host_state(const TransformerState *state, const char *function)
{
    const int64_t count = tensor_count(&state->data);
    const size_t bytes =
        sizeof(HostState) + (size_t)count * sizeof(Real) + (size_t)state->B * sizeof(int32_t);
    HostState *host = memory_allocate(bytes);
    if (!host) {
        error_report("%s: %s", function, device_exhausted(state->device, bytes).text);
        return NULL;
    }
    host->count = 0;
    host->counts = (int32_t *)(host->data + count);
    host->max_length = (int32_t)state->max_length;
    StateTensor list[MAX_STATE_TENSORS];
    const int tensors = state_tensors(state, list);
    for (int i = 0; i < tensors; i++)
        add_entry(host, list[i].layer, list[i].name,
                  sizeof(Real) == sizeof(double) ? FILE_F64 : FILE_F32, list[i].tensor->shape,
                  host->data + list[i].offset);
    add_entry(host, -1, "counts", FILE_I32, shape(state->B), host->counts);
    add_entry(host, -1, "max_length", FILE_I32, shape_scalar(), &host->max_length);
    return host;
}

bool nn_transformer_state_save(const TransformerState *state, const char *path)
{
    HostState *host = host_state(state, "nn_transformer_state_save");
    if (!host)
        return false;
    tensor_read(&state->data, host->data);
    device_copy_out(state->device, host->counts, state->device_counts,
                    (size_t)state->B * sizeof(int32_t));
    const bool ok = tensor_file_save(host->entries, host->count, NULL, 0, path);
    free(host);
    return ok;
}

/* Whether max_length and the counts fit this state. */
static bool check_numbers(const TransformerState *state, const HostState *host, const char *path)
{
    const int64_t max_length = state->max_length;
    if (host->max_length != max_length)
        return error_report("nn_transformer_state_load: %s: max_length is %d, expected %lld", path,
                            (int)host->max_length, (long long)max_length);
    for (int64_t b = 0; b < state->B; b++)
        if (host->counts[b] < 0 || host->counts[b] > max_length)
            return error_report("nn_transformer_state_load: %s: counts[%lld] is %d, expected 0 to "
                                "%lld",
                                path, (long long)b, (int)host->counts[b], (long long)max_length);
    return true;
}

static bool read_all(HostState *host, const TensorFile *file, const char *path)
{
    for (int i = 0; i < host->count; i++) {
        const FileEntry *entry = &host->entries[i];
        void *data = (void *)entry->data;
        if (!(entry->type == FILE_I32 ? tensor_file_read_i32(file, entry->name, entry->shape, data)
                                      : tensor_file_read(file, entry->name, entry->shape, data)))
            return false;
    }
    if (tensor_file_count(file) != host->count)
        return error_report("nn_transformer_state_load: %s has %d entries, expected %d: it belongs "
                            "to another transformer",
                            path, tensor_file_count(file), host->count);
    return true;
}

bool nn_transformer_state_load(TransformerState *state, const char *path)
{
    HostState *host = host_state(state, "nn_transformer_state_load");
    TensorFile *file = host ? tensor_file_open(path) : NULL;
    const bool ok = file && read_all(host, file, path) && check_numbers(state, host, path);
    if (ok) {
        tensor_write(&state->data, host->data);
        state_write_counts(state, host->counts);
    }
    tensor_file_close(file);
    free(host);
    return ok;
}
