/* Exercise 9.2. One head of causal linear attention: q, k [N][D], v, out, g = dL/dout [N][M] and
 * den [N] are given, where
 *     den_i = sum_{j<=i} phi(q_i).phi(k_j) + eps
 *     out_i = sum_{j<=i} (phi(q_i).phi(k_j)) v_j / den_i
 * Contribute dL/dk to dk, in O(N) time: gradient_add(dk, i, value) adds value to element i. D is at
 * most MAX_D, M at most MAX_M, and N may be 8000. exercise.h has phi. Then, in the folder
 * exercises,
 *     name=linear_attention_dkey
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. $name/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void linear_attention_dkey(Gradient dk, const Real *q, const Real *k, const Real *v, const Real *g,
                           const Real *out, const Real *den, int N, int D, int M)
{
    /* your lines */
}
