/* linear_cross_entropy: x [R, D], weight [V, D], bias [V]
 *   logits_r = weight x_r + bias     l_r = ln sum_c e^logits_rc     W = sum_r w_r
 *   out = sum_r w_r (l_r - logits_r,t_r) / W
 * Backward, g = dL/dout; ops/losses/cross_entropy.c and ops/products/linear.c derive
 *   h_rc = w_r (e^(logits_rc - l_r) - [c = t_r])     dL/dlogits_rc = g / W h_rc
 *   dx_rd <- g / W sum_c h_rc weight_cd
 *   dweight_cd <- g / W sum_r h_rc x_rd     dbias_c <- g / W sum_r h_rc
 * All of it but g / W is known as soon as a row's logits are. So the forward pass takes the rows in
 * blocks: it computes a block's logits, overwrites them by h, and multiplies h by weight and by x.
 * The sums over r and c are saved; the backward pass scales them by g / W.
 *
 * Instead it could save l and compute the logits again in the backward pass: four products of
 * R V D multiplications in place of three, a third more time, without the saved sums, (R + V) D.
 * These are few beside the logits, R V, since D is smaller than R and V; and mostly the loss is the
 * tape's last node, so that they are freed before any other gradient is computed. Whoever needs
 * that memory calls the operation within tape_recompute, whose first run records nothing. No
 * gradient is computed where none is required: without recording, as in an evaluation, and of
 * constants. To the gradient of a shared weight, such as an embedding, the saved sums are one more
 * contribution.
 *
 * With one block its logits are saved in place of the sums. The backward pass overwrites them by
 * g / W h, and its products add to the gradients directly, as those of op_linear.
 *
 * Every block reads and writes the sum dweight, 2 V D Reals, for 2 rows V D flops: the number of
 * rows makes this product fast. In bf16 logits are Real; h is rounded for the products, the sums
 * are not. */
#include "ext/linear_cross_entropy/linear_cross_entropy.h"
#include "ext/linear_cross_entropy/kernels.h"

enum { BLOCK_ROWS = 512 };

void linear_cross_entropy_row(Real *losses, bool with_h, double scale, const LogitsBlock *block,
                              int64_t r)
{
    const int64_t V = block->V, target = block->targets[r];
    Real *logits = block->logits + r * V;
    const double w = block->weights ? (double)block->weights[r] : 1;
    if (losses) {
        block->l[r] = log_sum_exp(logits, V);
        losses[r] = weighted_loss((Real)w, logits[target], block->l[r]);
    }
    const LogSumExp l = block->l[r];
    const Real factor = (Real)(w * scale);
    PRAGMA(omp simd)
    for (int64_t c = 0; c < (with_h ? V : 0); c++)
        logits[c] = factor == 0 ? 0 : factor * real_exp(log_probability(logits[c], l));
    if (with_h)
        logits[target] -= factor;
}

static void rows_plain(Real *losses, Real *h, const Real *g, const Real *W, LogitsBlock block)
{
    const double scale = quotient_or_one(g, W);
    EACH_ROW(r, block.R, block.V)
        linear_cross_entropy_row(losses, h != NULL, scale, &block, r);
}

static void scale_plain(Gradient dx, const Real *g, const Real *W, const Real *sums, int64_t n)
{
    const Real factor = *g / *W;
    EACH(i, n)
        gradient_add(dx, i, factor * sums[i]);
}

const LinearCrossEntropyKernels linear_cross_entropy_plain = { rows_plain, scale_plain };

/* Some of the rows, or all. */
typedef struct Classifier {
    Tape *tape;
    Operand x, weight;          /* [R, D], [V, D], of one dtype */
    const Real *bias, *weights; /* [V], [R]; or NULL */
    const int32_t *targets;     /* [R] */
    int64_t R, D, V;
} Classifier;

/* The node's inputs; and W, which is saved, in both forms of the backward pass. */
enum { INPUT_X, INPUT_WEIGHT, INPUT_BIAS, INPUT_TARGETS, INPUT_WEIGHTS };
enum { SAVED_W = INPUT_BIAS + 1 };

/* The weight in the dtype of x: itself, its Params' copy, or *copy, a tensor of the tape. */
static Operand weight_as(TensorType type, Tape *tape, Tensor *weight, Tensor **copy)
{
    if (type == weight->type)
        return operand_of(weight);
    const Real *shared = weight->bf16_copy ? weight->bf16_copy(weight, false) : NULL;
    if (shared)
        return (Operand){ shared, type };
    *copy = tape_tensor_of(tape, type, weight->shape);
    op_convert(weight->device, (Gradient){ (*copy)->data, false }, weight->data, true,
               tensor_count(weight));
    return operand_of(*copy);
}

static Classifier classifier_of(Tape *tape, Tensor *const *inputs, Tensor **copy)
{
    const Tensor *x = inputs[INPUT_X], *bias = inputs[INPUT_BIAS], *weights = inputs[INPUT_WEIGHTS];
    return (Classifier){ .tape = tape,
                         .x = operand_of(x),
                         .weight = weight_as(x->type, tape, inputs[INPUT_WEIGHT], copy),
                         .bias = bias ? bias->data : NULL,
                         .weights = weights ? weights->data : NULL,
                         .targets = inputs[INPUT_TARGETS]->integers,
                         .R = shape_rows(x->shape),
                         .D = shape_columns(x->shape),
                         .V = inputs[INPUT_WEIGHT]->shape.size[0] };
}

static Classifier classifier_rows(const Classifier *all, const Tensor *x, int64_t first,
                                  int64_t rows)
{
    Classifier in = *all;
    in.x.data = tensor_elements_on(x, in.x.data, first * in.D);
    in.targets += first;
    if (in.weights)
        in.weights += first;
    in.R = rows;
    return in;
}

static const LinearCrossEntropyKernels *kernels_for(const Classifier *in)
{
    return linear_cross_entropy_kernels(tape_device(in->tape), in->x.type);
}

static LogitsBlock block_of(const Classifier *in, const Tensor *logits, const Tensor *l)
{
    return (LogitsBlock){ .logits = logits->data,
                          .l = (LogSumExp *)l->data,
                          .targets = in->targets,
                          .weights = in->weights,
                          .R = in->R,
                          .V = in->V };
}

/* logits [R, V] = x [R, D] weight^T [D, V] + bias: Real, in bf16 too */
static void compute_logits(const Classifier *in, Real *logits)
{
    op_product(in->tape, (Result){ logits, TENSOR_REAL, false }, in->x, in->weight,
               (Product){ .n = in->R, .k = in->D, .m = in->V, .transpose_b = true, .count = 1 });
    if (in->bias)
        op_kernels_on(tape_device(in->tape), TENSOR_REAL)
            ->linear_activate(logits, NULL, in->bias, ACTIVATION_NONE, in->R, in->V);
}

/* For h in the dtype of x, which products take: the logits themselves, or a new tensor. */
static Tensor *memory_of_h(const Classifier *in, Tensor *logits)
{
    const TensorType type = in->x.type;
    return type == logits->type ? logits : tape_tensor_of(in->tape, type, logits->shape);
}

/* dx [R, D] <- h [R, V] weight [V, D]     dweight [V, D] <- h^T [V, R] x [R, D] */
static Product product_for_x(const Classifier *in)
{
    return (Product){ .n = in->R, .k = in->V, .m = in->D, .count = 1 };
}
static Product product_for_weight(const Classifier *in)
{
    return (Product){ .n = in->V, .k = in->R, .m = in->D, .transpose_a = true, .count = 1 };
}

/* ------------------------------------------------------------------------------------ one block */
enum { SAVED_LOGITS, SAVED_L };

static void one_block_backward(Node *node)
{
    Tensor *weight_copy = NULL, *logits = node->saved[SAVED_LOGITS];
    const Classifier in = classifier_of(node->tape, node->inputs, &weight_copy);
    Tensor *h = memory_of_h(&in, logits);
    kernels_for(&in)->rows(NULL, h->data, tape_upstream(node, 0), node->saved[SAVED_W]->data,
                           block_of(&in, logits, node->saved[SAVED_L]));
    const Gradient dbias = tape_contribution(node, node->inputs[INPUT_BIAS]);
    if (dbias.data)
        kernels_of(h)->column_sums(dbias, h->data, in.R, in.V);
    op_contribute_product(node, node->inputs[INPUT_X], operand_of(h), in.weight,
                          product_for_x(&in));
    op_contribute_product(node, node->inputs[INPUT_WEIGHT], operand_of(h), in.x,
                          product_for_weight(&in));
    if (h != logits)
        tape_scratch_free(node->tape, h);
    tape_scratch_free(node->tape, weight_copy);
}

static void one_block_forward(const Classifier *in, Node *node, Real *losses)
{
    Tensor *logits = tape_tensor(in->tape, shape(in->R, in->V));
    Tensor *l = tape_tensor(in->tape, shape(in->R, 2));
    compute_logits(in, logits->data);
    kernels_for(in)->rows(losses, NULL, NULL, NULL, block_of(in, logits, l));
    node->backward = one_block_backward;
    node->saved[SAVED_LOGITS] = logits;
    node->saved[SAVED_L] = l;
}

/* ---------------------------------------------------------------------------------- more blocks */
/* saved[INPUT_X], saved[INPUT_WEIGHT], saved[INPUT_BIAS]: the sums of their gradients */

static void blocks_backward(Node *node)
{
    const Real *g = tape_upstream(node, 0), *W = node->saved[SAVED_W]->data;
    for (int i = INPUT_X; i <= INPUT_BIAS; i++) {
        Tensor *input = node->inputs[i];
        const Gradient gradient = tape_contribution(node, input);
        if (gradient.data)
            linear_cross_entropy_kernels(input->device, input->type)
                ->scale(gradient, g, W, node->saved[i]->data, tensor_count(input));
    }
}

/* Adds the products of the rows from `first` on to the sums, of which those that no gradient
 * requires are NULL. */
static void add_gradients_of_rows(const Classifier *in, Tensor *const *sums, const Tensor *h,
                                  int64_t first)
{
    const Tensor *dx = sums[INPUT_X], *dweight = sums[INPUT_WEIGHT], *dbias = sums[INPUT_BIAS];
    if (dx)
        op_product(in->tape, (Result){ dx->data + first * in->D, TENSOR_REAL, false },
                   operand_of(h), in->weight, product_for_x(in));
    if (dweight)
        op_product(in->tape, (Result){ dweight->data, TENSOR_REAL, first > 0 }, operand_of(h),
                   in->x, product_for_weight(in));
    if (dbias)
        kernels_of(h)->column_sums((Gradient){ dbias->data, first > 0 }, h->data, in->R, in->V);
}

static void blocks_forward(const Classifier *all, int64_t blocks, Node *node, Real *losses)
{
    Tape *tape = all->tape;
    const int64_t R = all->R, rows = (R + blocks - 1) / blocks;
    Tensor *logits = tape_tensor(tape, shape(rows, all->V)), *h = NULL, **sums = node->saved;
    Tensor *l = tape_tensor(tape, shape(rows, 2));
    for (int i = INPUT_X; i <= INPUT_BIAS; i++)
        if (node->inputs[i] && node->inputs[i]->requires_grad && tape_is_recording(tape))
            sums[i] = tape_tensor(tape, node->inputs[i]->shape);
    if (sums[INPUT_X] || sums[INPUT_WEIGHT] || sums[INPUT_BIAS])
        h = memory_of_h(all, logits);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t first = R * i / blocks;
        const Classifier in =
            classifier_rows(all, node->inputs[INPUT_X], first, R * (i + 1) / blocks - first);
        compute_logits(&in, logits->data);
        kernels_for(&in)->rows(losses + first, h ? h->data : NULL, NULL, NULL,
                               block_of(&in, logits, l));
        if (h)
            add_gradients_of_rows(&in, sums, h, first);
    }
    node->backward = blocks_backward;
    if (h != logits)
        tape_scratch_free(tape, h);
    tape_scratch_free(tape, l);
    tape_scratch_free(tape, logits);
}

/* ---------------------------------------------------------------------------------- constructor */
#define LABEL(argument) "op_linear_cross_entropy: " #argument

static void check_layer(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    tape_use(tape, LABEL(x), x);
    tape_use_real(tape, LABEL(weight), weight);
    if (weight->shape.rank != 2)
        tape_error(tape, LABEL(weight) " %s, expected two axes, [V, D]", tensor_text(weight).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != weight->shape.size[1])
        tape_error(tape, LABEL(x) " %s, expected %lld in its last axis: weight %s",
                   tensor_text(x).text, (long long)weight->shape.size[1], tensor_text(weight).text);
    if (!bias)
        return;
    tape_use_real(tape, LABEL(bias), bias);
    if (!shape_equal(bias->shape, shape(weight->shape.size[0])))
        tape_error(tape, LABEL(bias) " %s, expected %s: weight %s", tensor_text(bias).text,
                   shape_text(shape(weight->shape.size[0])).text, tensor_text(weight).text);
}

static void check_classes(Tape *tape, Tensor *x, Tensor *weight, Tensor *targets, Tensor *weights)
{
    tape_use_i32(tape, LABEL(targets), targets);
    check_one_per_row(tape, LABEL(targets), targets, x, "x");
    op_check_indices(tape, LABEL(targets), targets, 0, weight->shape.size[0] - 1,
                     "the rows of weight");
    if (!weights)
        return;
    tape_use_real(tape, LABEL(weights), weights);
    check_one_per_row(tape, LABEL(weights), weights, x, "x");
    if (op_check_weights(tape, LABEL(weights), weights))
        tape_error(tape,
                   "op_linear_cross_entropy: the weights of all %lld rows are 0, "
                   "expected one above",
                   (long long)tensor_count(weights));
}

Tensor *op_linear_cross_entropy(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                                Tensor *targets, Tensor *weights)
{
    check_layer(tape, x, weight, bias);
    check_classes(tape, x, weight, targets, weights);
    x = op_cast(tape, x, product_type(tape));
    Tensor *out = tape_tensor(tape, shape_scalar()), *W = tape_tensor(tape, shape_scalar());
    Tensor *losses = tape_tensor(tape, shape(shape_rows(x->shape))), *weight_copy = NULL;
    Node node = { .name = "op_linear_cross_entropy",
                  .inputs = { x, weight, bias, targets, weights },
                  .outputs = { out } };
    const Classifier in = classifier_of(tape, node.inputs, &weight_copy);
    const int64_t blocks = (in.R + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (blocks == 1)
        one_block_forward(&in, &node, losses->data);
    else
        blocks_forward(&in, blocks, &node, losses->data);
    node.saved[SAVED_W] = W;
    kernels_of(losses)->mean_of_losses(out->data, W->data, losses->data, in.weights, in.R);
    tape_scratch_free(tape, losses);
    tape_scratch_free(tape, weight_copy);
    tape_record(tape, node);
    return out;
}
