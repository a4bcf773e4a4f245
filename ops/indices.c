#include "ops/indices.h"

void check_indices(Tape *tape, const char *label, const Tensor *indices, int64_t limit,
                   const char *reason)
{
    enum { PIECE = 256 };
    int32_t piece[PIECE];
    int64_t count = tensor_count(indices);
    for (int64_t start = 0; start < count; start += PIECE) {
        int64_t length = count - start < PIECE ? count - start : PIECE;
        device_copy_out(indices->device, piece, indices->integers + start,
                        (size_t)length * sizeof *piece);
        for (int64_t i = 0; i < length; i++)
            if (piece[i] < 0 || piece[i] >= limit)
                tape_error(tape, "%s[%lld] is %d, expected 0 to %lld, %s", label,
                           (long long)(start + i), (int)piece[i], (long long)limit - 1, reason);
    }
}
