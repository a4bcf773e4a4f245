/* The activations of op_linear_activation, by name. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_ACTIVATION_H
#define TAPEGRAD_OPS_ELEMENTWISE_ACTIVATION_H

#include "ops/elementwise/unary_functions.h"
#include "ops/ops.h"

/* f(y), and g f'(y), where for relu y may be f(y). */
MATH_FUNCTION Real activation_of(Activation f, Real y)
{
    switch (f) {
    case ACTIVATION_RELU:
        return relu(y);
    case ACTIVATION_GELU:
        return gelu(y);
    case ACTIVATION_GELU_TANH:
        return gelu_tanh(y);
    case ACTIVATION_SILU:
        return silu(y);
    default: /* ACTIVATION_NONE */
        return y;
    }
}
MATH_FUNCTION Real activation_gradient(Activation f, Real g, Real y)
{
    switch (f) {
    case ACTIVATION_RELU:
        return relu_gradient(g, y);
    case ACTIVATION_GELU:
        return gelu_gradient(g, y);
    case ACTIVATION_GELU_TANH:
        return gelu_tanh_gradient(g, y);
    case ACTIVATION_SILU:
        return silu_gradient(g, y);
    default: /* ACTIVATION_NONE */
        return g;
    }
}

/* Calls function(f, ...) with f a compile-time constant, so that each activation has a loop of its
 * own. */
#define BY_ACTIVATION(activation, function, ...)                                                   \
    switch (activation) {                                                                          \
    case ACTIVATION_RELU:                                                                          \
        function(ACTIVATION_RELU, __VA_ARGS__);                                                    \
        break;                                                                                     \
    case ACTIVATION_GELU:                                                                          \
        function(ACTIVATION_GELU, __VA_ARGS__);                                                    \
        break;                                                                                     \
    case ACTIVATION_GELU_TANH:                                                                     \
        function(ACTIVATION_GELU_TANH, __VA_ARGS__);                                               \
        break;                                                                                     \
    case ACTIVATION_SILU:                                                                          \
        function(ACTIVATION_SILU, __VA_ARGS__);                                                    \
        break;                                                                                     \
    default:                                                                                       \
        function(ACTIVATION_NONE, __VA_ARGS__);                                                    \
    }

#endif
