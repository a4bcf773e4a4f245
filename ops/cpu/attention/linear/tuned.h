/* The sizes at which FORM_BEST chooses a form of causal linear attention on the CPU. `make tune`
 * prints the rows, from the time of a forward and a backward pass, quadratic and chunk with one
 * thread. These are from 2 threads and vectors of 512 bits. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_TUNED_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_TUNED_CPU_H

#include <stdint.h>

typedef struct Tuned {
    int columns;      /* the row is for D and M up to this; the last one also for larger ones */
    int quadratic;    /* the quadratic form up to this length */
    int chunk;        /* positions per chunk of the chunked form */
    int min_parallel; /* the chunk-parallel form from this length on, if there are fewer heads than
                       * threads */
} Tuned;

static inline Tuned tuned_for(int64_t columns)
{
    static const Tuned rows[] = {
        { 16, 0, 16, 2048 },   { 32, 0, 16, 512 },     { 64, 32, 16, 128 },
        { 128, 128, 16, 512 }, { 256, 256, 16, 1024 },
    };
    int row = 0;
    while (row < (int)(sizeof rows / sizeof *rows) - 1 && rows[row].columns < columns)
        row++;
    return rows[row];
}

#endif
