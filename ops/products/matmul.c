/* matmul: out = a b, for the matrices in the last two axes
 *   out_ij = sum_l a_il b_lj
 * Backward, g = dL/dout:
 *   da_il <- sum_j g_ij b_lj, so da = g b^T          db_lj <- sum_i a_il g_ij, so db = a^T g
 * A transposed argument gets the transposed gradient: matmul_tn da = b g^T, matmul_nt db = g^T a.
 * If all matrices of a share one b, db is summed over a's leading axes. */
#include "ops/products/product.h"
#include "ops/shared/internal.h"

static void matmul_backward(Node *node)
{
    Tensor *a = node->inputs[0], *b = node->inputs[1];
    const Product p = *(const Product *)node->attributes;
    const Operand dout = upstream_operand(node);

    if (p.transpose_a) /* da [k, n] <- b [k, m] dout^T [m, n] */
        op_contribute_product(
            node, a, operand_of(b), dout,
            (Product){ p.k, p.m, p.n, false, true, p.count, p.a_step, p.b_step, p.out_step });
    else /* da [n, k] <- dout [n, m] b^T [m, k] */
        op_contribute_product(node, a, dout, operand_of(b),
                              (Product){ p.n, p.m, p.k, false, !p.transpose_b, p.count, p.a_step,
                                         p.out_step, p.b_step });
    if (p.transpose_b) /* db [m, k] <- dout^T [m, n] a [n, k] */
        op_contribute_product(
            node, b, dout, operand_of(a),
            (Product){ p.m, p.n, p.k, true, false, p.count, p.b_step, p.out_step, p.a_step });
    else /* db [k, m] <- a^T [k, n] dout [n, m] */
        op_contribute_product(node, b, operand_of(a), dout,
                              (Product){ p.k, p.n, p.m, !p.transpose_a, false, p.count, p.b_step,
                                         p.a_step, p.out_step });
}

/* Names of an operation and its arguments in error messages. */
typedef struct MatmulLabels {
    const char *operation, *a, *b;
} MatmulLabels;
#define MATMUL_LABELS(name) ((MatmulLabels){ name, name ": a", name ": b" })

/* Raises unless b has a's leading axes or none. */
static void check_leading_axes(Tape *tape, MatmulLabels labels, const Tensor *a, const Tensor *b)
{
    int rank = b->shape.rank;
    bool equal = rank == 2 || rank == a->shape.rank;
    for (int axis = 0; equal && axis < rank - 2; axis++)
        equal = a->shape.size[axis] == b->shape.size[axis];
    if (!equal)
        tape_error(tape, "%s: leading axes differ: a %s, b %s; make them equal, or give b none",
                   labels.operation, tensor_text(a).text, tensor_text(b).text);
}

static Product check_matmul(Tape *tape, MatmulLabels labels, Tensor *a, Tensor *b, bool transpose_a,
                            bool transpose_b)
{
    tape_use(tape, labels.a, a);
    tape_use(tape, labels.b, b);
    if (a->shape.rank < 2 || b->shape.rank < 2)
        tape_error(tape, "%s: a %s, b %s, expected two axes at least", labels.operation,
                   tensor_text(a).text, tensor_text(b).text);
    int64_t n = shape_size(a->shape, transpose_a ? -1 : -2);
    int64_t k = shape_size(a->shape, transpose_a ? -2 : -1);
    int64_t m = shape_size(b->shape, transpose_b ? -2 : -1);
    if (shape_size(b->shape, transpose_b ? -1 : -2) != k)
        tape_error(tape, "%s: inner sizes differ: a %s%s, b %s%s", labels.operation,
                   tensor_text(a).text, transpose_a ? " transposed" : "", tensor_text(b).text,
                   transpose_b ? " transposed" : "");
    check_leading_axes(tape, labels, a, b);
    int64_t count = tensor_count(a) / (n * k);
    if (b->shape.rank == 2 && !transpose_a) /* all matrices of a are one tall matrix */
        return (Product){ n * count, k, m, false, transpose_b, 1, 0, 0, 0 };
    int64_t b_step = b->shape.rank == 2 ? 0 : k * m;
    return (Product){ n, k, m, transpose_a, transpose_b, count, n * m, n * k, b_step };
}

static Tensor *matmul(Tape *tape, MatmulLabels labels, Tensor *a, Tensor *b, bool transpose_a,
                      bool transpose_b)
{
    const Product p = check_matmul(tape, labels, a, b, transpose_a, transpose_b);
    Shape out_shape = a->shape;
    out_shape.size[out_shape.rank - 2] = shape_size(a->shape, transpose_a ? -1 : -2);
    out_shape.size[out_shape.rank - 1] = p.m;
    const TensorType type = product_type(tape);
    a = op_cast(tape, a, type);
    b = op_cast(tape, b, type);
    Tensor *out = tape_tensor_of(tape, type, out_shape);
    op_product(tape, result_in(out), operand_of(a), operand_of(b), p);
    tape_record(tape, (Node){ labels.operation, matmul_backward, .inputs = { a, b },
                              .outputs = { out }, .attributes = tape_save(tape, &p, sizeof p) });
    return out;
}

Tensor *op_matmul(Tape *tape, Tensor *a, Tensor *b)
{
    return matmul(tape, MATMUL_LABELS("op_matmul"), a, b, false, false);
}

Tensor *op_matmul_nt(Tape *tape, Tensor *a, Tensor *b)
{
    return matmul(tape, MATMUL_LABELS("op_matmul_nt"), a, b, false, true);
}

Tensor *op_matmul_tn(Tape *tape, Tensor *a, Tensor *b)
{
    return matmul(tape, MATMUL_LABELS("op_matmul_tn"), a, b, true, false);
}
