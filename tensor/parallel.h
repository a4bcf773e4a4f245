/* Loops over independent elements on all CPU threads. */
#ifndef TAPEGRAD_TENSOR_PARALLEL_H
#define TAPEGRAD_TENSOR_PARALLEL_H

#include <stdint.h>

/* Below this many elements, waking the other threads costs more than the loop. */
enum { PARALLEL_MINIMUM = 1 << 14 };

/* for (int64_t i = 0; i < n; i++), split over the threads and vectorized. */
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#define PARALLEL_FOR(i, n)                                                                         \
    PRAGMA(omp parallel for simd schedule(static) if ((n) >= PARALLEL_MINIMUM))                    \
    for (int64_t i = 0; i < (n); i++)

#endif
