#include "ops/shared/integers.h"

#include "ops/kernels.h"
#include "ops/shared/internal.h"
#include "tensor/internal.h"

void copy_integers_plain(int32_t *to, const int32_t *from, IntegerCopy copy)
{
    EACH(e, shape_count(copy.shape)) {
        const IntegerPlaces places = integer_places(&copy, e);
        to[places.to] = from[places.from];
    }
}

void row_major_strides(int64_t *stride, Shape shape)
{
    int64_t count = 1;
    for (int axis = shape.rank - 1; axis >= 0; count *= shape.size[axis--])
        stride[axis] = count;
}

void use_any_dtype(Tape *tape, const char *label, Tensor *x)
{
    if (x && x->type == TENSOR_INT32)
        tape_use_i32(tape, label, x);
    else
        tape_use(tape, label, x);
}

IntegerBounds bounds_of_both(IntegerBounds a, IntegerBounds b)
{
    return (IntegerBounds){ .known = a.known && b.known,
                            .min = a.min < b.min ? a.min : b.min,
                            .max = a.max > b.max ? a.max : b.max };
}

void check_bounds_in(Tape *tape, const char *operation, const char *from, const char *to,
                     IntegerBounds bounds, IntegerBounds required)
{
    if (required.known &&
        !(bounds.known && bounds.min >= required.min && bounds.max <= required.max))
        tape_error(tape,
                   "%s: %s may be %d to %d, expected %d to %d, as the operations that use %s need",
                   operation, from, (int)bounds.min, (int)bounds.max, (int)required.min,
                   (int)required.max, to);
}

typedef struct Copied {
    Tape *tape;
    const char *operation;
    Tensor *out, *const *from;
    int count;
} Copied;

static void note_copied_bounds(const Copied *copied)
{
    IntegerBounds bounds = tensor_root(copied->from[0])->bounds;
    for (int t = 0; t < copied->count; t++)
        bounds = bounds_of_both(bounds, tensor_root(copied->from[t])->bounds);
    copied->out->bounds = bounds;
}

static void check_before_replay(void *context)
{
    const Copied *copied = context;
    note_copied_bounds(copied);
    check_bounds_in(copied->tape, copied->operation, "the integers", "the result",
                    copied->out->bounds, copied->out->required_bounds);
}

void note_copied(Tape *tape, const char *operation, Tensor *out, Tensor *const *from, int count)
{
    Copied copied = { tape, operation, out, from, count };
    tape_record(tape, (Node){ .name = operation, .outputs = { out } });
    note_copied_bounds(&copied);
    if (!device_is_capturing(out->device))
        return;
    copied.from = tape_save(tape, from, (size_t)count * sizeof(Tensor *));
    device_captures(out->device)
        ->before_replay(out->device, check_before_replay,
                        (void *)(uintptr_t)tape_save(tape, &copied, sizeof copied));
}
