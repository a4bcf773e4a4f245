/* Where a step's time and memory go, by operation:
 *
 *     TapeProfile *profile = tape_profile_begin(tape);
 *     ... one step, or several ...
 *     tape_profile_end(profile);
 *     tape_profile_print(profile, stdout);
 *     tape_profile_free(profile);
 *
 * Time. An operation's forward pass is counted from its first check of an argument (tape_use, with
 * a label that begins with the operation's name, "op_add: a") to tape_record, its backward pass
 * while its backward function runs. An operation made of others (op_variance, nn_attention) counts
 * as these. Where one operation runs within another, as op_cast in op_sample, each has the time
 * that it spends itself, so the times of all rows and outside_ms add up to milliseconds. Counted
 * too: operations while the tape does not record, and both runs of a function of tape_recompute,
 * whose own row has what its backward pass spends beside them. Not counted: an operation that
 * raises, or that has nothing to do and returns its argument; the kinds of nn_transformer_step,
 * which use no tape. outside_ms is everything else: the program, tape_input, optim_step, the
 * profile itself, a few hundred nanoseconds per operation. tape_profile_enter and _leave give parts
 * of it rows of their own.
 *
 * On the CPU times are of the wall clock. On CUDA, where kernels run after the call that launches
 * them, they lie between events on the device's stream: the operation's kernels, and the time for
 * which the GPU waits in it for the host. tape_replay then calls its step each time, so that there
 * are operations to see: a captured step, which launches its kernels at once, may be faster.
 *
 * Memory. result_bytes are of the tensors that the operation returned, as the tape allocated them,
 * and 0 for a reshape; saved_bytes those that it keeps for its backward pass alone. peak_bytes is
 * the most that was allocated from the device during the profile, by all tapes, weights, optimizers
 * and workspaces: DeviceMemory.peak, which tape_profile_begin resets. The tensors of this tape that
 * were alive then are listed by the operation that made them. They are those at the end of the
 * operation that reached the peak, before it freed anything. Sizes at the peak are the pool's, up
 * to an eighth larger than the elements. */
#ifndef TAPEGRAD_PROFILE_H
#define TAPEGRAD_PROFILE_H

#include "autograd/tape.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* An operation, or a section of the program. */
typedef struct ProfileOperation {
    char name[48];
    bool section;
    int64_t calls, backward_calls;
    double forward_ms, backward_ms; /* of a section: forward_ms */
    int64_t result_bytes, saved_bytes;
} ProfileOperation;

/* Tensors alike that were alive at the peak, or, if gradient, their gradients. */
typedef struct ProfileTensors {
    const char *operation; /* that made the tensors, or "tape_input", ...; "": the program */
    bool gradient;
    TensorType type;
    Shape shape;
    int64_t count, bytes; /* of all together */
} ProfileTensors;

/* The fields are valid after tape_profile_end, until tape_profile_free. */
typedef struct TapeProfile {
    double milliseconds, outside_ms;
    const ProfileOperation *operations; /* by time, the longest first */
    int operation_count;
    int64_t peak_bytes, live_bytes; /* live_bytes of them are the tape's tensors: */
    const ProfileTensors *tensors;  /* by bytes, the largest first */
    int tensor_count;
    const char *peak_operation; /* that reached the peak; "": none, as an optimizer's step */
    bool peak_backward;
} TapeProfile;

/* Begins to profile the tape. Raises when the tape has a profile already, was freed, or captures a
 * step, and when memory is exhausted. After an error in a step and tape_reset the profile goes on;
 * the operation that raised is not counted. */
TapeProfile *tape_profile_begin(Tape *tape);

/* Ends it; waits for the device. Raises when the profile is NULL or has ended, and when the tape
 * was freed before. */
void tape_profile_end(TapeProfile *profile);

/* Prints a table of at most 100 columns. Raises unless the profile has ended. */
void tape_profile_print(const TapeProfile *profile, FILE *file);

/* The same as text: writes at most size bytes, the last one 0, and returns the length of the whole
 * text, as snprintf. */
size_t tape_profile_text(const TapeProfile *profile, char *text, size_t size);

/* Accepts NULL. Ends the profile first if need be. */
void tape_profile_free(TapeProfile *profile);

/* The program's own time between enter and leave, without the operations in it, has a row of this
 * name, such as "optim_step". Sections may nest; each has the time that it spends itself. Both do
 * nothing when the profile is NULL or has ended. tape_profile_leave raises outside of a section; an
 * error and tape_reset leave all. */
void tape_profile_enter(TapeProfile *profile, const char *name);
void tape_profile_leave(TapeProfile *profile);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
