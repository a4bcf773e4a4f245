/* Observing a tape: for a profiler or a tracer of one's own (ext/profile). Programs need none. */
#ifndef TAPEGRAD_AUTOGRAD_EXTEND_H
#define TAPEGRAD_AUTOGRAD_EXTEND_H

#include "autograd/tape.h"

#pragma GCC visibility push(default)

/* What happens on a tape while an observer is set. An operation checks its arguments, computes and
 * records, so its forward pass lies between the first TAPE_USES of its name and TAPE_RECORDS; one
 * that calls others has theirs in between. An operation that raises does not record; one without a
 * gradient records a node without inputs, which the tape does not keep. */
typedef enum TapeEvent {
    TAPE_USES,     /* an argument was checked: label, "op_add: a"; or tape_input, tape_backward */
    TAPE_RECORDS,  /* tape_record begins: node as it was passed, with its name */
    TAPE_BACKWARD, /* the backward pass reaches the node, and calls its function if an output has a
                    * gradient or the node is collective */
    TAPE_FREES,    /* tensors will be freed: the node's, whose backward function is done, or, if it
                    * is NULL, others */
    TAPE_RESETS,   /* tape_reset begins, before it frees; label: NULL, or "failed" after an error */
    TAPE_ENDS,     /* tape_free: the last event */
} TapeEvent;

/* The function calls no operation, and raises nothing without a label or a node. */
typedef struct TapeObserver {
    void (*event)(void *context, TapeEvent event, const char *label, const Node *node);
    void *context;
} TapeObserver;

/* Whether the tape has an observer. Raises, with the name `function`, when the tape is NULL or was
 * freed. */
bool tape_is_observed(const Tape *tape, const char *function);

/* Sets the tape's observer, which the caller keeps; NULL: none. While there is one, tape_replay
 * calls its function each time: a captured step would show no operations. */
void tape_observe(Tape *tape, TapeObserver *observer);

/* Visits the tensors that own storage now, and the gradients that do, the latest first. index: how
 * many tensors the step made before it, TapeMark's count; -1: of tape_persistent. */
typedef void TapeTensorFunction(void *context, const Tensor *tensor, int64_t index, bool gradient);
void tape_each_tensor(const Tape *tape, TapeTensorFunction *function, void *context);

#pragma GCC visibility pop
#endif
