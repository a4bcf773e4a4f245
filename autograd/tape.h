/* autograd/: the tape. Operations record nodes on it; tape_backward visits them in reverse order.
 * There is no list of operations: each node carries its own backward function. */
#ifndef TAPEGRAD_TAPE_H
#define TAPEGRAD_TAPE_H

#include <stdio.h>
#include <string.h>

#include "tensor/tensor.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tape Tape;

/* A tape for one device, with recording and training on and seed 0. Only one thread at a time may
 * use a tape, or a CUDA device with all its tapes: the program ensures it. A second thread raises
 * if it enters while a tensor or a node is added, in a backward pass or in tape_reset. While an
 * operation computes nothing detects it, and the step is then undefined. */
Tape *tape_new(Device *device);
/* Frees the tape and every tensor that belongs to it; accepts NULL. */
void tape_free(Tape *tape);
Device *tape_device(const Tape *tape);

/* Mixed precision. A double-precision build accepts only PRECISION_FLOAT32, which there means the
 * type Real. On CUDA the other two multiply all matrices on tensor cores.
 *   PRECISION_FLOAT32  everything in float32; on CUDA linear attention computes each product of a
 *                      chunk as three bf16 products, with an error of about 1e-5
 *   PRECISION_TF32     on CUDA only: float32 storage; matrix products round their operands to 10
 *                      bits of fraction
 *   PRECISION_BF16     activations and their gradients are stored in bf16 (7 bits of fraction), and
 *                      products take bf16 operands; sums, parameters and their gradients, optimizer
 *                      state, normalization statistics and losses stay float32. Of a weight that
 *                      op_add or another elementwise operation combines with bf16, the
 *                      gradient is rounded to bf16 once; those of layers' biases and norms
 *                      are not. On a CPU without such instructions (device_has_bf16)
 *                      products convert their operands in workspaces: bf16 then saves memory
 *                      in training, not time
 * A tape starts with float32. tape_set_precision raises while the tape holds tensors: call it
 * between steps. */
typedef enum { PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BF16 } Precision;
void tape_set_precision(Tape *tape, Precision precision);
Precision tape_precision(const Tape *tape);

/* ----------------------------------------------------------------------------- inputs of a program
 * New tensors of the tape, copied from host, an array of shape_count(shape) elements. They live
 * until tape_reset. Raise when host is NULL. */
Tensor *tape_input(Tape *tape, const Real *host, Shape shape);
Tensor *tape_input_i32(Tape *tape, const int32_t *host, Shape shape);

/* An input that requires a gradient. Both stay readable after the backward pass. */
Tensor *tape_variable(Tape *tape, const Real *host, Shape shape);

/* Tensors, initially zero, that live as long as the tape, through resets. A replayed step reads its
 * inputs from them: fill them before each step with tensor_write and tensor_write_i32. */
Tensor *tape_persistent(Tape *tape, Shape shape);
Tensor *tape_persistent_i32(Tape *tape, Shape shape);

/* A persistent tensor that requires a gradient; the gradient lives until the next tape_reset. type
 * is TENSOR_REAL, or TENSOR_BF16 on a tape with PRECISION_BF16. */
Tensor *tape_persistent_variable(Tape *tape, TensorType type, Shape shape);

/* ------------------------------------------------------------------------------------------ passes
 * The backward pass: visits the nodes in reverse order from a loss of one element, starting with
 * dL/dloss = 1. After a node it releases the node's outputs, their gradients and saved tensors: the
 * nodes that use them came later. The loss and tensors with tensor_keep stay. Parameter gradients
 * accumulate across passes until optim_step. Raises when the loss has more than one element, is a
 * parameter, or depends on nothing that requires a gradient, and when the tape has had a pass. */
void tape_backward(Tape *tape, Tensor *loss);

/* The same from any tensor with the given dL/dout, of out's shape and dtype. The gradient stays
 * readable. */
void tape_backward_from(Tape *tape, Tensor *out, Tensor *gradient);

/* Frees all tensors of the tape; their memory is cached for the next step. The second and third
 * steps do not reuse the handles of the step before, whose use raises "op_add: a was released
 * already: ..."; with TAPEGRAD_DEBUG=1 in the environment of tape_new no step does.
 *
 * After an error that a handler left by longjmp, it also rewinds the random counter to the last
 * reset, and restores what operations overwrote (tape_will_overwrite; op_store is not undone). If
 * the backward pass had begun, it marks as empty the gradients of all parameters that the recorded
 * operations use. They lose the contributions of earlier micro-batches too; other parameters keep
 * theirs. To repeat an accumulation over micro-batches, call params_zero_gradients, restore by
 * tape_set_random the generator of its start, and begin with its first micro-batch. */
void tape_reset(Tape *tape);

/* Turns recording on or off and returns the old setting. While it is off, nothing is saved for a
 * backward pass. A recorded operation holds its tensors until the backward pass or tape_reset; a
 * tape that has recorded 50000 says so once on standard error. */
bool tape_set_recording(Tape *tape, bool on);
bool tape_is_recording(const Tape *tape);
/* Whether recorded operations wait for a backward pass. */
bool tape_has_recorded(const Tape *tape);

/* Turns training on or off and returns the old setting. While it is off, dropout keeps all
 * elements, and running statistics are read and not updated. It is independent of recording:
 * evaluation turns both off; gradients without dropout turn off training, Monte Carlo dropout (Gal
 * and Ghahramani 2016) recording. */
bool tape_set_training(Tape *tape, bool on);
bool tape_is_training(const Tape *tape);

/* Turns the search for NaN and infinity on or off and returns the old setting; a new tape has it
 * off. While it is on, the first operation with an input or output that is not finite raises:
 * "op_log: output 0 is [3], and its element 1 is -inf". In the backward pass the first operation
 * that makes such a gradient of an input raises. An attention's mask or log_decay may be -infinity.
 * For debugging: every tensor is read to the host, and on CUDA tape_replay calls its function each
 * time. */
bool tape_check_finite(Tape *tape, bool on);

/* With recording off, tape_release frees all tensors made since the mark except result, which may
 * be NULL, and returns result: inference with a deep model then holds the intermediate tensors of
 * one layer only. Raises while recording, and when a node was recorded since the mark. */
typedef struct TapeMark {
    int64_t tensors, nodes; /* the tape's counts at the mark */
} TapeMark;
TapeMark tape_mark(const Tape *tape);
Tensor *tape_release(Tape *tape, TapeMark mark, Tensor *result);

/* y = function(tape, x, context), keeping x and y alone: activation checkpointing (Chen et al.
 * 2016). The backward pass runs the function a second time, with the same random numbers, for the
 * tensors that it needs, and frees these before it goes on: less memory, more time. The gradients,
 * of x and of all other tensors that the function uses, such as weights, are bitwise the same.
 * Whatever it reads must not change until the backward pass. context, of size bytes, is copied, but
 * not what it points to; NULL if size is 0. Calls may nest. While the tape is not recording this is
 * function(tape, x, context). Raises when the function returns a tensor that it did not make, and
 * when its second result has another shape. Other tensors that it makes are freed when it
 * returns. */
typedef Tensor *TapeFunction(Tape *tape, Tensor *x, const void *context);
Tensor *tape_recompute(Tape *tape, TapeFunction *function, Tensor *x, const void *context,
                       size_t size);

/* --------------------------------------------------------------------------------------- replaying
 * CUDA graph capture and replay of a whole step: tape_reset, then everything that the function
 * calls with this tape (forward, tape_backward, params_clip_gradients, optim_step). On CUDA the
 * first call runs the function, the second captures it as a CUDA graph, and later calls launch the
 * graph without calling the function; the results are bitwise the same. Tensors that the function
 * stored in the context (the loss, logits with tensor_keep) keep their addresses and hold the
 * values of the latest step. On the CPU every call runs the function.
 *
 * Shapes must not change from step to step, and the step must not copy to or from the host, which
 * raises, as does tape_reset: write inputs to tape_persistent tensors before the step and read
 * results after it. Another function or context starts over, as does a tape_reset outside the
 * step. */
typedef void TapeStep(void *context);
void tape_replay(Tape *tape, TapeStep *step, void *context);

/* The number of kernels per replay, those of cuBLAS included; 0 while no graph is captured, as on
 * the CPU. */
int64_t tape_replay_kernels(const Tape *tape);

/* ------------------------------------------------------------------------------------------ random
 * The generator of dropout, normal noise and whatever else draws. tape_seed restarts it;
 * tape_random returns its state and tape_set_random restores it, for checkpoints. */
void tape_seed(Tape *tape, uint64_t seed);
Random tape_random(const Tape *tape);
void tape_set_random(Tape *tape, Random random);

/* ---------------------------------------------------------------------------------------- teaching
 * Prints the recorded operations as a graph for Graphviz: `dot -Tsvg`. Boxes are operations,
 * ellipses are tensors with their names, shapes and, of up to four elements, values and, after the
 * backward pass, gradients; leaves that require a gradient are shaded. The text is the same for the
 * same step. Raises when memory is exhausted. */
void tape_print_dot(const Tape *tape, FILE *file);

/* ---------------------------------------------------------------------------- writing an operation
 * An operation checks its arguments, allocates its output, computes it and records a node:
 *
 *     static void square_backward(Node *node)
 *     {
 *         Tensor *x = node->inputs[0];
 *         Gradient dx = tape_contribution(node, x);
 *         const Real *dout = tape_upstream(node, 0);
 *         for (int64_t i = 0; dx.data && i < tensor_count(x); i++)
 *             gradient_add(dx, i, 2 * x->data[i] * dout[i]);
 *     }
 *     Tensor *square(Tape *tape, Tensor *x)
 *     {
 *         tape_use_cpu(tape, "square: x", x);
 *         Tensor *out = tape_tensor(tape, x->shape);
 *         for (int64_t i = 0; i < tensor_count(x); i++)
 *             out->data[i] = x->data[i] * x->data[i];
 *         tape_record(tape, (Node){ .name = "square", .backward = square_backward,
 *                                   .inputs = { x }, .outputs = { out } });
 *         return out;
 *     }
 */
enum { NODE_INPUTS = 8, NODE_OUTPUTS = 4, NODE_SAVED = 4 };

typedef struct Node Node;
struct Node {
    const char *name;             /* of the operation, for messages and graphs */
    void (*backward)(Node *node); /* contributes to the gradients of its inputs */
    Tensor *inputs[NODE_INPUTS];  /* NULL for an omitted optional input */
    Tensor *const *more_inputs;   /* more_count inputs beyond these, from tape_save */
    int more_count;
    Tensor *outputs[NODE_OUTPUTS]; /* the tensors that the operation returned */
    Tensor *saved[NODE_SAVED];     /* tensors that forward computed only for backward; freed with
                                    * the node */
    const void *attributes;        /* a small struct of constants, from tape_save */
    unsigned minus_infinity;       /* inputs, 1 << i, that may be: tape_check_finite lets it pass */
    bool collective; /* other ranks wait for its backward function, which is called even if no
                      * output has a gradient */
    Tape *tape;      /* this and the following fields are set by tape_record */
    Node *previous;
    int64_t index;
};

/* Raises unless the tensor's dtype is Real or bf16 (tape_use_i32: int32; tape_use_real: Real), it
 * is on the tape's device and belongs to no other tape, and it was not released. label starts the
 * sentence: "op_add: a". An operation whose loops read x->data, host memory on the CPU only, calls
 * tape_use_cpu: as tape_use_real, and it raises on CUDA. */
void tape_use(Tape *tape, const char *label, Tensor *tensor);
void tape_use_i32(Tape *tape, const char *label, Tensor *tensor);
void tape_use_real(Tape *tape, const char *label, Tensor *tensor);
void tape_use_cpu(Tape *tape, const char *label, Tensor *tensor);

/* New tensors of the tape, uninitialized. Raise for an invalid shape and for exhausted memory. */
Tensor *tape_tensor(Tape *tape, Shape shape);
Tensor *tape_tensor_i32(Tape *tape, Shape shape);
Tensor *tape_tensor_of(Tape *tape, TensorType type, Shape shape);

/* The same elements in another shape of the same count: shares storage and gradient. Raises as
 * tape_use does, but accepts int32. */
Tensor *tape_view(Tape *tape, Tensor *tensor, Shape shape);

/* A copy of a small struct in the tape's arena, valid until tape_reset. */
const void *tape_save(Tape *tape, const void *data, size_t size);

/* Advances the tape's Philox counter and returns the generator as it was before. While a step is
 * captured, that counter is relative to the one at tape_random_start, in device memory; otherwise
 * tape_random_start is NULL. */
Random tape_draw(Tape *tape, int64_t counters);
const uint64_t *tape_random_start(const Tape *tape);

/* Whether a function of tape_recompute runs for the second time. */
bool tape_is_recomputing(const Tape *tape);

/* Before an operation overwrites a Real tensor from outside of the step, such as a running
 * statistic: copies its elements, which tape_reset after an error writes back. Returns false in the
 * second run of tape_recompute, which must not write: the first run did. */
bool tape_will_overwrite(Tape *tape, Tensor *tensor);

/* Records the node if the tape is recording and an input requires a gradient; then the outputs do
 * too. Raises when such a node has no backward function, unless its output is a tape_view. */
void tape_record(Tape *tape, Node node);

/* Raises an error of an operation on this tape; tape_reset then undoes the step. */
void tape_error(Tape *tape, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* In a backward function: dL/doutput of the index-th output, or NULL if the loss does not depend on
 * it. The tape calls backward only if at least one output has a gradient, or the node is
 * collective. */
const Real *tape_upstream(const Node *node, int index);

/* In a backward function: the buffer of dL/dinput. data is NULL if the input is NULL or requires no
 * gradient: skip it. If accumulate, add to the earlier contributions, else store. Call it once per
 * contribution to an input, and write every element. Two inputs may be the same tensor: write the
 * first's gradient before the call for the second's, since the first stores and the second adds. */
typedef struct Gradient {
    Real *data;
    bool accumulate;
} Gradient;
Gradient tape_contribution(Node *node, Tensor *input);

/* The same for a gradient that is scattered: elements that get no contribution or several, as in a
 * lookup or a pooling. The buffer is zeroed before the first contribution, so call gradient_add any
 * number of times per element:
 *     Gradient dtable = tape_scattered_contribution(node, table);
 *     for (int64_t i = 0; dtable.data && i < rows * width; i++)
 *         gradient_add(dtable, index[i / width] * width + i % width, dout[i]); */
Gradient tape_scattered_contribution(Node *node, Tensor *input);

/* One element's contribution: data[i] = (accumulate ? data[i] : 0) + value. The earlier sum is
 * masked by bits, since gcc 12 vectorizes no long loop with a selection by a loop-invariant
 * condition. */
static inline void gradient_add(Gradient gradient, int64_t i, Real value)
{
#ifdef TAPEGRAD_DOUBLE
    uint64_t bits, mask = gradient.accumulate;
#else
    uint32_t bits, mask = gradient.accumulate;
#endif
    Real sum;
    memcpy(&bits, &gradient.data[i], sizeof bits);
    bits &= -mask; /* all bits, or none */
    memcpy(&sum, &bits, sizeof sum);
    gradient.data[i] = sum + value;
}

/* Frees a workspace of an operation or of its backward function; NULL is ignored. After an error
 * tape_reset frees it. */
void tape_scratch_free(Tape *tape, Tensor *scratch);

/* ------------------------------------------------------------------------------- gradient checking
 * Compares the tape's gradients of sum_i r_i out_i (r random, fixed) with finite differences,
 * (f(x + h) - f(x - h)) / 2h. The function is called many times, with variables that hold the given
 * values; it must be deterministic. A right gradient of a smooth function has an error below 2e-3
 * in float, 1e-7 in double (REAL=double, TAPEGRAD_DOUBLE), mostly near 1e-5 and 1e-10. Gradient
 * buffers are NaN until a backward function stores into them, so elements that it forgets stay NaN,
 * and so does the error, which passes no test of `error <= 2e-3`.
 *
 * Not found: a wrong forward pass; a store in place of an add, unless the function uses a tensor
 * twice; a wrong gradient that is small beside others of its input, or beside out; the gradient of
 * a tensor that is no input, such as a weight in the context; an output that the function does not
 * return. A right gradient fails where f has a kink within h, which is max(1, |x|) times 5e-3 in
 * float, 6e-6 in double. If a handler leaves an error by longjmp, some memory is not freed. */
typedef Tensor *CheckedFunction(Tape *tape, Tensor *const *inputs, void *context);

typedef struct CheckInput {
    Shape shape;
    const Real *values; /* host memory */
} CheckInput;

/* error is max |analytic - numeric| / scale over the elements of one input, or NaN. scale is that
 * input's max |numeric|, but no less than |out| / 100: rounding errors of out hide smaller ones.
 *
 * pattern says what a wrong gradient is beside the differences, if it is one of these, else "":
 *     "-1 times the differences", "2 times ...", or another constant
 *     "the last 5 of 20 elements are NaN: never written?", "5 of 20 elements are 0: ..."
 *     "the transpose of the differences"
 *     "off by a multiple of out in each row", "off by a constant in each row" */
typedef struct GradientCheck {
    double error;             /* the largest, */
    int input;                /* its input, */
    int64_t element;          /* the input's worst element, */
    double analytic, numeric; /* the two gradients there, */
    char pattern[88];         /* and what the input's gradient resembles */
} GradientCheck;

GradientCheck gradient_check(Device *device, CheckedFunction *function, void *context,
                             const CheckInput *inputs, int count);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
