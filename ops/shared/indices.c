#include "ops/shared/indices.h"

static void check_each(Tape *tape, const char *label, const Tensor *indices, int64_t low,
                       int64_t high, const char *reason)
{
    enum { PIECE = 256 };
    int32_t piece[PIECE];
    int64_t count = tensor_count(indices);
    for (int64_t start = 0; start < count; start += PIECE) {
        int64_t length = count - start < PIECE ? count - start : PIECE;
        device_copy_out(indices->device, piece, indices->integers + start,
                        (size_t)length * sizeof *piece);
        for (int64_t i = 0; i < length; i++)
            if (piece[i] < low || piece[i] > high)
                tape_error(tape, "%s[%lld] is %d, expected %lld to %lld, %s", label,
                           (long long)(start + i), (int)piece[i], (long long)low, (long long)high,
                           reason);
    }
}

void check_indices(Tape *tape, const char *label, Tensor *indices, int64_t low, int64_t high,
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

void check_sequence_lengths(Tape *tape, const char *label, Tensor *lengths, int64_t B, int64_t low,
                            int64_t high, const char *reason)
{
    tape_use_i32(tape, label, lengths);
    if (!shape_equal(lengths->shape, shape(B)))
        tape_error(tape, "%s is %s, expected [%lld]: one per sequence", label,
                   shape_text(lengths->shape).text, (long long)B);
    check_indices(tape, label, lengths, low, high, reason);
}

static void check_ascending(Tape *tape, const char *label, const Tensor *indices, int64_t first,
                            int64_t last, const char *reason)
{
    const int64_t end = tensor_count(indices) - 1;
    int32_t here = 0, before = (int32_t)first;
    for (int64_t i = 0; i <= end; i++, before = here) {
        device_copy_out(indices->device, &here, indices->integers + i, sizeof here);
        if (here < before || (i == 0 && here != first) || (i == end && here != last))
            tape_error(tape, "%s[%lld] is %d, expected ascending numbers from %lld to %lld, %s",
                       label, (long long)i, (int)here, (long long)first, (long long)last, reason);
    }
}

void check_spanning(Tape *tape, const char *label, Tensor *indices, int64_t first, int64_t last,
                    const char *reason)
{
    const IntegerBounds *bounds = &tensor_root(indices)->bounds;
    IntegerBounds *required = &tensor_root(indices)->required_bounds;
    const bool known = device_is_cuda(indices->device) && bounds->known && bounds->spanning &&
                       bounds->min == first && bounds->max == last;
    if (!known)
        check_ascending(tape, label, indices, first, last, reason);
    *required = (IntegerBounds){ true, true, (int32_t)first, (int32_t)last };
}
