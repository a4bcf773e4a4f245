/* Recomputation in the backward pass (Chen et al. 2016), also activation checkpointing: of a
 * function y = f(x) the tape keeps x and y alone. The forward pass runs f without recording. The
 * node that it records runs f again, now recording nodes behind all others, visits these from dL/dy
 * on and frees their tensors. The second run draws the random numbers of the first. These nodes
 * stay in the list: after an error, tape_clear_gradients finds the weights that they used. */
#include "autograd/internal.h"

typedef struct Recomputation {
    TapeFunction *function;
    const void *context;
    Random random; /* as the first run began */
    bool training;
} Recomputation;

static void begin_run(Tape *tape, bool recording, bool training)
{
    if (tape->recompute.runs++ == 0) {
        tape->recompute.recording_before = tape->recording;
        tape->recompute.training_before = tape->training;
    }
    tape->recording = recording;
    tape->training = training;
}

static void end_run(Tape *tape, bool recording, bool training)
{
    tape->recompute.runs--;
    tape->recording = recording;
    tape->training = training;
}

void tape_end_recomputing(Tape *tape)
{
    if (tape->recompute.runs == 0)
        return;
    end_run(tape, tape->recompute.recording_before, tape->recompute.training_before);
    tape->recompute.runs = 0;
    tape->recompute.again = false;
}

bool tape_is_recomputing(const Tape *tape)
{
    return tape->recompute.again;
}

static Tensor *call_function(Tape *tape, const Recomputation *again, Tensor *x, int64_t first)
{
    Tensor *out = again->function(tape, x, again->context);
    if (!out)
        tape_error(tape, "tape_recompute: the function returned NULL, expected a tensor");
    const TapeTensor *entry = tape->last_tensor;
    while (entry && entry->position >= first && &entry->tensor != tensor_root(out))
        entry = entry->previous;
    if (!entry || entry->position < first)
        tape_error(tape,
                   "tape_recompute: the function returned a tensor that it did not make: %s; "
                   "op_scale by 1 copies it",
                   tensor_text(out).text);
    return out;
}

static void recompute_backward(Node *node)
{
    Tape *tape = node->tape;
    const Recomputation *again = node->attributes;
    const bool recording = tape->recording, training = tape->training,
               recomputing = tape->recompute.again;
    const Random random = tape->random;
    const int64_t first = tape->tensor_count;
    const Node *stop = tape->last_node;
    begin_run(tape, true, again->training);
    tape->recompute.again = true;
    tape->random = again->random;
    Tensor *root = tensor_root(call_function(tape, again, node->inputs[0], first));
    tape->random = random;
    tape->recompute.again = recomputing;
    end_run(tape, recording, training);
    const Tensor *output = node->outputs[0];
    if (!shape_equal(root->shape, output->shape) || root->type != output->type)
        tape_error(tape,
                   "tape_recompute: the second result is of shape %s, expected shape and type of "
                   "the first, %s",
                   shape_text(root->shape).text, shape_text(output->shape).text);
    if (root->requires_grad) {
        root->gradient->data = output->gradient->data; /* which the output owns */
        root->has_gradient = true;
        tape_visit(tape, stop);
    }
    tape_free_since(tape, first, NULL);
}

Tensor *tape_recompute(Tape *tape, TapeFunction *function, Tensor *x, const void *context,
                       size_t size)
{
    tape_check(tape, "tape_recompute");
    if (!function || (size > 0 && !context))
        tape_error(tape, "tape_recompute: the %s is NULL", function ? "context" : "function");
    tape_check_tensor(tape, "tape_recompute: x", x,
                      x && x->type == TENSOR_INT32 ? TENSOR_INT32 : TENSOR_REAL);
    if (!tape->recording)
        return function(tape, x, context);
    const Recomputation again = { function, size > 0 ? tape_save(tape, context, size) : NULL,
                                  tape->random, tape->training };
    const bool required_before = tape->recompute.required;
    const TapeMark mark = tape_mark(tape);
    tape->recompute.required = false;
    begin_run(tape, false, tape->training);
    Tensor *out = tape_release(tape, mark, call_function(tape, &again, x, mark.tensors));
    end_run(tape, true, again.training);
    const bool required = tape->recompute.required;
    tape->recompute.required = required_before;
    if (required)
        tape_append(tape, (Node){ "tape_recompute", recompute_backward, .inputs = { x },
                                  .outputs = { tensor_root(out) },
                                  .attributes = tape_save(tape, &again, sizeof again) });
    return out;
}
