/* The checks of targets and weights, for op_cross_entropy and the operations like it. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"
#include "ops/shared/rows.h"

bool op_check_weights(Tape *tape, const char *label, Tensor *weights)
{
    tape_use_real(tape, label, weights);
    if (device_is_capturing(weights->device))
        return false;
    const int64_t R = tensor_count(weights);
    bool all_zero = true;
    ChunkedRead read;
    read.tensor = weights;
    for (int64_t i = 0; i < R; i++) {
        const Real weight = read.reals[chunk_index(&read, i)];
        if (!(weight >= 0 && weight < (Real)INFINITY))
            tape_error(tape, "%s[%lld] is %g, expected 0 or more", label, (long long)i,
                       (double)weight);
        all_zero &= weight == 0;
    }
    return all_zero;
}

bool op_check_classes(Tape *tape, ClassLabels labels, Tensor *logits, Tensor *targets,
                      Tensor *weights)
{
    tape_use(tape, labels.logits, logits);
    if (logits->shape.rank < 1)
        tape_error(tape, "%s is a scalar, expected one axis at least", labels.logits);
    tape_use_i32(tape, labels.targets, targets);
    check_one_per_row(tape, labels.targets, targets, logits, "logits");
    op_check_indices(tape, labels.targets, targets, 0, shape_columns(logits->shape) - 1,
                     "the classes of logits");
    if (!weights)
        return false;
    tape_use_real(tape, labels.weights, weights);
    check_one_per_row(tape, labels.weights, weights, logits, "logits");
    return op_check_weights(tape, labels.weights, weights);
}
