/* Exercise 10.2. One head: q, k [N][D], v [N][M], log decays l [N], and g [N][M] = dL/dout of
 *     S_i = e^(l_i) S_{i-1} + k_i v_i^T      out_i = S_i^T q_i
 * from the state 0. Store dL/dl_i in dl [N], by any formula of the chapter. exercise.h has dot,
 * add_outer_product and the largest sizes; q_i begins at q + i * D. Then, in the folder exercises,
 *     name=decay_gradient
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. $name/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void decay_gradient(Real *dl, const Real *q, const Real *k, const Real *v, const Real *g,
                    const Real *l, int N, int D, int M)
{
    /* your lines */
}
