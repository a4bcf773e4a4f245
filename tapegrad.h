/* tapegrad: train small models in C. One header, one library.
 *
 * A tape records what a program computes with tensors, and computes the gradients of a number, the
 * loss, by the chain rule. This is linear regression, y = 2 x1 - 3 x2 + 1:
 *
 *     #include <stdio.h>
 *     #include <tapegrad.h>
 *
 *     int main(void)
 *     {
 *         static const Real x[4][2] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 1 } };
 *         static const Real y[4] = { 1, 3, -2, 0 };
 *         Device *device = device_best();
 *         Params *params = params_new(device, 1);
 *         Linear layer = nn_linear(params, "layer", 2, 1);
 *         Optimizer *optimizer = optim_sgd(params, optim_sgd_config(0.2));
 *         Tape *tape = tape_new(device);
 *         for (int step = 1; step <= 200; step++) {
 *             Tensor *inputs = tape_input(tape, x[0], shape(4, 2));
 *             Tensor *targets = tape_input(tape, y, shape(4, 1));
 *             Tensor *outputs = nn_linear_forward(tape, &layer, inputs);
 *             Tensor *loss = op_mean_squared_error(tape, outputs, targets);
 *             tape_backward(tape, loss);
 *             optim_step(optimizer);
 *             if (step % 50 == 0)
 *                 printf("step %d  loss %.6f\n", step, tensor_item(loss));
 *             tape_reset(tape);
 *         }
 *         tape_free(tape);
 *         optim_free(optimizer);
 *         params_free(params);
 *         return 0;
 *     }
 *
 * Device    "cpu", "cuda", or "plain" loops: device_open(name); device_best() prefers a GPU.
 * Tensor    Real (float, or double by TAPEGRAD_DOUBLE) or int32 elements on a device: up to four
 *           axes, row-major. tape_input copies from the program's arrays, tensor_read to them;
 *           tensor_item returns a tensor's one element.
 * Tape      owns what its functions return until tape_reset, the end of a step. tape_backward also
 *           frees what no later gradient needs; tensor_keep prevents that.
 * Params    owns the weights until params_free, by names as "layer.weight", with their gradients.
 *           The seed and the name decide a weight's initial values.
 * op_       operations: op_add, op_matmul, op_relu, op_softmax, op_cross_entropy, ... (ops/ops.h).
 * nn_       layers: structs of weights, and functions that apply them.
 * optim_    optimizers. A step uses the gradients and empties them. A config comes with defaults,
 *           optim_adam_config(1e-3), whose fields may be changed before use.
 *
 * In every function's comment: shapes in brackets, x [B, N, width]; the formula; what raises. An
 * error is one sentence with the operation, the value and the expectation. By default it ends the
 * program; a handler of tapegrad_on_error may leave by longjmp, and tape_reset undoes the step.
 * A function of files returns false instead, and tapegrad_error() has the sentence.
 *
 * To evaluate, turn both switches off: tape_set_training (dropout, statistics) and, so that nothing
 * is kept for gradients, tape_set_recording. To save and continue: optim_save and optim_load, the
 * weights alone by params_save and params_load, in safetensors files.
 *
 * An operation of your own checks its arguments, computes, and records a function that contributes
 * to the gradients of its inputs. "<-" in a derivation means "contribute to": a tensor's first use
 * stores, other uses add. out = x^3, with dL/dx <- 3 x^2 dL/dout, by a loop over host memory, so on
 * device_open("cpu"):
 *
 *     static void cube_backward(Node *node)
 *     {
 *         Tensor *x = node->inputs[0];
 *         Gradient dx = tape_contribution(node, x);
 *         const Real *dout = tape_upstream(node, 0);
 *         for (int64_t i = 0; dx.data && i < tensor_count(x); i++)
 *             gradient_add(dx, i, 3 * x->data[i] * x->data[i] * dout[i]);
 *     }
 *
 *     static Tensor *cube(Tape *tape, Tensor *x)
 *     {
 *         tape_use_cpu(tape, "cube: x", x);
 *         Tensor *out = tape_tensor(tape, x->shape);
 *         for (int64_t i = 0; i < tensor_count(x); i++)
 *             out->data[i] = x->data[i] * x->data[i] * x->data[i];
 *         tape_record(tape, (Node){ "cube", cube_backward, .inputs = { x }, .outputs = { out } });
 *         return out;
 *     }
 *
 * gradient_check compares such gradients with finite differences:
 *
 *     static Tensor *checked(Tape *tape, Tensor *const *inputs, void *context)
 *     {
 *         (void)context;
 *         return cube(tape, inputs[0]);
 *     }
 *
 *     int main(void)
 *     {
 *         static const Real values[3] = { -1, 0.5, 2 };
 *         const CheckInput input = { shape(3), values };
 *         GradientCheck result = gradient_check(device_open("cpu"), checked, NULL, &input, 1);
 *         return !(result.error < 2e-3);
 *     }
 *
 * The headers below are the reference; docs/recipes.md has more programs. */
#ifndef TAPEGRAD_H
#define TAPEGRAD_H

#include "tensor/tensor.h"
#include "autograd/tape.h"
#include "ops/ops.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "distributed/distributed.h"

/* Extensions; -DTAPEGRAD_NUCLEUS: the library without them */
#ifndef TAPEGRAD_NUCLEUS
#include "ext/causal_convolution/causal_convolution.h"
#include "ext/ctc/ctc.h"
#include "ext/decode/decode.h"
#include "ext/delta/delta.h"
#include "ext/features/features.h"
#include "ext/gated_linear_attention/gated_linear_attention.h"
#include "ext/gates/gates.h"
#include "ext/images/images.h"
#include "ext/linear_cross_entropy/linear_cross_entropy.h"
#include "ext/losses/losses.h"
#include "ext/lsh/lsh.h"
#include "ext/mixture/mixture.h"
#include "ext/muon/muon.h"
#include "ext/profile/profile.h"
#include "ext/recurrent/recurrent.h"
#include "ext/rms_norm/rms_norm.h"
#include "ext/rotary/rotary.h"
#include "ext/sampling/sampling.h"
#include "ext/schedule_free/schedule_free.h"
#endif

#endif
