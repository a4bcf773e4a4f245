/* The tape: an arena for small structs, a list of tensors and a list of nodes. backward.c visits
 * the nodes in reverse order. */
#include "autograd/internal.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16 };

/* A step rarely records this many nodes, an evaluation that forgets to turn recording off does. */
enum { SUSPICIOUS_NODES = 50000 };

/* ------------------------------------------------------------------------------ life and errors */
void tape_free_storage(Tensor *tensor)
{
    device_free(tensor->device, tensor->block);
    tensor->block = NULL;
    tensor->data = NULL;
}

_Thread_local uint64_t tape_process;

Tape *tape_new(Device *device)
{
    error_need("tape_new", "the device", device);
    Tape *tape = memory_allocate(sizeof *tape);
    if (!tape)
        error_raise("tape_new: %s", device_exhausted(device, sizeof *tape).text);
    *tape = (Tape){ .device = device, .recording = true, .training = true };
    tape->guarded = memory_is_guarded() ? INT64_MAX : 2;
    tape->current = &tape->chunks;
    error_context_open(&tape->errors);
    tape_seed(tape, 0);
    return tape;
}

static void free_chunks(Chunk *chunk)
{
    for (Chunk *next; chunk; chunk = next) {
        next = chunk->next;
        UNPOISON(chunk->bytes, chunk->size);
        free(chunk);
    }
}

void tape_free(Tape *tape)
{
    if (!tape)
        return;
    tape_reset(tape);
    device_free(tape->device, tape->replay.random_start);
    for (TapeTensor *entry = tape->last_persistent, *previous; entry; entry = previous) {
        previous = entry->previous;
        tape_free_storage(&entry->tensor);
        free(entry);
    }
    free_chunks(tape->chunks);
    free_chunks(tape->previous_chunks);
    error_context_close(&tape->errors);
    free(tape);
}

Device *tape_device(const Tape *tape)
{
    return tape->device;
}

void tape_error(Tape *tape, const char *format, ...)
{
    error_enter(&tape->errors, error_operation());
    va_list arguments;
    va_start(arguments, format);
    error_raise_arguments(format, arguments);
}

void tape_set_precision(Tape *tape, Precision precision)
{
    static const char *const names[] = { "float32", "tf32", "bf16" };
    if ((int)precision < PRECISION_FLOAT32 || (int)precision > PRECISION_BF16)
        tape_error(tape, "tape_set_precision: there is no precision %d", (int)precision);
    if (tape->tensor_count > 0)
        tape_error(tape, "tape_set_precision: the tape holds tensors; call tape_reset first");
    if (precision != PRECISION_FLOAT32 && sizeof(Real) == sizeof(double))
        tape_error(tape, "tape_set_precision: %s is not available in a double-precision build",
                   names[precision]);
    if (precision != PRECISION_FLOAT32 && device_is_plain(tape->device))
        tape_error(tape, "tape_set_precision: %s is not available on %s", names[precision],
                   device_name(tape->device));
    if (precision == PRECISION_TF32 && !device_is_cuda(tape->device))
        tape_error(tape, "tape_set_precision: tf32 needs a CUDA device, the tape is on %s",
                   device_name(tape->device));
    for (const TapeTensor *entry = tape->last_persistent; entry; entry = entry->previous)
        if (entry->tensor.data && entry->tensor.type == TENSOR_BF16 && precision != PRECISION_BF16)
            tape_error(tape,
                       "tape_set_precision: the tape has persistent tensors in bf16, which "
                       "%s does not compute with",
                       names[precision]);
    tape->precision = precision;
}

Precision tape_precision(const Tape *tape)
{
    return tape->precision;
}

void tape_check(Tape *tape, const char *label)
{
    if (!tape)
        error_raise("%.*s: the tape is NULL", (int)strcspn(label, ":"), label);
    error_enter(&tape->errors, label);
}

void tape_raise_exhausted(Tape *tape, size_t bytes)
{
    error_enter(&tape->errors, error_operation());
    device_raise_exhausted(tape->device, bytes);
}

/* ------------------------------------------------------------------------------------ the arena */
static void *arena_allocate(Tape *tape, size_t bytes)
{
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    Chunk **link = tape->current;
    while (*link && (*link)->used + bytes > (*link)->size)
        link = &(*link)->next;
    tape->current = link;
    if (!*link) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        Chunk *chunk = memory_allocate(sizeof *chunk + size);
        if (!chunk)
            tape_raise_exhausted(tape, sizeof *chunk + size);
        *chunk = (Chunk){ .size = size };
        *link = chunk;
    }
    void *result = (*link)->bytes + (*link)->used;
    UNPOISON(result, bytes);
    (*link)->used += bytes;
    return result;
}

const void *tape_save(Tape *tape, const void *data, size_t size)
{
    return memcpy(arena_allocate(tape, size), data, size);
}

/* -------------------------------------------------------------------------------------- tensors */

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
    (void)tape;
    if (scratch)
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

/* ------------------------------------------------------------------------------------ recording */
static bool exchange(bool *setting, bool on)
{
    const bool before = *setting;
    *setting = on;
    return before;
}

bool tape_set_recording(Tape *tape, bool on)
{
    return exchange(&tape->recording, on);
}

bool tape_is_recording(const Tape *tape)
{
    return tape->recording;
}

bool tape_has_recorded(const Tape *tape)
{
    return tape->last_node && !tape->backward_started;
}

bool tape_set_training(Tape *tape, bool on)
{
    return exchange(&tape->training, on);
}

bool tape_is_training(const Tape *tape)
{
    return tape->training;
}

bool tape_check_finite(Tape *tape, bool on)
{
    return exchange(&tape->checks_finite, on);
}

void tape_record(Tape *tape, Node node)
{
    if (!node.name)
        node.name = "tape_record";
    if (tape->checks_finite)
        tape_check_forward_finite(tape, &node);
    bool required = false;
    for (int i = 0; i < node_input_count(&node); i++)
        required |= tensor_requires_grad(node_input(&node, i));
    tape->required |= required;
    if (!tape->recording || !required) {
        for (int i = 0; i < NODE_SAVED; i++)
            if (node.saved[i])
                tape_free_storage(node.saved[i]);
        return;
    }
    if (!node.backward && !(node.outputs[0] && node.outputs[0]->base))
        tape_error(tape,
                   "%s: the node has no backward function, but an input requires a gradient; "
                   "set .backward, or do not record an operation without a gradient",
                   node.name);
    tape_append(tape, node);
}

void tape_append(Tape *tape, Node node)
{
    const bool claimed = error_claim(&tape->errors, node.name);
    node.tape = tape;
    node.previous = tape->last_node;
    node.index = tape->node_count;
    Node *recorded = arena_allocate(tape, sizeof node);
    *recorded = node;
    for (int i = 0; i < NODE_OUTPUTS; i++)
        if (node.outputs[i])
            node.outputs[i]->requires_grad = node.outputs[i]->type != TENSOR_INT32;
    tape->last_node = recorded;
    tape->node_count++;
    error_release(&tape->errors, claimed);
    if (tape->node_count == SUSPICIOUS_NODES && !tape->warned) {
        tape->warned = true;
        fprintf(
            stderr,
            "tapegrad: a tape has recorded %d operations since tape_reset, which holds all their "
            "tensors; for an evaluation turn tape_set_recording off and call tape_reset\n",
            SUSPICIOUS_NODES);
    }
}

TapeMark tape_mark(const Tape *tape)
{
    return (TapeMark){ tape->tensor_count, tape->node_count };
}

Tensor *tape_release(Tape *tape, TapeMark mark, Tensor *result)
{
    if (tape->recording || tape->node_count > mark.nodes)
        tape_error(tape,
                   "tape_release: %s, and a backward pass would need the released tensors; call "
                   "tape_set_recording(tape, false) before",
                   tape->recording ? "the tape is recording"
                                   : "a node was recorded since the mark");
    tape_free_since(tape, mark.tensors, result ? tensor_root(result) : NULL);
    return result;
}

void tape_free_since(Tape *tape, int64_t first, Tensor *spared)
{
    TapeTensor *entry = tape->last_tensor, *spared_entry = NULL;
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

/* ------------------------------------------------------------------------------------ resetting */
void tape_reset(Tape *tape)
{
    const bool claimed = error_claim(&tape->errors, "tape_reset");
    tape_end_step(tape);
    tape_end_recomputing(tape);
    const bool failed = tape->errors.failed;
    if (failed && tape->backward_started)
        tape_clear_gradients(tape);
    for (TapeTensor *entry = tape->last_tensor; entry; entry = entry->previous)
        tape_free_tensor(&entry->tensor);
    for (TapeTensor *entry = tape->last_persistent; entry; entry = entry->previous) {
        tape_free_storage(&entry->gradient);
        entry->tensor.has_gradient = false;
    }
    if (tape->guarded > 0 && tape->tensor_count > 0) {
        tape->guarded--;
        Chunk *chunks = tape->chunks;
        tape->chunks = tape->previous_chunks;
        tape->previous_chunks = chunks;
    }
    for (Chunk *chunk = tape->chunks; chunk; chunk = chunk->next) {
        chunk->used = 0;
        POISON(chunk->bytes, chunk->size);
    }
    if (failed)
        tape->random = tape->step_start;
    tape->step_start = tape->random;
    tape->current = &tape->chunks;
    tape->last_tensor = NULL;
    tape->last_node = NULL;
    tape->tensor_count = tape->node_count = 0;
    tape->backward_started = false;
    if (tape->replay.capture)
        device_captures(tape->device)->free(tape->replay.capture);
    tape->replay.capture = NULL;
    tape->replay.step = NULL;
    error_leave(&tape->errors);
    error_release(&tape->errors, claimed);
}

/* --------------------------------------------------------------------------------------- random */
void tape_seed(Tape *tape, uint64_t seed_value)
{
    tape_set_random(tape, random_new(seed_value, random_stream("tape")));
}

Random tape_random(const Tape *tape)
{
    return tape->random;
}

void tape_set_random(Tape *tape, Random random)
{
    tape->random = tape->step_start = random;
}

Random tape_draw(Tape *tape, int64_t counters)
{
    Random before = tape->random;
    before.stream += tape_process;
    tape->random.counter += (uint64_t)counters;
    return before;
}

const uint64_t *tape_random_start(const Tape *tape)
{
    return tape->replay.capturing ? tape->replay.random_start->data : NULL;
}
