/* The tensors of a tape: of a step, in the arena, and persistent ones; the checks of an operation's
 * arguments. */
#include "autograd/internal.h"

#include <stdlib.h>

void tape_free_storage(Tensor *tensor)
{
    device_free(tensor->device, tensor->block);
    tensor->block = NULL;
    tensor->data = NULL;
}

/* Prepends entry to the list, as a tensor without storage. */
static Tensor *add_tensor(Tape *tape, TapeTensor **list, TapeTensor *entry, TensorType type,
                          Shape shape)
{
    *entry = (TapeTensor){ .position = tape->tensor_count, .previous = *list };
    entry->tensor = (Tensor){ .device = tape->device, .type = type, .shape = shape, .tape = tape };
    entry->gradient = entry->tensor;
    entry->tensor.gradient = &entry->gradient;
    *list = entry;
    return &entry->tensor;
}

static Tensor *new_tensor(Tape *tape, TensorType type, Shape shape)
{
    shape = shape_new(shape.rank, shape.size); /* checks a Shape that was not made by shape() */
    const bool claimed = error_claim(&tape->errors, error_operation());
    TapeTensor *entry = arena_allocate(tape, sizeof *entry);
    Tensor *tensor = add_tensor(tape, &tape->last_tensor, entry, type, shape);
    tape->tensor_count++;
    error_release(&tape->errors, claimed);
    return tensor;
}

void tape_allocate_storage(Tape *tape, Tensor *tensor)
{
    size_t bytes = tensor_bytes(tensor);
    tensor->block = device_allocate(tape->device, bytes);
    if (!tensor->block)
        tape_raise_exhausted(tape, bytes);
    tensor->data = tensor->block->data;
}

void tape_free_tensor(Tensor *tensor)
{
    if (tensor->base)
        return;
    tape_free_storage(tensor);
    tape_free_storage(tensor->gradient);
    tensor->has_gradient = false;
}

Tensor *tape_tensor_of(Tape *tape, TensorType type, Shape shape)
{
    Tensor *tensor = new_tensor(tape, type, shape);
    tape_allocate_storage(tape, tensor);
    return tensor;
}

Tensor *tape_tensor(Tape *tape, Shape shape)
{
    return tape_tensor_of(tape, TENSOR_REAL, shape);
}

Tensor *tape_tensor_i32(Tape *tape, Shape shape)
{
    return tape_tensor_of(tape, TENSOR_INT32, shape);
}

Tensor *tape_view(Tape *tape, Tensor *tensor, Shape shape)
{
    tape_check_tensor(tape, "tape_view: the tensor", tensor,
                      tensor && tensor->type == TENSOR_INT32 ? TENSOR_INT32 : TENSOR_REAL);
    shape = shape_new(shape.rank, shape.size);
    if (shape_count(shape) != tensor_count(tensor))
        tape_error(tape, "tape_view: cannot view %s as %s: the element counts differ",
                   shape_text(tensor->shape).text, shape_text(shape).text);
    Tensor *view = new_tensor(tape, tensor->type, shape);
    view->base = tensor_root(tensor);
    view->gradient->base = view->base->gradient;
    view->data = tensor->data;
    view->requires_grad = tensor->requires_grad;
    return view;
}

void tape_scratch_free(Tape *tape, Tensor *scratch)
{
    if (!scratch)
        return;
    tape_notify(tape, TAPE_FREES, NULL, NULL);
    tape_free_storage(scratch);
}

/* Raises if tape or host is NULL; sets the label of later errors. */
static void check_input(Tape *tape, const char *function, const void *host)
{
    tape_check(tape, function);
    if (!host)
        tape_error(tape, "%s: host is NULL", function);
}

static Tensor *input(Tape *tape, const char *function, const Real *host, Shape shape)
{
    check_input(tape, function, host);
    Tensor *tensor = tape_tensor(tape, shape);
    tensor_write(tensor, host);
    return tensor;
}

Tensor *tape_input(Tape *tape, const Real *host, Shape shape)
{
    return input(tape, "tape_input", host, shape);
}

Tensor *tape_input_i32(Tape *tape, const int32_t *host, Shape shape)
{
    check_input(tape, "tape_input_i32", host);
    Tensor *tensor = tape_tensor_i32(tape, shape);
    tensor_write_i32(tensor, host);
    return tensor;
}

Tensor *tape_variable(Tape *tape, const Real *host, Shape shape)
{
    Tensor *tensor = input(tape, "tape_variable", host, shape);
    tensor->requires_grad = true;
    return tensor_keep(tensor);
}

static Tensor *new_persistent(Tape *tape, const char *label, TensorType type, Shape shape)
{
    tape_check(tape, label);
    shape = shape_new(shape.rank, shape.size);
    TapeTensor *entry = memory_allocate(sizeof *entry);
    if (!entry)
        tape_raise_exhausted(tape, sizeof *entry);
    Tensor *tensor = add_tensor(tape, &tape->last_persistent, entry, type, shape);
    tape_allocate_storage(tape, tensor);
    device_zero(tape->device, tensor->data, tensor_bytes(tensor));
    tensor->bounds = (IntegerBounds){ .known = true };
    return tensor;
}

Tensor *tape_persistent(Tape *tape, Shape shape)
{
    return new_persistent(tape, "tape_persistent", TENSOR_REAL, shape);
}

Tensor *tape_persistent_i32(Tape *tape, Shape shape)
{
    return new_persistent(tape, "tape_persistent_i32", TENSOR_INT32, shape);
}

Tensor *tape_persistent_variable(Tape *tape, TensorType type, Shape shape)
{
    static const char label[] = "tape_persistent_variable";
    tape_check(tape, label);
    if (type != TENSOR_REAL && type != TENSOR_BF16)
        tape_error(tape, "%s: a tensor of type %d has no gradient", label, (int)type);
    if (type == TENSOR_BF16 && tape->precision != PRECISION_BF16)
        tape_error(tape, "%s: bf16 needs a tape of that precision; see tape_set_precision", label);
    Tensor *tensor = new_persistent(tape, label, type, shape);
    tensor->requires_grad = tensor->keep = true;
    return tensor;
}

void tape_check_tensor(Tape *tape, const char *label, Tensor *tensor, TensorType type)
{
    tape_check(tape, label);
    const char *error = tensor_unreadable(tensor, type);
    if (error)
        tape_error(tape, "%s %s", tensor_label(label, tensor).text, error);
    if (tensor->device != tape->device)
        tape_error(tape, "%s is on %s, the tape on %s", tensor_label(label, tensor).text,
                   device_name(tensor->device), device_name(tape->device));
    if (tensor->tape && tensor->tape != tape)
        tape_error(tape, "%s belongs to another tape", label);
}

void tape_use(Tape *tape, const char *label, Tensor *tensor)
{
    tape_check_tensor(tape, label, tensor, TENSOR_REAL);
}

void tape_use_real(Tape *tape, const char *label, Tensor *tensor)
{
    tape_check_tensor(tape, label, tensor, TENSOR_REAL);
    if (tensor->type == TENSOR_BF16)
        tape_error(tape, "%s is stored in bf16, expected type Real; see op_cast", label);
}

void tape_use_cpu(Tape *tape, const char *label, Tensor *tensor)
{
    tape_use_real(tape, label, tensor);
    if (device_is_cuda(tape->device))
        tape_error(tape, "%s is on %s, expected the CPU: this operation reads data as host memory",
                   label, device_name(tape->device));
}

void tape_use_i32(Tape *tape, const char *label, Tensor *tensor)
{
    tape_check_tensor(tape, label, tensor, TENSOR_INT32);
}

void tape_free_since(Tape *tape, int64_t first, Tensor *spared)
{
    TapeTensor *entry = tape->last_tensor, *spared_entry = NULL;
    tape_notify(tape, TAPE_FREES, NULL, NULL);
    for (; entry && entry->position >= first; entry = entry->previous) {
        if (&entry->tensor == spared)
            spared_entry = entry;
        else
            tape_free_tensor(&entry->tensor);
    }
    if (spared_entry)
        spared_entry->previous = entry;
    tape->last_tensor = spared_entry ? spared_entry : entry;
}
