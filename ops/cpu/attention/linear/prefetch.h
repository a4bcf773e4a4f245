/* Prefetching rows of the next chunk while one is scanned. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_PREFETCH_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_PREFETCH_CPU_H

#include "ops/cpu/shared/tiles.h"

/* Cache lines to prefetch; in row i, line n is at first[n] + i step[n], step in bytes. The hardware
 * prefetcher misses widely strided rows, and a core has few loads in flight: so lines are
 * prefetched one by one during the scan, at most MOST_LINES per row. */
enum { MOST_LINES = 64 };
typedef struct Prefetch {
    int64_t count;
    const char *first[MOST_LINES];
    int64_t step[MOST_LINES];
} Prefetch;

/* Prefetches lines [begin, end) of row i into L2. */
ALWAYS_INLINE void prefetch_lines(const Prefetch *next, int64_t begin, int64_t end, int64_t i)
{
    for (int64_t n = begin; n < end; n++)
        __builtin_prefetch(next->first[n] + i * next->step[n], 0, 2);
}

#endif
