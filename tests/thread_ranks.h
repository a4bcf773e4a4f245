/* Ranks that are threads of this process: they copy from each other's memory. */
#ifndef TAPEGRAD_TESTS_THREAD_RANKS_H
#define TAPEGRAD_TESTS_THREAD_RANKS_H

#include <tapegrad.h>

/* Calls function(context) in `ranks` threads, between dist_start_with and dist_finish. */
void run_ranks(int ranks, void (*function)(void *context), void *context);

/* The same with a transport that prepare, or NULL, may change in each thread. */
void run_ranks_with(int ranks, void (*function)(void *context), void *context,
                    void (*prepare)(DistTransport *transport));

/* Fails unless that, in a process of its own, ends unsuccessfully with this text on standard
 * error. */
void assert_ranks_end(int ranks, void (*function)(void *context), void *context,
                      void (*prepare)(DistTransport *transport), const char *text);

/* This rank's device: one thread at a time may use a CUDA device, so the emulation has one per
 * rank, from make_rank_devices on, which comes before any device; the CPU where GPUs are real. */
void make_rank_devices(void);
Device *rank_device(void);

#endif
