/* The tape: a list of nodes and a list of tensors (tensors.c), in an arena (arena.c). backward.c
 * visits the nodes in reverse order.
 *
 *     FRESH --tape_record--> RECORDED --tape_backward--> BACKWARD --the last node--> DONE
 *       ^                                                                              |
 *       +---------- tape_reset: frees the step's tensors, keeps their memory ----------+
 *     any state --an error--> FAILED --tape_reset--> FRESH: as before the step, its random numbers
 *                                                    too; after tape_backward weights' gradients of
 *                                                    the step are empty
 *
 * RECORDED: there are nodes. BACKWARD, DONE: backward_started. FAILED: errors has one.
 * Invariants between calls:
 *  (1) Nodes and tensors are listed in the order in which they were made, so a node's inputs were
 *      made before its outputs.
 *  (2) A step's handles, nodes and attributes are in the arena until tape_reset; the storage of a
 *      tensor is a block of the device's pool, which it alone owns.
 *  (3) A view has no storage and no gradient but its root's.
 *  (4) A tensor requires a gradient if it is a variable, a weight, or an output of a recorded node,
 *      but never of integers. While the tape records, a node is recorded if an input requires one;
 *      that of tape_recompute also if a tensor does that its function uses.
 *  (5) A gradient exists from its first contribution on (has_gradient), which stores; later ones
 *      add.
 *  (6) In BACKWARD the nodes that used a node's outputs have run before it. After its own function
 *      nothing reads its outputs, their gradients and what it saved: they are freed, unless kept.
 *  (7) One backward pass per reset, and one thread at a time (error_claim; see tape_new).
 *  (8) In FAILED every call may raise but tape_reset and tape_free, which need nothing of it. */
#include "autograd/internal.h"

#include <stdlib.h>
#include <string.h>

/* A step rarely records this many nodes, an evaluation that forgets to turn recording off does. */
enum { SUSPICIOUS_NODES = 50000 };

/* ------------------------------------------------------------------------------ life and errors */
_Thread_local uint64_t tape_rank;

Tape *tape_new(Device *device)
{
    error_need("tape_new", "the device", device);
    Tape *tape = memory_allocate(sizeof *tape);
    if (!tape)
        error_raise("tape_new: %s", device_exhausted(device, sizeof *tape).text);
    *tape = (Tape){ .device = device, .recording = true, .training = true };
    tape->guarded = memory_is_guarded() ? INT64_MAX : 2; /* first steps find stale handles */
    tape->current = &tape->chunks;
    error_context_open(&tape->errors);
    tape_seed(tape, 0);
    return tape;
}

void tape_free(Tape *tape)
{
    if (!tape)
        return;
    tape_check_not_freed(tape, "tape_free");
    tape_reset(tape);
    device_free(tape->device, tape->replay.random_start);
    for (TapeTensor *entry = tape->last_persistent, *previous; entry; entry = previous) {
        previous = entry->previous;
        tape_free_storage(&entry->tensor);
        free(entry);
    }
    error_context_close(&tape->errors);
    arena_free(tape);
}

Device *tape_device(const Tape *tape)
{
    return tape->device;
}

void tape_error(Tape *tape, const char *format, ...)
{
    error_enter(&tape->errors, error_operation()); /* the error is this tape's */
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
    tape_check_not_freed(tape, label);
    error_enter(&tape->errors, label);
    tape_notify(tape, TAPE_USES, label, NULL);
}

void tape_raise_exhausted(Tape *tape, size_t bytes)
{
    error_enter(&tape->errors, error_operation());
    device_raise_exhausted(tape->device, bytes);
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
    tape_notify(tape, TAPE_RECORDS, NULL, &node);
    if (tape->checks_finite)
        tape_check_forward_finite(tape, &node);
    bool required = false;
    for (int i = 0; i < node_input_count(&node); i++)
        required |= tensor_requires_grad(node_input(&node, i));
    tape->recompute.required |= required;
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

/* ------------------------------------------------------------------------------------ resetting */
void tape_reset(Tape *tape)
{
    tape_check_not_freed(tape, "tape_reset");
    const bool claimed = error_claim(&tape->errors, "tape_reset");
    tape_end_step(tape);
    tape_end_recomputing(tape);
    const bool failed = tape->errors.failed;
    tape_notify(tape, TAPE_RESETS, failed ? "failed" : NULL, NULL);
    if (failed && tape->backward_started)
        tape_clear_gradients(tape);
    tape_end_overwritten(tape, failed);
    for (TapeTensor *entry = tape->last_tensor; entry; entry = entry->previous)
        tape_free_tensor(&entry->tensor);
    for (TapeTensor *entry = tape->last_persistent; entry; entry = entry->previous) {
        tape_free_storage(&entry->gradient);
        entry->tensor.has_gradient = false;
    }
    arena_reset(tape);
    if (failed)
        tape->random = tape->step_start;
    tape->step_start = tape->random;
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
    before.stream += tape_rank;
    tape->random.counter += (uint64_t)counters;
    return before;
}

const uint64_t *tape_random_start(const Tape *tape)
{
    return tape->replay.capturing ? tape->replay.random_start->data : NULL;
}
