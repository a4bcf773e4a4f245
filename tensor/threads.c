/* The number of threads of the loops that kernels divide. */
#include "tensor/internal.h"

#include <math.h>

static _Atomic int thread_count; /* 0: OpenMP's default */
static _Atomic bool forced;

void device_set_threads(int count)
{
    if (count < 1)
        error_raise("device_set_threads: count is %d, expected at least 1", count);
    thread_count = count;
}

int device_threads(void)
{
    const int count = thread_count;
    return count ? count : omp_get_max_threads();
}

void device_force_threads(bool on)
{
    forced = on;
}

#ifndef TAPEGRAD_CPU_LINUX /* the CPU backend measures: tensor/cpu/threads.c */
bool threads_are_worth(double work, int threads)
{
    (void)threads;
    return work >= MIN_WORK;
}

void threads_prepare(void) {}
#endif

int device_threads_for(int64_t count, double cost)
{
    const double work = forced ? (double)INFINITY : (double)count * cost;
    if (work < MIN_WORK || omp_in_parallel())
        return 1;
    const int threads = device_threads();
    return threads > 1 && threads_are_worth(work, threads) ? threads : 1;
}
