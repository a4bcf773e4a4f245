/* distributed/: several processes, ranks 0 ... ranks - 1, train one model. Three lines make a
 * program parallel, which mpirun then starts several times:
 *     dist_start();              // first
 *     dist_optimizer(optimizer); // after its optim_... function
 *     dist_finish();             // last
 * Each rank computes the gradients of its own data. params_clip_gradients or optim_step averages
 * them, each rank steps its own range of the weights and gathers the others' (ZeRO-1, Rajbhandari
 * et al. 2020): an all-reduce moves the same number of bytes, and the optimizer's state takes
 * 1 / ranks of the memory, but at least the largest weight's.
 *
 * "Collective" functions wait for all ranks: all must call them in the same order. With such an
 * optimizer optim_step, optim_save, optim_load, params_clip_gradients, params_clip_each_gradient
 * and optim_set_training (schedule-free) are collective. Dropout and
 * sampling draw other numbers on each rank. A program that mpirun has not started is rank 0 of 1
 * and unchanged. One thread per process calls these functions. An error ends all processes. */
#ifndef TAPEGRAD_DISTRIBUTED_H
#define TAPEGRAD_DISTRIBUTED_H

#include "optim/optim.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Joins the processes that mpirun has started, by MPI. The device "cuda" of the k-th rank of a
 * machine, from 0, is its GPU k % (number of GPUs). Weights and gradients on GPUs are exchanged by
 * NCCL if libtapegrad_mpi was built with it: then each rank needs a GPU of its own, and ranks that
 * share one raise an error. Without NCCL, or with TAPEGRAD_NCCL=no in the environment, they are
 * exchanged through host memory. Where a handler of tapegrad_on_error returns or is not set, an
 * error is printed as "rank 2 of 4: ..." and ends all processes. Raises if mpirun has started the
 * program and it was linked without MPI (libtapegrad_mpi) or with another MPI than mpirun's, and
 * when the ranks differ in version or Real. Collective. */
void dist_start(void);
/* Waits for all ranks, and leaves them. Collective. */
void dist_finish(void);
/* Ends all processes at once with this exit status, which is not 0; rank 0 of 1 exits. */
void dist_abort(int status) __attribute__((noreturn));
/* Call it before an error is printed that all ranks may have, as when their weights differ: rank 0
 * goes on, prints it and calls dist_abort; the other ranks wait two seconds for that. */
void dist_wait_for_abort(void);

int dist_rank(void);  /* 0 ... dist_ranks() - 1 */
int dist_ranks(void); /* 1 before dist_start */
/* How many processes mpirun, or Slurm's srun, has started together, by its environment variables.
 * 0: this process was not started by them; -1: unknown. */
int dist_launched(void);

/* This rank's part of count items: [first, first + count) of the result. The parts of all ranks are
 * consecutive, and their counts differ by at most 1. */
typedef struct DistPart {
    int64_t first, count;
} DistPart;
DistPart dist_part(int64_t count);

/* Divides the optimizer's state and steps among the ranks, at boundaries of weights, and copies
 * rank 0's weights to all. Call it after params_load, and before optim_load and the first step. A
 * checkpoint does not depend on the number of ranks: rank 0 writes it, all ranks read it. Without
 * effect for one rank.
 * Raises when the ranks differ in the kind of the optimizer or of the device, or in names, shapes
 * or seed of the weights; when memory is exhausted; and after steps. Collective. */
void dist_optimizer(Optimizer *optimizer);

/* The weight w of this rank's gradients in their mean, sum_r w_r g_r / sum_r w_r, from the next
 * step on: for losses that are means of w tokens. w >= 0, 1 at first, the same unit on all ranks. A
 * rank without gradients has weight 0. Raises before dist_optimizer. */
void dist_set_weight(Params *params, double weight);

/* values [count] = their sums over the ranks, in the order of ranks: the same bits on all.
 * Collective. */
void dist_sum(double *values, int count);
/* Whether here is true on any rank: for decisions that all ranks must take together, such as to
 * stop. Collective. */
bool dist_any(bool here);

/* Raises unless all ranks pass the same bytes: "the WHAT of ranks 0 and 2 differ, ...". For
 * options: ranks with different ones would wait for each other for ever. Collective. */
void dist_need_equal(const char *what, const void *data, size_t bytes);

/* ------------------------------------------------------------------------------ long sequences
 * Sequence parallelism of linear attention and the delta rule: each rank has some consecutive
 * positions of a sequence, in the order of ranks, and only states cross the boundaries. */

/* From now on every `ranks` consecutive ranks are a group, which shares sequences; 1: no rank
 * shares. Gradients are still averaged over all ranks. They cross ranks before they are weighted,
 * so the ranks of a group have the same weight, however many positions each has. For the mean over
 * the n positions of a group, multiply each position's loss by ranks / n, and set dist_set_weight
 * to n. Raises unless ranks divides dist_ranks(). Collective; not between a forward pass and its
 * backward pass. */
void dist_sequence(int ranks);
int dist_sequence_rank(void);  /* 0 ... dist_sequence_ranks() - 1 */
int dist_sequence_ranks(void); /* 1 before dist_sequence */

/* before_r = A_{r-1} before_{r-1} + state_{r-1}, before_0 = 0, over the sequence's ranks: the state
 * before this rank's positions. state [B, H, D, C], Real, of the same shape on all ranks: after
 * this rank's positions, from a zero state (op_causal_linear_state). transition, Real, gives A, by
 * which they multiply a state before them:
 *     NULL              A = 1
 *     d [B, H]          A = e^d, d the sum of their log decays
 *     A [B, H, D, D]    the state after them from the identity, all values 0: of the delta rule,
 *                       and of gated linear attention, whose A is diagonal
 * Returns a tensor of the tape, shaped like state. A layer takes this function as
 * AttentionOptions.states_before. A rank without positions passes the state 0 with d = 0 or with
 * the identity as A; a layer has at least one position, which may be padding after the last one.
 *
 * Collective, and so is tape_backward on a tape that has recorded it, even if no loss depends on
 * it: all ranks of the sequence call these in the same order. The forward pass exchanges the states
 * and transitions of all ranks at once, the backward pass the states' gradients, through host
 * memory. Saves all transitions. Raises while a CUDA graph is captured. */
Tensor *dist_states_before(Tape *tape, Tensor *state, Tensor *transition);

/* Bytes that this rank has sent since dist_start, as a ring would send them, and the calls. */
typedef struct DistTraffic {
    int64_t bytes, calls;
} DistTraffic;
DistTraffic dist_traffic(void);

/* ---------------------------------------------------------------------------------- transports
 * What moves the bytes; dist_start uses MPI. buffer is host memory, and offsets [ranks + 1]
 * ascends from 0: rank r has buffer[offsets[r]] ... buffer[offsets[r + 1] - 1]. */
typedef struct DistTransport {
    int rank, ranks;
    int local; /* the rank among its machine's ranks */
    void *context;
    /* buffer = the parts of all ranks; offsets in bytes. */
    void (*all_gather)(void *context, void *buffer, const int64_t *offsets);
    /* The same for rank 0's buffer alone. */
    void (*gather)(void *context, void *buffer, const int64_t *offsets);
    /* This rank's part of buffer = the sum of all ranks' buffers; the rest becomes undefined.
     * offsets in elements. */
    void (*reduce_scatter)(void *context, Real *buffer, const int64_t *offsets);
    /* all_gather and reduce_scatter for memory of the CUDA device `device`, CUDA's current one,
     * enqueued on its stream, a cudaStream_t. NULL: such memory is copied to the host and back. */
    void (*device_all_gather)(void *context, int device, void *stream, void *buffer,
                              const int64_t *offsets);
    void (*device_reduce_scatter)(void *context, int device, void *stream, Real *buffer,
                                  const int64_t *offsets);
    /* NULL, or called by dist_optimizer with the threads of this rank's CPU kernels: may report
     * that the ranks have more threads than processors. */
    void (*ready)(void *context, int threads);
    /* Frees the context: after a wait for all ranks, if status is 0; else it ends all processes
     * with this exit status. */
    void (*end)(void *context, int status);
    /* Returns a transport among this rank's group of `ranks` consecutive ranks, a divisor of all.
     * Only its all_gather and end are used. Collective. */
    struct DistTransport (*split)(void *context, int ranks);
} DistTransport;

/* dist_start with another transport. A thread may be a rank: each thread has a transport of its
 * own. */
void dist_start_with(DistTransport transport);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
