/* The collective functions of CUDA devices, by NCCL. */
#ifndef TAPEGRAD_DISTRIBUTED_NCCL_H
#define TAPEGRAD_DISTRIBUTED_NCCL_H

#include "distributed/distributed.h"

#include <nccl.h>

typedef struct NcclRanks {
    int rank, ranks;
    /* id = rank 0's, for a communicator on this rank's device; it ends all ranks if several use one
     * GPU. Collective. */
    void (*share)(ncclUniqueId *id, int device);
    ncclComm_t communicator; /* NULL before the first exchange */
    int device;              /* the communicator's */
} NcclRanks;

/* DistTransport's functions, whose context is a NcclRanks. */
void nccl_all_gather(void *context, int device, void *stream, void *buffer, const int64_t *offsets);
void nccl_reduce_scatter(void *context, int device, void *stream, Real *buffer,
                         const int64_t *offsets);

/* Frees the communicator: after its work, if status is 0; at once otherwise. */
void nccl_end(NcclRanks *own, int status);

#endif
