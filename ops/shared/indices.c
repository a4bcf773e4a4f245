#include "ops/shared/indices.h"
#include "tensor/internal.h"

void op_read_chunk(ChunkedRead *read, int64_t i)
{
    const int64_t left = tensor_count(read->tensor) - i;
    const size_t count = (size_t)(left < READ_CHUNK ? left : READ_CHUNK);
    device_copy_out(read->tensor->device, read->integers, tensor_at(read->tensor, i),
                    count * tensor_element_bytes(read->tensor));
}

static void check_each(Tape *tape, const char *label, const Tensor *indices, int64_t low,
                       int64_t high, const char *reason)
{
    const int64_t count = tensor_count(indices);
    ChunkedRead read;
    read.tensor = indices;
    for (int64_t i = 0; i < count; i++) {
        const int32_t value = read.integers[chunk_index(&read, i)];
        if (value < low || value > high)
            tape_error(tape, "%s[%lld] is %d, expected %lld to %lld, %s", label, (long long)i,
                       (int)value, (long long)low, (long long)high, reason);
    }
}

void op_check_indices(Tape *tape, const char *label, Tensor *indices, int64_t low, int64_t high,
                      const char *reason)
{
    IntegerBounds *bounds = &tensor_root(indices)->bounds;
    IntegerBounds *required = &tensor_root(indices)->required_bounds;
    bool known = device_is_cuda(indices->device) && bounds->known;
    if (!known || bounds->min < low || bounds->max > high)
        check_each(tape, label, indices, low, high, reason);
    if (!required->known)
        *required = (IntegerBounds){ true, false, INT32_MIN, INT32_MAX };
    required->min = low > required->min ? (int32_t)low : required->min;
    required->max = high < required->max ? (int32_t)high : required->max;
}

void op_check_sequence_lengths(Tape *tape, const char *label, Tensor *lengths, int64_t B,
                               int64_t low, int64_t high, const char *reason)
{
    tape_use_i32(tape, label, lengths);
    if (!shape_equal(lengths->shape, shape(B)))
        tape_error(tape, "%s is %s, expected [%lld]: one per sequence", label,
                   shape_text(lengths->shape).text, (long long)B);
    op_check_indices(tape, label, lengths, low, high, reason);
}

/* Raises unless the offsets ascend (equal ones allowed) from 0 to N. */
static void check_ascending(Tape *tape, const char *label, const Tensor *offsets, int64_t N)
{
    const int64_t end = tensor_count(offsets) - 1;
    int32_t previous = 0;
    ChunkedRead read;
    read.tensor = offsets;
    for (int64_t i = 0; i <= end; i++) {
        const int32_t value = read.integers[chunk_index(&read, i)];
        if (value < previous || (i == 0 && value != 0) || (i == end && value != N))
            tape_error(tape,
                       "%s[%lld] is %d, expected ascending numbers from 0 to %lld, the number of "
                       "positions",
                       label, (long long)i, (int)value, (long long)N);
        previous = value;
    }
}

void op_check_offsets(Tape *tape, const char *label, Tensor *offsets, const Tensor *lengths,
                      const Tensor *x, const char *name)
{
    const int64_t N = x->shape.size[1];
    tape_use_i32(tape, label, offsets);
    if (offsets->shape.rank != 1 || offsets->shape.size[0] < 2)
        tape_error(tape, "%s has shape %s, expected [S + 1]", label,
                   shape_text(offsets->shape).text);
    if (lengths)
        tape_error(tape, "%s: lengths are given too, expected one of the two", label);
    if (x->shape.size[0] != 1)
        tape_error(tape, "%s: %s %s, expected one sequence, [1, N, ..], which they divide", label,
                   name, tensor_text(x).text);
    const IntegerBounds bounds = tensor_root(offsets)->bounds;
    if (!device_is_cuda(offsets->device) || !bounds.known || !bounds.spanning || bounds.min != 0 ||
        bounds.max != N)
        check_ascending(tape, label, offsets, N);
    tensor_root(offsets)->required_bounds = (IntegerBounds){ true, true, 0, (int32_t)N };
}

void op_check_state(Tape *tape, const char *label, Tensor *state, Shape expected, const char *axes)
{
    tape_use_real(tape, label, state);
    if (!shape_equal(state->shape, expected))
        tape_error(tape, "%s %s, expected %s: [sequences, %s]", label, tensor_text(state).text,
                   shape_text(expected).text, axes);
}
