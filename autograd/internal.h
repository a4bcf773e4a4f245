/* The tape's structures, for the files of autograd/. */
#ifndef TAPEGRAD_AUTOGRAD_INTERNAL_H
#define TAPEGRAD_AUTOGRAD_INTERNAL_H

#include "autograd/extend.h"

#include "tensor/internal.h"

/* A tensor of the tape and its gradient: of a step, in the arena, or persistent. */
typedef struct TapeTensor {
    Tensor tensor;
    Tensor gradient;
    int64_t position; /* of a step's tensor: how many were made before it */
    struct TapeTensor *previous;
} TapeTensor;

typedef struct Overwritten Overwritten; /* overwrite.c */

/* A chunk of the arena; reset empties the chunks and keeps them for the next step. */
typedef struct Chunk {
    struct Chunk *next;
    size_t size, used;
    _Alignas(max_align_t) char bytes[];
} Chunk;

/* The rank of this thread's process among several (distributed/): each draws from streams of its
 * own. */
extern _Thread_local uint64_t tape_rank;

/* The step of tape_replay. */
typedef struct Replay {
    TapeStep *step; /* NULL: none */
    void *context;
    Capture *capture;    /* the captured step, or NULL */
    bool running;        /* the function is running, */
    bool capturing;      /* and its kernels are captured */
    Random before;       /* the generator when it was called */
    int64_t draws;       /* Philox counters that each step uses */
    Block *random_start; /* device memory: the first counter of the step */
} Replay;

/* The functions of tape_recompute. */
typedef struct Recompute {
    int runs;                               /* nested ones; before the first: */
    bool recording_before, training_before; /* the settings of the tape */
    bool again;                             /* such a function runs again */
    bool required; /* an input of an operation in its first run required a gradient */
} Recompute;

struct Tape {
    Device *device;
    Precision precision;
    bool recording;
    bool training;
    bool checks_finite;
    bool fills_gradients; /* with NaN before the first contribution: gradient_check */
    bool warned;          /* of SUSPICIOUS_NODES */
    bool freed;           /* under TAPEGRAD_DEBUG=1, where the struct stays */
    Tape *next_freed;
    bool backward_started; /* since the last reset */
    ErrorContext errors;   /* whether one was raised since the last reset */
    Random random;         /* the generator, */
    Random step_start;     /* and its state at the last reset */
    TapeTensor *last_tensor, *last_persistent;
    Overwritten *last_overwritten;
    int64_t tensor_count;
    Node *last_node;
    int64_t node_count;
    Chunk *chunks, **current; /* the link to the first chunk that may have space */
    Chunk *previous_chunks;   /* of the last guarded step */
    int64_t guarded;          /* steps whose handles the next step does not reuse */
    Replay replay;
    Recompute recompute;
    TapeObserver *observer; /* or NULL */
};

/* arena.c: memory until the next reset; raises when it is exhausted. */
void *arena_allocate(Tape *tape, size_t bytes);
void arena_reset(Tape *tape);
/* Frees the arena and the tape; with TAPEGRAD_DEBUG=1 the struct stays, as freed: then
 * tape_check_not_freed raises "op_add: the tape cannot be used after tape_free". */
void arena_free(Tape *tape);
void tape_check_not_freed(const Tape *tape, const char *label);

/* Raises "op_add: the tape is NULL" for the labels "op_add" and "op_add: a"; else the tape's errors
 * are this thread's from here on, and the label names the operation. */
void tape_check(Tape *tape, const char *label);

/* Calls the tape's observer, if it has one. */
static inline void tape_notify(Tape *tape, TapeEvent event, const char *label, const Node *node)
{
    if (tape->observer)
        tape->observer->event(tape->observer->context, event, label, node);
}

/* Raises unless the tensor can be used on this tape as this dtype. */
void tape_check_tensor(Tape *tape, const char *label, Tensor *tensor, TensorType type);

/* Raise if a value is not finite: an input or output of the node; a gradient of its inputs. */
void tape_check_forward_finite(Tape *tape, const Node *node);
void tape_check_backward_finite(Tape *tape, const Node *node);

/* The storage of a tensor, from the device's pool; and, with tape_free_tensor, its gradient's. A
 * view owns none. */
void tape_allocate_storage(Tape *tape, Tensor *tensor);
void tape_free_storage(Tensor *tensor);
void tape_free_tensor(Tensor *tensor);

/* A failed backward pass leaves complete or partial contributions in some parameters' gradients;
 * the repeated step computes them again. */
void tape_clear_gradients(Tape *tape);

/* Frees the copies of tape_will_overwrite; with restore, writes them back before. */
void tape_end_overwritten(Tape *tape, bool restore);

/* Records the node, whatever its inputs. */
void tape_append(Tape *tape, Node node);
/* The backward functions of the nodes after stop, in reverse order. */
void tape_visit(Tape *tape, const Node *stop);
/* Frees the tensors from position first on, except spared, which may be NULL. */
void tape_free_since(Tape *tape, int64_t first, Tensor *spared);
/* After an error in a function of tape_recompute: restores the settings of the tape. */
void tape_end_recomputing(Tape *tape);

/* Ends a step of tape_replay and its capture; raises while its function is running, unless an error
 * ended the step. */
void tape_end_step(Tape *tape);
void tape_call_step(Tape *tape);
void tape_capture_step(Tape *tape); /* autograd/cuda/capture.c */

/* Raises "op_add: memory is exhausted: ...", for the thread's operation. */
void tape_raise_exhausted(Tape *tape, size_t bytes) __attribute__((noreturn));

static inline bool tensor_requires_grad(const Tensor *tensor)
{
    return tensor && tensor_root(tensor)->requires_grad;
}

static inline int node_input_count(const Node *node)
{
    return NODE_INPUTS + node->more_count;
}

static inline Tensor *node_input(const Node *node, int i)
{
    return i < NODE_INPUTS ? node->inputs[i] : node->more_inputs[i - NODE_INPUTS];
}

#endif
