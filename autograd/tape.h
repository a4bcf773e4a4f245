/* autograd/: the tape. Operations record nodes on it; tape_backward walks them in reverse order.
 * The tape knows no operation by name: a node carries the function that takes it backward. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <stdio.h>

#include "tensor/tensor.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tape Tape;

/* A tape for one device; recording. Its random numbers come from seed 0 until tape_seed. A tape, and
 * a CUDA device with all its tapes, is used by one thread at a time. */
Tape *tape_new(Device *device);
/* Frees it and every tensor that belongs to it; NULL is fine. */
void tape_free(Tape *tape);
Device *tape_device(const Tape *tape);

/* How the tape's operations compute and store. On the CPU, and in a library built with double, it
 * is PRECISION_FLOAT32, which there means the type Real, and another one raises; on CUDA the others
 * multiply all matrices on tensor cores:
 *   PRECISION_FLOAT32  everything in float32, but linear attention's chunks are products of three
 *                      bf16 ones each, with an error of about 1e-5
 *   PRECISION_TF32     as stored, but matrix products round their operands to 10 bits of fraction
 *   PRECISION_BF16     activations and their gradients are stored in bf16, with 7 bits of fraction,
 *                      and products take bf16 operands; sums, parameters and their gradients,
 *                      optimiser state, statistics of normalisation and losses stay float32
 * A tape starts with float32. Set it between steps: it raises while the tape holds tensors. */
typedef enum { PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BF16 } Precision;
void tape_set_precision(Tape *tape, Precision precision);
Precision tape_precision(const Tape *tape);

/* ----------------------------------------------------------------------------- inputs of a program
 * Tensors that hold a copy of host memory, as many numbers as the shape has, and belong to the tape
 * until tape_reset. They raise when host is NULL. */
Tensor *tape_input(Tape *tape, const Real *host, Shape shape);
Tensor *tape_input_i32(Tape *tape, const int32_t *host, Shape shape);

/* An input whose gradient is wanted: kept, and tensor_gradient reads it after the pass. */
Tensor *tape_variable(Tape *tape, const Real *host, Shape shape);

/* Tensors that live as long as the tape, through resets, with zeros at first: tensor_write and
 * tensor_write_i32 bring each step's inputs to where a replayed step looks for them. */
Tensor *tape_persistent(Tape *tape, Shape shape);
Tensor *tape_persistent_i32(Tape *tape, Shape shape);

/* A persistent tensor that requires a gradient, which lives until the next tape_reset; of type
 * TENSOR_REAL, or TENSOR_BF16 on a tape of that precision. */
Tensor *tape_persistent_variable(Tape *tape, TensorType type, Shape shape);

/* ------------------------------------------------------------------------------------------ passes
 * Walks the tape in reverse from a loss of one element, with dL/dloss = 1. Values and gradients
 * that no earlier node needs are released on the way; the loss and what tensor_keep named stay.
 * Gradients of parameters accumulate across passes until optim_step or params_zero_gradients.
 * Raises when the loss does not depend on anything that wants a gradient, is a parameter itself or
 * has more than one element, and when this tape went backward already since its last reset. */
void tape_backward(Tape *tape, Tensor *loss);

/* The same from any tensor and a given dL/dout, of out's shape and type, which is kept. */
void tape_backward_from(Tape *tape, Tensor *out, Tensor *gradient);

/* Gives everything back that belongs to the tape; its memory is cached for the next step. Pointers to
 * its tensors are void then, and no check tells once the next step's tensors lie in their places.
 * After an error that was left by longjmp it also rewinds the random counter to where the last reset
 * left it and, when the step had begun its backward pass, marks the gradients of the parameters that
 * it used as empty. */
void tape_reset(Tape *tape);

/* Turns recording on or off; returns what it was; tape_is_recording only asks. Off, nothing is
 * remembered for a backward pass. */
bool tape_recording(Tape *tape, bool on);
bool tape_is_recording(const Tape *tape);

/* With recording off: tape_release gives back all tensors made since the mark except result (NULL:
 * all of them); returns result. So a deep model's inference holds one layer's intermediates.
 * Raises while recording, and when something was recorded since the mark. */
typedef struct TapeMark {
    int64_t tensors, nodes; /* how many there were */
} TapeMark;
TapeMark tape_mark(const Tape *tape);
Tensor *tape_release(Tape *tape, TapeMark mark, Tensor *result);

/* --------------------------------------------------------------------------------------- replaying
 * Runs a whole step: forward, tape_backward, params_clip_gradients, optim_step, whatever the
 * function calls with this tape, after a tape_reset. On CUDA the first step runs as it is, the
 * second one is recorded as a CUDA graph, and from then on the graph is launched instead: the
 * function is not called any more, and the results are bitwise what they would have been. Tensors
 * that it left in the context (the loss, kept logits) stay where they are and hold each step's
 * values after it. On the CPU every step runs as it is.
 *
 * In the step no number may go from or to the host, and its shapes stay as they are: bring inputs in
 * by tape_persistent tensors before, and read results after. Copying to or from the host inside it
 * raises, as does tape_reset. Another function or context begins anew; so does the step after a
 * tape_reset outside of it. */
typedef void TapeStep(void *context);
void tape_replay(Tape *tape, TapeStep *step, void *context);

/* How many kernels a replay of the recorded step launches, those of cuBLAS included; 0 while no step
 * is recorded, as always on the CPU. */
int64_t tape_replay_kernels(const Tape *tape);

/* ------------------------------------------------------------------------------------------ random
 * The generator that dropout, LSH attention and sampling draw from. tape_seed restarts it;
 * tape_random reads its state, which tape_set_random puts back (for checkpoints). */
void tape_seed(Tape *tape, uint64_t seed);
Random tape_random(const Tape *tape);
void tape_set_random(Tape *tape, Random random);

/* ---------------------------------------------------------------------------------------- teaching
 * Prints the recorded operations as a graph for Graphviz: `dot -Tsvg`. Boxes are operations,
 * ellipses are tensors with their shapes; leaves that want a gradient are shaded. */
void tape_print_dot(const Tape *tape, FILE *file);

/* ---------------------------------------------------------------------------- writing an operation
 * An operation checks its arguments, makes its output, computes it and records a node:
 *
 *     static void square_backward(Node *node)
 *     {
 *         Tensor *x = node->inputs[0];
 *         Gradient dx = tape_contribution(node, x);
 *         const Real *dout = tape_upstream(node, 0);
 *         for (int64_t i = 0; i < tensor_count(x); i++)
 *             gradient_add(dx, i, 2 * x->data[i] * dout[i]);
 *     }
 *     Tensor *square(Tape *tape, Tensor *x)
 *     {
 *         tape_use(tape, "square: x", x);
 *         Tensor *out = tape_tensor(tape, x->shape);
 *         for (int64_t i = 0; i < tensor_count(x); i++)
 *             out->data[i] = x->data[i] * x->data[i];
 *         tape_record(tape, (Node){ .name = "square", .backward = square_backward,
 *                                   .inputs = { x }, .outputs = { out } });
 *         return out;
 *     }
 */
enum { NODE_INPUTS = 8, NODE_OUTPUTS = 4, NODE_KEPT = 4 };

typedef struct Node Node;
struct Node {
    const char *name;              /* the operation, for messages and printouts */
    void (*backward)(Node *node);  /* contributes to the gradients of its inputs */
    Tensor *inputs[NODE_INPUTS];   /* NULL where an optional one is missing */
    Tensor *outputs[NODE_OUTPUTS]; /* what the operation returned */
    Tensor *kept[NODE_KEPT];       /* what forward computed for backward alone */
    const void *saved;             /* a small struct of constants, from tape_save */
    Tape *tape;                    /* set by tape_record, as is the rest */
    Node *previous;
    int64_t index;
};

/* Raises unless the tensor is of Real type or bf16 (tape_use_i32: int32; tape_use_real: Real), on
 * the tape's device, and its data are there. label starts the sentence: "op_add: a". */
void tape_use(Tape *tape, const char *label, Tensor *tensor);
void tape_use_i32(Tape *tape, const char *label, Tensor *tensor);
void tape_use_real(Tape *tape, const char *label, Tensor *tensor);

/* New tensors of the tape, of unspecified content. */
Tensor *tape_tensor(Tape *tape, Shape shape);
Tensor *tape_tensor_i32(Tape *tape, Shape shape);
Tensor *tape_tensor_of(Tape *tape, TensorType type, Shape shape);

/* The same elements under another shape of the same count: shares storage and gradient. */
Tensor *tape_view(Tape *tape, Tensor *tensor, Shape shape);

/* A copy of a small struct, in the tape's memory until tape_reset. */
const void *tape_save(Tape *tape, const void *data, size_t size);

/* Takes n counters of the tape's random generator; returns it as it stood before. In a step that is
 * recorded that is relative to a number in device memory, tape_random_start, which is NULL else. */
Random tape_draw(Tape *tape, int64_t counters);
const uint64_t *tape_random_start(const Tape *tape);

/* Records the node when the tape records and an input wants a gradient; its outputs then do. */
void tape_record(Tape *tape, Node node);

/* Raises an error of an operation on this tape: tape_reset then undoes the step. */
void tape_error(Tape *tape, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* In a backward function: dL/doutput of the index-th output, or NULL when nothing depended on it
 * (the tape calls backward only when at least one output has a gradient). */
const Real *tape_upstream(const Node *node, int index);

/* In a backward function: the place to contribute to dL/dinput. data is NULL when the input wants
 * no gradient (or is NULL): skip it. accumulate says whether to add (there are contributions
 * already) or to store. Call it once per input and contribution, and write every element. */
typedef struct Gradient {
    Real *data;
    bool accumulate;
} Gradient;
Gradient tape_contribution(Node *node, Tensor *input);

/* One element's contribution. */
static inline void gradient_add(Gradient gradient, int64_t i, Real value)
{
    gradient.data[i] = gradient.accumulate ? gradient.data[i] + value : value;
}

/* Scratch memory inside an operation or its backward function, for the numbers of a shape:
 * give it back with tape_scratch_free (tape_reset does after an error). */
Tensor *tape_scratch(Tape *tape, Shape shape);
void tape_scratch_free(Tape *tape, Tensor *scratch);

/* ------------------------------------------------------------------------------- gradient checking
 * Compares the tape's gradients of sum_i r_i out_i (r random, fixed) with central differences,
 * (f(x + h) - f(x - h)) / 2h. The function is called many times with variables made from the given
 * values; it must be deterministic. Build with REAL=double for errors near 1e-9; in float expect
 * 1e-2. An error that is raised inside and left by longjmp leaves some memory taken. */
typedef Tensor *CheckedFunction(Tape *tape, Tensor *const *inputs, void *context);

typedef struct CheckInput {
    Shape shape;
    const Real *values; /* host memory */
} CheckInput;

typedef struct GradientCheck {
    double error;             /* largest |analytic - numeric| / max(1, largest |numeric|); NaN
                               * when one is */
    int input;                /* where it was: the input's index, */
    int64_t element;          /* the element, */
    double analytic, numeric; /* and the two values */
} GradientCheck;

GradientCheck gradient_check(Device *device, CheckedFunction *function, void *context,
                             const CheckInput *inputs, int count);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
