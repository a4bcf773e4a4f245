/* The tensors from outside of a step that its operations have written, such as running statistics:
 * their elements of before, which tape_reset after an error writes back. */
#include "autograd/internal.h"

struct Overwritten {
    Tensor *tensor;
    Block *before;
    Overwritten *previous;
};

bool tape_will_overwrite(Tape *tape, Tensor *tensor)
{
    if (tape_is_recomputing(tape))
        return false;
    Overwritten *entry = arena_allocate(tape, sizeof *entry);
    Block *before = device_allocate(tape->device, tensor_bytes(tensor));
    if (!before)
        tape_raise_exhausted(tape, tensor_bytes(tensor));
    device_copy(tape->device, before->data, tensor->data, tensor_bytes(tensor));
    *entry = (Overwritten){ tensor, before, tape->last_overwritten };
    tape->last_overwritten = entry;
    return true;
}

/* The first copy of a tensor, which is the last in the list, prevails. */
void tape_end_overwritten(Tape *tape, bool restore)
{
    for (Overwritten *entry = tape->last_overwritten; entry; entry = entry->previous) {
        if (restore && entry->tensor->data)
            device_copy(tape->device, entry->tensor->data, entry->before->data,
                        tensor_bytes(entry->tensor));
        device_free(tape->device, entry->before);
    }
    tape->last_overwritten = NULL;
}
