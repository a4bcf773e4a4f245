/* By which sizes causal linear attention chooses its form on the CPU (FORM_BEST), and the chunk of
 * the chunked form. Written by `make tune` (bench/tune.c), which times forward and backward pass in
 * each form, the first two with one thread: cpu, 2 threads, vectors of 512 bits. */
#ifndef TAPEGRAD_OPS_TUNED_H
#define TAPEGRAD_OPS_TUNED_H

typedef struct TunedSizes {
    int columns;           /* for queries, keys and values of at most so many elements: */
    int longest_quadratic; /* sequences up to here are summed without state; */
    int chunk;             /* positions in a chunk; */
    int shortest_parallel; /* from here on threads share a head, when there are more of them */
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
