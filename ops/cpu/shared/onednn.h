/* Calls of oneDNN, with signals blocked: some of its kernels point the stack register at a heap
 * workspace, and a signal handler's frame would overwrite the memory before it. Nor does it start
 * threads: after omp_set_num_threads(1), which lasts until the caller's parallel region ends, one
 * thread computes a part of a result. */
#ifndef TAPEGRAD_OPS_CPU_ONEDNN_H
#define TAPEGRAD_OPS_CPU_ONEDNN_H

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>

/* Returns the mask to restore. */
static inline sigset_t onednn_block_signals(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    return before;
}

static inline void onednn_restore_signals(sigset_t before)
{
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

#endif
