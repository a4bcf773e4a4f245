/* Whether waking the threads of OpenMP is worth their work.
 *
 * OpenMP's threads wait actively: GNU's spins for about 3 ms at the end of a region. With fewer
 * free processors than threads, a region of 20 microseconds then takes 20 milliseconds: the waiting
 * thread occupies the processor that the other one needs. Hence a region runs on the calling thread
 * unless its work exceeds
 *   - MIN_WORK, some times the cost of a region on an idle machine whose threads still spin, and
 *   - the cost of waking them now: the time of an empty region, measured again every INTERVAL, or
 *     so rarely that these regions take 1 / SHARE of the time. It is 1 to 50 microseconds on an
 *     idle machine, about 20 000 on a busy one.
 *
 * The measurement decides who computes, never what: kernels split work by device_threads() and
 * the sizes alone, so the bits of a result do not depend on it. A region has all threads or one,
 * because GNU's OpenMP ends and restarts threads where a team's size changes. */
#include "tensor/device.h"

#ifdef TAPEGRAD_CPU_LINUX

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define SHARE 20
#define INTERVAL 1e7 /* nanoseconds */
#define SLOW 2e5     /* nanoseconds: no idle machine takes as long to wake a team */

/* OpenMP has a team per calling thread. */
static _Thread_local struct {
    double cost;   /* of waking the team, when it was last measured */
    double next;   /* when to measure again */
    bool disabled; /* the team stayed in the parent process */
} own_team;

/* ------------------------------------------------------------------------------ small regions */
static double nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Of two regions the faster, if the first is slow: an interrupt is not a busy machine. */
static void measure(int threads, double now)
{
    atomic_int arrived = 0;
    double spent = 0;
    for (int i = 0; i < 2 && (i == 0 || own_team.cost > SLOW); i++) {
        const double begin = now + spent;
#pragma omp parallel num_threads(threads)
        atomic_fetch_add_explicit(&arrived, 1, memory_order_relaxed);
        const double cost = nanoseconds() - begin;
        own_team.cost = i == 0 || cost < own_team.cost ? cost : own_team.cost;
        spent += cost;
    }
    own_team.next = now + spent + (SHARE * spent > INTERVAL ? SHARE * spent : INTERVAL);
}

bool threads_are_worth(double work, int threads)
{
    if (own_team.disabled)
        return false;
    const double now = nanoseconds();
    if (now >= own_team.next)
        measure(threads, now);
    return work >= own_team.cost;
}

/* ---------------------------------------------------------------------------------- preparation */

/* The team's threads do not exist in a child process: GNU's OpenMP would wait for them for ever. */
static void disable_team_after_fork(void)
{
    own_team.disabled = true;
}

static void prepare(void)
{
    pthread_atfork(NULL, NULL, disable_team_after_fork);
    if (device_threads() > 1)
        measure(device_threads(), nanoseconds());
    own_team.next = 0; /* starting the threads costs more than waking them */
    cpu_prepare_products();
}

void threads_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
}
#endif
