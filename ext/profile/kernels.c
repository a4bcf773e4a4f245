/* The host's clock, and which clock serves a device. */
#include "ext/profile/kernels.h"

#include <stdlib.h>
#include <time.h>

#ifdef _WIN32 /* without windows.h, whose macros the one file would have, too */
__declspec(dllimport) int __stdcall QueryPerformanceCounter(int64_t *count);
__declspec(dllimport) int __stdcall QueryPerformanceFrequency(int64_t *count);

double profile_now(void)
{
    int64_t count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return 1e3 * (double)count / (double)frequency;
}
#else
double profile_now(void)
{
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC); /* C11's */
#endif
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}
#endif

static void *open_plain(int count)
{
    return memory_allocate((size_t)count * sizeof(double));
}

static void stamp_plain(void *stamps, int i)
{
    ((double *)stamps)[i] = profile_now();
}

static double elapsed_plain(const void *stamps, int i)
{
    const double *at = stamps;
    return at[i + 1] - at[i];
}

const ProfileClock profile_clock_plain = { open_plain, free, stamp_plain, elapsed_plain };

const ProfileClock *profile_clock(Device *device)
{
    static const ProfileClock *const clocks[KERNEL_TABLES] = {
        [KERNELS_PLAIN] = &profile_clock_plain,
#ifdef TAPEGRAD_CUDA
        [KERNELS_CUDA] = &profile_clock_cuda,
#endif
    };
    return KERNELS_FOR(clocks, device, TENSOR_REAL);
}
