/* Exercise 9.1. One head of causal linear attention: q, k [N][D], v, out [N][M]. Store
 *     out_i = sum_{j<=i} (phi(q_i).phi(k_j)) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps)
 * in out, in O(N) time: by a state that holds the sums over j. exercise.h has phi; D is at
 * most MAX_D, M at most MAX_M, and N may be 8000. q_i's element d is q[i * D + d]. Then, in the
 * folder exercises,
 *     name=linear_attention_forward
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. $name/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

void linear_attention_forward(Real *out, const Real *q, const Real *k, const Real *v, int N, int D,
                              int M, Real eps)
{
    /* your lines */
}
