/* Products of matrices:  out_ij (+)= sum_l a_il b_lj
 *
 * The loops are ordered by how b is stored, so that the innermost one reads consecutive elements:
 *   b [k, m]     for l, for j:  out_ij += a_il b_lj       rows of b are added to a row of out
 *   b^T [m, k]   for j, for l:  sum += a_il b_jl          a row of b is multiplied with one of a
 * Sums are Reals: in double the loops take twice as long. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* out_i [m] += a_i b; the elements of a_i are a_step apart. */
static void add_row_product(Real *out_i, const Real *a_i, int64_t a_step, const Real *b, Product p)
{
    for (int64_t l = 0; l < p.k && !p.transpose_b; l++) {
        const Real a_il = a_i[l * a_step];
        PRAGMA(omp simd)
        for (int64_t j = 0; j < p.m; j++)
            out_i[j] += a_il * b[l * p.m + j];
    }
    for (int64_t j = 0; j < p.m && p.transpose_b; j++) {
        Real sum = 0;
        SUM(+, sum)
        for (int64_t l = 0; l < p.k; l++)
            sum += a_i[l * a_step] * b[j * p.k + l];
        out_i[j] += sum;
    }
}

/* Products that share out are added for each of its rows; otherwise every product has rows. */
void product_plain(Precision precision, Result out, Operand a, Operand b, Product p)
{
    (void)precision;
    const bool shared = p.out_step == 0;
    const int64_t rows = shared ? p.n : p.count * p.n, terms = shared ? p.count : 1;
    EACH_ROW(row, rows, p.k * p.m * terms) {
        const int64_t first = row / p.n, i = row % p.n;
        Real *out_i = out.data + first * p.out_step + i * p.m;
        if (!out.accumulate)
            memset(out_i, 0, (size_t)p.m * sizeof *out_i);
        for (int64_t t = first; t < first + terms; t++)
            add_row_product(out_i, a.data + t * p.a_step + (p.transpose_a ? i : i * p.k),
                            p.transpose_a ? p.n : 1, b.data + t * p.b_step, p);
    }
}

void op_product(Tape *tape, Result out, Operand a, Operand b, Product size)
{
    op_kernels_on(tape_device(tape), TENSOR_REAL)->product(tape_precision(tape), out, a, b, size);
}

Operand operand_of_parameter(const Node *node, Tensor *parameter, Tensor **copy)
{
    const TensorType type = node->outputs[0]->type;
    if (!parameter || type == parameter->type)
        return (Operand){ parameter ? parameter->data : NULL, type };
    const Real *shared = parameter->bf16_copy ? parameter->bf16_copy(parameter, false) : NULL;
    if (shared || *copy)
        return (Operand){ shared ? shared : (*copy)->data, type };
    *copy = tape_tensor_of(node->tape, type, parameter->shape);
    op_convert((*copy)->device, (Gradient){ (*copy)->data, false }, parameter->data, true,
               tensor_count(parameter));
    return (Operand){ (*copy)->data, type };
}

void op_contribute_product(Node *node, Tensor *input, Operand a, Operand b, Product size)
{
    const Gradient gradient = tape_contribution(node, input);
    if (gradient.data)
        op_product(node->tape, result_for(gradient, input), a, b, size);
}
