/* Prefetching rows of the next chunk while one is scanned. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_PREFETCH_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_PREFETCH_CPU_H

#include "ops/cpu/shared/packing.h"

/* Cache lines to prefetch; in row i, line n is at line[n].first + i line[n].stride, in bytes. The
 * hardware prefetcher misses widely strided rows, and a core has few loads in flight: so a scan
 * prefetches lines one by one, at most MAX_LINES per row. */
enum { MAX_LINES = 64 };
typedef struct Prefetch {
    int64_t count;
    struct {
        const char *first;
        int64_t stride;
    } line[MAX_LINES];
} Prefetch;

/* Adds the rows that follow these: those of the next chunk. */
ALWAYS_INLINE void prefetch_after(Prefetch *next, Rows rows)
{
    const int64_t element = (int64_t)element_bytes(rows.type), stride = rows.stride * element;
    const char *first = (const char *)rows.data + rows.count * stride;
    for (int64_t i = 0; i < rows.columns * element && next->count < MAX_LINES; i += LINE_BYTES) {
        next->line[next->count].first = first + i;
        next->line[next->count++].stride = stride;
    }
}

/* Prefetches lines [begin, end) of row i into L2. */
ALWAYS_INLINE void prefetch_lines(const Prefetch *next, int64_t begin, int64_t end, int64_t i)
{
    for (int64_t n = begin; n < end; n++)
        __builtin_prefetch(next->line[n].first + i * next->line[n].stride, 0, 2);
}

/* Prefetches all lines of `count` rows at once, and empties the list. */
static void prefetch_now(Prefetch *next, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        prefetch_lines(next, 0, next->count, i);
    next->count = 0;
}

#endif
