/* The tape: an arena for small structs, a list of tensors and a list of nodes. */
#include "autograd/tape.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/internal.h"

/* A tensor of the tape and its gradient: of a step, in the arena, or persistent. */
typedef struct TapeTensor {
    Tensor tensor;
    Tensor gradient;
    int64_t position; /* of a step's tensor: how many were made before it */
    struct TapeTensor *previous;
} TapeTensor;

/* A chunk of the arena; reset empties the chunks and keeps them for the next step. */
typedef struct Chunk {
    struct Chunk *next;
    size_t size, used;
    _Alignas(max_align_t) char bytes[];
} Chunk;

enum { CHUNK_BYTES = 1 << 16 };

/* A step rarely records this many nodes, an evaluation that forgets to turn recording off does. */
enum { SUSPICIOUS_NODES = 50000 };

/* The step of tape_replay. */
typedef struct Replay {
    TapeStep *step; /* NULL: none */
    void *context;
    Capture *capture;    /* the captured step, or NULL */
    bool running;        /* the function is running, */
    bool capturing;      /* and its kernels are captured */
    bool returned;       /* it has returned: later errors are not the step's */
    int64_t errors;      /* error_count() when it was called */
    Random before;       /* the generator when it was called */
    int64_t draws;       /* Philox counters that each step uses */
    Block *random_start; /* device memory: the first counter of the step */
} Replay;

struct Tape {
    Device *device;
    Precision precision;
    bool recording;
    bool training;
    bool checks_finite;
    bool warned;           /* of SUSPICIOUS_NODES */
    bool backward_started; /* since the last reset */
    bool failed;           /* an error of this tape was raised since the last reset */
    int64_t errors;        /* error_count() when the step made its first tensor */
    Random random;         /* the generator, */
    Random step_start;     /* and its state at the last reset */
    TapeTensor *last_tensor, *last_persistent;
    int64_t tensor_count;
    Node *last_node;
    int64_t node_count;
    Chunk *chunks, **current; /* the link to the first chunk that may have space */
    Chunk *previous_chunks;   /* of the step before, if debug; else NULL */
    bool debug;               /* handles are not reused in the next step */
    Replay replay;
};

/* ------------------------------------------------------------------------------ life and errors */
static void free_storage(Tensor *tensor)
{
    device_free(tensor->device, tensor->block);
    tensor->block = NULL;
    tensor->data = NULL;
}

Tape *tape_new(Device *device)
{
    if (!device)
        error_raise("tape_new: the device is NULL");
    Tape *tape = memory_allocate(sizeof *tape);
    if (!tape)
        error_raise("tape_new: %s", device_exhausted(device, sizeof *tape).text);
    const char *debug = getenv("TAPEGRAD_DEBUG");
    *tape = (Tape){ .device = device, .recording = true, .training = true };
    tape->debug = debug && strcmp(debug, "1") == 0;
    tape->current = &tape->chunks;
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
        free_storage(&entry->tensor);
        free(entry);
    }
    free_chunks(tape->chunks);
    free_chunks(tape->previous_chunks);
    free(tape);
}

Device *tape_device(const Tape *tape)
{
    return tape->device;
}

void tape_error(Tape *tape, const char *format, ...)
{
    tape->failed = true;
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
        tape_error(tape, "tape_set_precision: %s is not available on plain", names[precision]);
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

/* Raises "op_add: the tape is NULL" for the labels "op_add" and "op_add: a". */
static void check_tape(const Tape *tape, const char *label)
{
    if (!tape)
        error_raise("%.*s: the tape is NULL", (int)strcspn(label, ":"), label);
}

/* Raises "op_add: memory is exhausted: ..." for the labels "op_add" and "op_add: a". */
static _Noreturn void exhausted(Tape *tape, size_t bytes)
{
    tape->failed = true;
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
            exhausted(tape, sizeof *chunk + size);
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
    TapeTensor *entry = arena_allocate(tape, sizeof *entry);
    if (tape->tensor_count == 0)
        tape->errors = error_count();
    Tensor *tensor = add_tensor(tape, &tape->last_tensor, entry, type, shape);
    tape->tensor_count++;
    return tensor;
}

static void allocate_storage(Tape *tape, Tensor *tensor)
{
    size_t bytes = tensor_bytes(tensor);
    tensor->block = device_allocate(tape->device, bytes);
    if (!tensor->block)
        exhausted(tape, bytes);
    tensor->data = tensor->block->data;
}

/* Frees the storage that a tensor owns, and its gradient's. */
static void free_tensor(Tensor *tensor)
{
    if (tensor->base)
        return;
    free_storage(tensor);
    free_storage(tensor->gradient);
    tensor->has_gradient = false;
}

Tensor *tape_tensor_of(Tape *tape, TensorType type, Shape shape)
{
    Tensor *tensor = new_tensor(tape, type, shape);
    allocate_storage(tape, tensor);
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
    shape = shape_new(shape.rank, shape.size);
    if (shape_count(shape) != tensor_count(tensor))
        tape_error(tape, "tape_view: cannot view %s as %s: the element counts differ",
                   shape_text(tensor->shape).text, shape_text(shape).text);
    Tensor *view = new_tensor(tape, tensor->type, shape);
    view->base = tensor_root(tensor);
    view->data = tensor->data;
    view->requires_grad = tensor->requires_grad;
    return view;
}

Tensor *tape_scratch(Tape *tape, Shape shape)
{
    return tape_tensor(tape, shape);
}

void tape_scratch_free(Tape *tape, Tensor *scratch)
{
    (void)tape;
    if (scratch)
        free_storage(scratch);
}

/* Raises if tape or host is NULL; sets the label of later errors. */
static void check_input(Tape *tape, const char *function, const void *host)
{
    check_tape(tape, function);
    error_set_operation(function);
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
    check_tape(tape, label);
    error_set_operation(label);
    shape = shape_new(shape.rank, shape.size);
    TapeTensor *entry = memory_allocate(sizeof *entry);
    if (!entry)
        exhausted(tape, sizeof *entry);
    Tensor *tensor = add_tensor(tape, &tape->last_persistent, entry, type, shape);
    allocate_storage(tape, tensor);
    device_zero(tape->device, tensor->data, tensor_bytes(tensor));
    tensor->written = (IntegerBounds){ .known = true };
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
    check_tape(tape, label);
    if (type != TENSOR_REAL && type != TENSOR_BF16)
        tape_error(tape, "%s: a tensor of type %d has no gradient", label, (int)type);
    if (type == TENSOR_BF16 && tape->precision != PRECISION_BF16)
        tape_error(tape, "%s: bf16 needs a tape of that precision; see tape_set_precision", label);
    Tensor *tensor = new_persistent(tape, label, type, shape);
    tensor->requires_grad = tensor->keep = true;
    return tensor;
}

static void check_tensor(Tape *tape, const char *label, Tensor *tensor, TensorType type)
{
    check_tape(tape, label);
    error_set_operation(label);
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
    check_tensor(tape, label, tensor, TENSOR_REAL);
}

void tape_use_real(Tape *tape, const char *label, Tensor *tensor)
{
    check_tensor(tape, label, tensor, TENSOR_REAL);
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
    check_tensor(tape, label, tensor, TENSOR_INT32);
}

/* ------------------------------------------------------------------------------------ recording */
bool tape_set_recording(Tape *tape, bool on)
{
    bool before = tape->recording;
    tape->recording = on;
    return before;
}

bool tape_is_recording(const Tape *tape)
{
    return tape->recording;
}

bool tape_set_training(Tape *tape, bool on)
{
    bool before = tape->training;
    tape->training = on;
    return before;
}

bool tape_is_training(const Tape *tape)
{
    return tape->training;
}

bool tape_check_finite(Tape *tape, bool on)
{
    bool before = tape->checks_finite;
    tape->checks_finite = on;
    return before;
}

static bool requires_grad(const Tensor *tensor)
{
    return tensor && tensor_root(tensor)->requires_grad;
}

static int input_count(const Node *node)
{
    return NODE_INPUTS + node->more_count;
}

static Tensor *input_at(const Node *node, int i)
{
    return i < NODE_INPUTS ? node->inputs[i] : node->more_inputs[i - NODE_INPUTS];
}

/* Raises if an element of values is not finite: the index-th input or output of the node, or its
 * gradient. */
static void check_finite(Tape *tape, const Node *node, const char *what, int index,
                         const Tensor *tensor, const Tensor *values)
{
    Real value;
    if (!tensor || values->type == TENSOR_INT32 || !tensor_root(values)->data)
        return;
    const int64_t at = tensor_find_not_finite(values, &value);
    if (at >= 0)
        tape_error(tape, "%s: %s %d %s, and its element %lld is %g", node->name, what, index,
                   tensor_text(tensor).text, (long long)at, (double)value);
}

static void check_forward(Tape *tape, const Node *node)
{
    for (int i = 0; i < input_count(node); i++)
        check_finite(tape, node, "input", i, input_at(node, i), input_at(node, i));
    for (int i = 0; i < NODE_OUTPUTS; i++)
        check_finite(tape, node, "output", i, node->outputs[i], node->outputs[i]);
}

static void check_backward(Tape *tape, const Node *node)
{
    for (int i = 0; i < input_count(node); i++) {
        const Tensor *input = input_at(node, i);
        if (requires_grad(input) && tensor_root(input)->has_gradient)
            check_finite(tape, node, "the gradient of input", i, input,
                         tensor_root(input)->gradient);
    }
}

void tape_record(Tape *tape, Node node)
{
    if (tape->checks_finite)
        check_forward(tape, &node);
    bool required = false;
    for (int i = 0; i < input_count(&node); i++)
        required |= requires_grad(input_at(&node, i));
    if (!tape->recording || !required) {
        for (int i = 0; i < NODE_SAVED; i++)
            if (node.saved[i])
                free_storage(node.saved[i]);
        return;
    }
    if (!node.backward && !(node.outputs[0] && node.outputs[0]->base))
        tape_error(tape,
                   "%s: the node has no backward function, but an input requires a gradient; "
                   "set .backward, or do not record an operation without a gradient",
                   node.name ? node.name : "tape_record");
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
    if (tape->recording)
        tape_error(tape, "tape_release: the tape is recording, and a backward pass would need the "
                         "released tensors; call tape_set_recording(tape, false) first");
    if (tape->node_count > mark.nodes)
        tape_error(tape,
                   "tape_release: a node was recorded since the mark, and a backward pass would "
                   "need the released tensors; call tape_set_recording(tape, false) before");
    Tensor *spared = result ? tensor_root(result) : NULL;
    TapeTensor *entry = tape->last_tensor, *survivor = NULL;
    for (; entry && entry->position >= mark.tensors; entry = entry->previous) {
        if (&entry->tensor == spared)
            survivor = entry;
        else
            free_tensor(&entry->tensor);
    }
    if (survivor)
        survivor->previous = entry;
    tape->last_tensor = survivor ? survivor : entry;
    return result;
}

/* ------------------------------------------------------------------------------------- backward */
const Real *tape_upstream(const Node *node, int index)
{
    const Tensor *output = node->outputs[index];
    return output && output->has_gradient ? output->gradient->data : NULL;
}

/* scattered: the backward function does not write each element of the root once. */
static Gradient contribution(Node *node, const Tensor *input, bool scattered)
{
    Tensor *root = tensor_root(input), *gradient = root->gradient;
    if (!gradient->data)
        allocate_storage(node->tape, gradient);
    const bool accumulate = root->has_gradient;
    if (scattered && !accumulate)
        device_zero(root->device, gradient->data, tensor_bytes(root));
    root->has_gradient = true;
    const ptrdiff_t offset = (char *)input->data - (char *)root->data;
    return (Gradient){ (Real *)((char *)gradient->data + offset), accumulate || scattered };
}

Gradient tape_contribution(Node *node, Tensor *input)
{
    if (!requires_grad(input))
        return (Gradient){ NULL, false };
    return contribution(node, input, tensor_count(input) < tensor_count(tensor_root(input)));
}

Gradient tape_scattered_contribution(Node *node, Tensor *input)
{
    return requires_grad(input) ? contribution(node, input, true) : (Gradient){ NULL, false };
}

/* Once a node's backward function has run, no other needs its outputs: nodes that use them were
 * recorded later, so their backward functions ran before. */
static void release_outputs(Node *node)
{
    for (int i = 0; i < NODE_OUTPUTS; i++) {
        Tensor *output = node->outputs[i];
        if (output && !output->keep)
            free_tensor(output);
    }
    for (int i = 0; i < NODE_SAVED; i++)
        if (node->saved[i])
            free_storage(node->saved[i]);
}

static void backward_pass(Tape *tape, Tensor *out)
{
    tape->backward_started = true;
    tensor_keep(out);
    for (Node *node = tape->last_node; node; node = node->previous) {
        bool reached = false;
        for (int i = 0; i < NODE_OUTPUTS; i++)
            reached |= tape_upstream(node, i) != NULL;
        error_set_operation(node->name);
        if (reached && node->backward) /* NULL: the output is a view, which shares the gradient */
            node->backward(node);
        if (reached && tape->checks_finite)
            check_backward(tape, node);
        release_outputs(node);
    }
}

/* Raises unless a backward pass can start at out. */
static void check_start(Tape *tape, const char *label, Tensor *out)
{
    check_tape(tape, label);
    if (tape->backward_started)
        tape_error(tape,
                   "%.*s: the backward pass of this tape has run already and released its tensors; "
                   "call tape_reset between passes",
                   (int)strcspn(label, ":"), label);
    check_tensor(tape, label, out, TENSOR_REAL);
    if (!requires_grad(out))
        tape_error(tape,
                   "%s depends on nothing that requires a gradient (or the tape was not recording)",
                   label);
    if (!tensor_root(out)->tape)
        tape_error(tape, "%s is a parameter, expected the result of an operation",
                   tensor_label(label, out).text);
}

void tape_backward(Tape *tape, Tensor *loss)
{
    check_start(tape, "tape_backward: the loss", loss);
    if (tensor_count(loss) != 1)
        tape_error(tape, "tape_backward: the loss has shape %s, expected one element",
                   shape_text(loss->shape).text);
    tape_contribution(&(Node){ .tape = tape }, loss);
    tensor_fill(tensor_root(loss)->gradient, 1);
    backward_pass(tape, loss);
}

void tape_backward_from(Tape *tape, Tensor *out, Tensor *gradient)
{
    check_start(tape, "tape_backward_from: out", out);
    check_tensor(tape, "tape_backward_from: the gradient", gradient, TENSOR_REAL);
    if (!shape_equal(out->shape, gradient->shape))
        tape_error(tape, "tape_backward_from: out has shape %s, the gradient %s, expected the same",
                   shape_text(out->shape).text, shape_text(gradient->shape).text);
    if (out->type != gradient->type)
        tape_error(tape, "tape_backward_from: out and the gradient are of different types");
    /* The gradient is used without a copy: no node of the pass contributes to out's gradient. */
    Tensor *root = tensor_root(out);
    root->gradient->data = tensor_keep(gradient)->data;
    root->has_gradient = true;
    backward_pass(tape, out);
}

/* ------------------------------------------------------------------------------------ resetting */

/* A failed backward pass leaves complete or partial contributions in some parameters' gradients;
 * the repeated step computes them again. */
static void clear_gradients(Tape *tape)
{
    for (Node *node = tape->last_node; node; node = node->previous)
        for (int i = 0; i < input_count(node); i++)
            if (requires_grad(input_at(node, i)))
                tensor_root(input_at(node, i))->has_gradient = false;
}

/* During a capture the generator counts from 0. */
static void end_capture(Tape *tape)
{
    tape->replay.capturing = false;
    tape->random = tape->replay.before;
}

/* tape_reset during a step is misuse, unless an error ended the step. */
static void end_step(Tape *tape)
{
    Replay *replay = &tape->replay;
    if (replay->running && !tape->failed && replay->errors == error_count())
        tape_error(tape, "tape_reset: inside a step of tape_replay, which resets before it");
    replay->running = false;
    if (replay->capturing)
        end_capture(tape);
}

void tape_reset(Tape *tape)
{
    end_step(tape);
    /* An error raised by error_raise, which does not know the tape, ended this step if it came
     * after the step's first tensor and before the end of a replayed function. */
    const bool raised = tape->tensor_count > 0 && tape->errors != error_count();
    const bool failed = tape->failed || (raised && !tape->replay.returned);
    tape->replay.returned = false;
    if (failed && tape->backward_started)
        clear_gradients(tape);
    for (TapeTensor *entry = tape->last_tensor; entry; entry = entry->previous)
        free_tensor(&entry->tensor);
    for (TapeTensor *entry = tape->last_persistent; entry; entry = entry->previous) {
        free_storage(&entry->gradient);
        entry->tensor.has_gradient = false;
    }
    if (tape->debug && tape->tensor_count > 0) {
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
    tape->backward_started = tape->failed = false;
    error_set_operation(NULL);
    capture_free(tape->replay.capture);
    tape->replay.capture = NULL;
    tape->replay.step = NULL;
}

/* ------------------------------------------------------------------------------------ replaying */

/* Before each replay of a step that draws random numbers: its first counter is the generator's. */
static void upload_counter(void *context)
{
    Tape *tape = context;
    device_copy_in(tape->device, tape->replay.random_start->data, &tape->random.counter,
                   sizeof tape->random.counter);
    tape->random.counter += (uint64_t)tape->replay.draws;
    tape->step_start = tape->random;
}

static void call_step(Tape *tape)
{
    tape->replay.errors = error_count();
    tape->replay.running = true;
    tape->replay.step(tape->replay.context);
    tape->replay.running = false;
    tape->replay.returned = true;
}

static void capture_step(Tape *tape)
{
    Replay *replay = &tape->replay;
    if (!replay->random_start)
        replay->random_start = device_allocate(tape->device, sizeof(uint64_t));
    Capture *capture = replay->random_start ? device_capture(tape->device) : NULL;
    if (!capture)
        exhausted(tape, sizeof(uint64_t));
    replay->capturing = true;
    replay->before = tape->random;
    tape->random.counter = 0;
    call_step(tape);
    replay->draws = (int64_t)tape->random.counter;
    if (replay->draws > 0)
        device_before_replay(tape->device, upload_counter, tape);
    end_capture(tape);
    const char *reason = device_capture_end(tape->device);
    if (reason)
        tape_error(tape, "tape_replay: CUDA could not capture the step: %s", reason);
    replay->capture = capture;
}

void tape_replay(Tape *tape, TapeStep *step, void *context)
{
    check_tape(tape, "tape_replay");
    if (!step)
        tape_error(tape, "tape_replay: step is NULL");
    Replay *replay = &tape->replay;
    const bool again = replay->step == step && replay->context == context && !tape->checks_finite;
    if (!again || !replay->capture) {
        tape_reset(tape);
        replay->step = step;
        replay->context = context;
        error_set_operation("tape_replay");
        if (!again || !device_is_cuda(tape->device)) {
            call_step(tape);
            return;
        }
        capture_step(tape);
    }
    device_replay(replay->capture);
}

int64_t tape_replay_kernels(const Tape *tape)
{
    return tape->replay.capture ? capture_kernels(tape->replay.capture) : 0;
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
    tape->random.counter += (uint64_t)counters;
    return before;
}

const uint64_t *tape_random_start(const Tape *tape)
{
    return tape->replay.capturing ? tape->replay.random_start->data : NULL;
}

/* ------------------------------------------------------------------------------------- teaching */

static bool is_output(const Tape *tape, const Tensor *tensor)
{
    for (const Node *node = tape->last_node; node; node = node->previous)
        for (int i = 0; i < NODE_OUTPUTS; i++)
            if (node->outputs[i] == tensor)
                return true;
    return false;
}

/* The ellipse of an input or an output of the node, and the edge between them. */
static void print_tensor(FILE *file, const Node *node, const Tensor *tensor, bool output)
{
    if (!tensor)
        return;
    const bool leaf = requires_grad(tensor) && !is_output(node->tape, tensor);
    fprintf(file, "    \"%p\" [shape=ellipse%s, label=\"%s%s%s\"];\n", (const void *)tensor,
            leaf ? ", style=filled, fillcolor=lightgrey" : "", tensor->name ? tensor->name : "",
            tensor->name ? "\\n" : "", shape_text(tensor->shape).text);
    if (output)
        fprintf(file, "    node%lld -> \"%p\";\n", (long long)node->index, (const void *)tensor);
    else
        fprintf(file, "    \"%p\" -> node%lld;\n", (const void *)tensor, (long long)node->index);
}

void tape_print_dot(const Tape *tape, FILE *file)
{
    fprintf(file, "digraph tape {\n    node [fontname=\"sans-serif\", fontsize=11];\n");
    for (Node *node = tape->last_node; node; node = node->previous) {
        fprintf(file, "    node%lld [shape=box, label=\"%s\"];\n", (long long)node->index,
                node->name);
        for (int i = 0; i < input_count(node); i++)
            print_tensor(file, node, input_at(node, i), false);
        for (int i = 0; i < NODE_OUTPUTS; i++)
            print_tensor(file, node, node->outputs[i], true);
    }
    fprintf(file, "}\n");
}
