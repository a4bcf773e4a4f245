/* Losses composed of other operations, which have the derivatives and the kernels. With p_r =
 * softmax(x_r) they take ln p and ln sigmoid, which are finite for all finite x, and not p:
 * ln sigmoid(-x) is ln(1 - sigmoid(x)) without its cancellation.
 *
 * soft:      l_r = -sum_c t_rc ln p_rc
 * smoothed:  t_rc = (1 - e) [c = t_r] + e / C, which need not be stored, since
 *            l_r = (1 - e) (-ln p_r,t_r) + e (-sum_c ln p_rc / C)
 * binary:    l_i = -(p_i t_i ln sigmoid(x_i) + (1 - t_i) ln sigmoid(-x_i))
 * and the loss is sum_r w_r l_r / sum_r w_r. Since 0 NaN = NaN, x and t of weight 0 are replaced by
 * 0 before they are used, which keeps a NaN from the derivatives too. */
#include "ext/losses/losses.h"

#include "extend.h"

/* x as Real, with 0 where the weight w, broadcast to x, is 0. */
static Tensor *counted(Tape *tape, Tensor *x, Tensor *w)
{
    x = op_cast(tape, x, TENSOR_REAL);
    return w ? op_where(tape, w, x, w) : x;
}

/* sum_r w_r x_r / sum_r w_r */
static Tensor *weighted_mean(Tape *tape, Tensor *x, Tensor *w)
{
    if (!w)
        return op_mean(tape, x, ALL_AXES);
    return op_divide(tape, op_sum(tape, op_multiply(tape, x, w), ALL_AXES),
                     op_sum(tape, w, ALL_AXES));
}

/* weights [...] of rows as [..., 1], which broadcasts to their elements; NULL remains NULL. */
static Tensor *column_of(Tape *tape, Tensor *weights)
{
    if (!weights)
        return NULL;
    Shape column = weights->shape;
    column.size[column.rank++] = 1;
    return op_reshape(tape, weights, column);
}

/* A composition would pass a gradient to the weights, and a wrong one to a 0. */
static void need_constant(Tape *tape, const char *label, const Tensor *weights)
{
    if (weights->requires_grad)
        tape_error(tape,
                   "%s requires a gradient, which it does not get; compute it without recording",
                   label);
}

static void check_loss_weights(Tape *tape, const char *label, Tensor *weights, Shape expected,
                               const Tensor *logits)
{
    if (!weights)
        return;
    const bool all_are_zero = op_check_weights(tape, label, weights);
    need_constant(tape, label, weights);
    if (!shape_equal(weights->shape, expected))
        tape_error(tape, "%s %s, expected %s: logits %s", label, tensor_text(weights).text,
                   shape_text(expected).text, tensor_text(logits).text);
    if (all_are_zero)
        tape_error(tape, "%s: all are 0, expected one above", label);
}

static void check_same_shape(Tape *tape, const char *operation, const Tensor *logits,
                             const Tensor *targets)
{
    if (!shape_equal(logits->shape, targets->shape))
        tape_error(tape, "%s: shapes differ: logits %s, targets %s", operation,
                   tensor_text(logits).text, tensor_text(targets).text);
}

Tensor *op_soft_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, Tensor *weights)
{
    tape_use(tape, "op_soft_cross_entropy: logits", logits);
    tape_use(tape, "op_soft_cross_entropy: targets", targets);
    check_same_shape(tape, "op_soft_cross_entropy", logits, targets);
    if (logits->shape.rank < 1)
        tape_error(tape, "op_soft_cross_entropy: logits is a scalar, expected one axis at least");
    check_loss_weights(tape, "op_soft_cross_entropy: weights", weights,
                       shape_of_rows(logits->shape), logits);
    Tensor *column = column_of(tape, weights);
    Tensor *x = counted(tape, logits, column), *t = counted(tape, targets, column);
    Tensor *products = op_multiply(tape, t, op_log_softmax(tape, x));
    return op_scale(tape, weighted_mean(tape, op_sum(tape, products, -1), weights), -1);
}

Tensor *op_smoothed_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets, double smoothing,
                                  Tensor *weights)
{
    op_check_classes(tape, CLASS_LABELS("op_smoothed_cross_entropy"), logits, targets, NULL);
    check_loss_weights(tape, "op_smoothed_cross_entropy: weights", weights,
                       shape_of_rows(logits->shape), logits);
    if (!(smoothing >= 0 && smoothing <= 1))
        tape_error(tape, "op_smoothed_cross_entropy: smoothing is %g, expected 0 to 1", smoothing);
    if (smoothing == 0)
        return op_cross_entropy(tape, logits, targets, weights);
    Tensor *x = counted(tape, logits, column_of(tape, weights));
    Tensor *means = op_mean(tape, op_log_softmax(tape, x), -1);
    return op_subtract(tape,
                       op_scale(tape, op_cross_entropy(tape, x, targets, weights), 1 - smoothing),
                       op_scale(tape, weighted_mean(tape, means, weights), smoothing));
}

static void check_positive_weights(Tape *tape, Tensor *positive, const Tensor *logits)
{
    static const char label[] = "op_binary_cross_entropy: positive_weights";
    Shape both = logits->shape;
    op_check_weights(tape, label, positive);
    need_constant(tape, label, positive);
    if (!op_broadcast_with(&both, positive->shape) || !shape_equal(both, logits->shape))
        tape_error(tape, "%s %s, logits %s, expected a shape that broadcasts to that of logits",
                   label, tensor_text(positive).text, tensor_text(logits).text);
}

Tensor *op_binary_cross_entropy(Tape *tape, Tensor *logits, Tensor *targets,
                                BinaryCrossEntropyOptions options)
{
    Tensor *weights = options.weights, *positive = options.positive_weights;
    tape_use(tape, "op_binary_cross_entropy: logits", logits);
    tape_use(tape, "op_binary_cross_entropy: targets", targets);
    check_same_shape(tape, "op_binary_cross_entropy", logits, targets);
    check_loss_weights(tape, "op_binary_cross_entropy: weights", weights, logits->shape, logits);
    if (positive)
        check_positive_weights(tape, positive, logits);
    Tensor *x = counted(tape, logits, weights), *t = counted(tape, targets, weights);
    Tensor *yes = op_multiply(tape, t, op_log_sigmoid(tape, x));
    Tensor *no = op_multiply(tape, op_add_scalar(tape, op_scale(tape, t, -1), 1),
                             op_log_sigmoid(tape, op_scale(tape, x, -1)));
    yes = positive ? op_multiply(tape, yes, positive) : yes;
    return op_scale(tape, weighted_mean(tape, op_add(tape, yes, no), weights), -1);
}
