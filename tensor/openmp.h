/* OpenMP, or its functions on one thread where the compiler lacks it. */
#ifndef TAPEGRAD_TENSOR_OPENMP_H
#define TAPEGRAD_TENSOR_OPENMP_H

#ifdef _OPENMP
#include <omp.h>
#else
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#pragma GCC diagnostic ignored "-Wunused-parameter" /* of values that only num_threads uses */
#pragma GCC diagnostic ignored "-Wunused-variable"
static inline int omp_get_max_threads(void)
{
    return 1;
}
static inline int omp_get_num_threads(void)
{
    return 1;
}
static inline int omp_get_thread_num(void)
{
    return 0;
}
static inline int omp_in_parallel(void)
{
    return 0;
}
#endif

#endif
