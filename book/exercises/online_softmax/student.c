/* Exercise 8.1. The scores of a row come in tiles. Of the keys before this tile, *m is the largest
 * score, *l the sum of e^(s_j - *m), and o [M] the sum of e^(s_j - *m) v_j; before the first tile
 * they are -INFINITY, 0 and 0. Add the tile: its scores s [T] and its values v [T, M], row-major,
 * so that v_jc is v[j * M + c]. A score of -INFINITY excludes its key, and a tile may have no other
 * scores. The caller divides o by l after the last tile. In the grader's answer m[1] is m after
 * tile 1, and o[1][2] is o[2] after it; tile 0 is the first. Then, in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. online_softmax/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void online_softmax(Real *m, Real *l, Real *o, const Real *s, const Real *v, int T, int M)
{
    /* your lines */
}
