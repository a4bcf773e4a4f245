/* The sizes by which FORM_BEST chooses the form of causal linear attention on the CPU.
 * Written by `make tune` (bench/tune.c), which times forward and backward pass in each
 * form, the first two with one thread: cpu, 2 threads, vectors of 512 bits. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_TUNED_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_TUNED_H

typedef struct TunedSizes {
    int columns;           /* the row holds up to this size of queries, keys and values */
    int longest_quadratic; /* maximum length of the quadratic form */
    int chunk;             /* positions per chunk */
    int shortest_parallel; /* minimum length for threads to share a head, if there are
                            * more threads than heads */
} TunedSizes;

/* clang-format off */
static const TunedSizes tuned_sizes[] = {
    { 16, 0, 16, 2048 },
    { 32, 0, 16, 512 },
    { 64, 32, 16, 128 },
    { 128, 128, 16, 512 },
    { 256, 256, 16, 1024 },
};
/* clang-format on */

#endif
