/* The clocks of a profile: of the host, and of a CUDA device by events on its stream. */
#ifndef TAPEGRAD_PROFILE_KERNELS_H
#define TAPEGRAD_PROFILE_KERNELS_H

#include "extend.h"

typedef struct ProfileClock {
    void *(*open)(int count); /* count stamps; NULL: memory is exhausted */
    void (*close)(void *stamps);
    void (*stamp)(void *stamps, int i);           /* stamp i = now; waits for nothing */
    double (*elapsed)(const void *stamps, int i); /* milliseconds from stamp i to stamp i + 1 */
} ProfileClock;
extern const ProfileClock profile_clock_plain, profile_clock_cuda;

/* The device becomes the thread's current one. */
C_FUNCTION const ProfileClock *profile_clock(Device *device);

/* Milliseconds of the host's clock. */
C_FUNCTION double profile_now(void);

#endif
