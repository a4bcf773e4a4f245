/* Observing a tape: the nucleus says what happens, an extension makes something of it. */
#include "autograd/internal.h"

bool tape_is_observed(const Tape *tape, const char *function)
{
    error_need(function, "the tape", tape);
    tape_check_not_freed(tape, function);
    return tape->observer != NULL;
}

void tape_observe(Tape *tape, TapeObserver *observer)
{
    tape->observer = observer;
}

static void visit(TapeTensorFunction *function, void *context, const TapeTensor *entry,
                  int64_t index)
{
    if (entry->tensor.block)
        function(context, &entry->tensor, index, false);
    if (entry->gradient.block)
        function(context, &entry->gradient, index, true);
}

void tape_each_tensor(const Tape *tape, TapeTensorFunction *function, void *context)
{
    for (const TapeTensor *entry = tape->last_tensor; entry; entry = entry->previous)
        visit(function, context, entry, entry->position);
    for (const TapeTensor *entry = tape->last_persistent; entry; entry = entry->previous)
        visit(function, context, entry, -1);
}
