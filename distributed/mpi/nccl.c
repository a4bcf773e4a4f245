/* The collective functions of CUDA devices, by NCCL, which enqueues them on the device's stream:
 * kernels before them have finished when they run, and kernels after them wait. NCCL divides
 * buffers evenly only, so a gather of uneven parts is a broadcast by each rank, and a
 * reduce-scatter a reduction to each, in one group, which NCCL runs at once.
 *
 * The communicator is made at the first exchange, on the device of the weights. */
#include "distributed/mpi/nccl.h"

#include <stdio.h>
#include <stdlib.h>

static void check_nccl(const NcclRanks *own, ncclResult_t result, const char *call)
{
    if (result == ncclSuccess)
        return;
    const char *details = ncclGetLastError(own->communicator);
    const bool has = details && *details;
    fflush(stdout);
    fprintf(stderr, "rank %d of %d: %s: %s%s%s\n", own->rank, own->ranks, call,
            ncclGetErrorString(result), has ? ": " : "", has ? details : "");
    dist_abort(EXIT_FAILURE);
}

static void begin_group(NcclRanks *own, int device)
{
    if (!own->communicator) {
        ncclUniqueId id;
        if (own->rank == 0)
            check_nccl(own, ncclGetUniqueId(&id), "ncclGetUniqueId");
        own->share(&id, device);
        own->device = device;
        check_nccl(own, ncclCommInitRank(&own->communicator, own->ranks, id, own->rank),
                   "ncclCommInitRank");
    }
    if (own->device != device) {
        fprintf(stderr,
                "rank %d of %d: the weights are on cuda:%d, earlier ones on cuda:%d; "
                "expected one GPU per rank\n",
                own->rank, own->ranks, device, own->device);
        dist_abort(EXIT_FAILURE);
    }
    check_nccl(own, ncclGroupStart(), "ncclGroupStart");
}

/* Errors of other ranks and of the network come later: the next exchange reports them. */
static void end_group(const NcclRanks *own)
{
    ncclResult_t later;
    check_nccl(own, ncclGroupEnd(), "ncclGroupEnd");
    check_nccl(own, ncclCommGetAsyncError(own->communicator, &later), "ncclCommGetAsyncError");
    check_nccl(own, later, "an earlier NCCL call");
}

void nccl_all_gather(void *context, int device, void *stream, void *buffer, const int64_t *offsets)
{
    NcclRanks *own = context;
    begin_group(own, device);
    for (int r = 0; r < own->ranks; r++) {
        char *part = (char *)buffer + offsets[r];
        const size_t bytes = (size_t)(offsets[r + 1] - offsets[r]);
        if (bytes > 0)
            check_nccl(own,
                       ncclBroadcast(part, part, bytes, ncclChar, r, own->communicator, stream),
                       "ncclBroadcast");
    }
    end_group(own);
}

void nccl_reduce_scatter(void *context, int device, void *stream, Real *buffer,
                         const int64_t *offsets)
{
    NcclRanks *own = context;
    const ncclDataType_t type = sizeof(Real) == sizeof(double) ? ncclDouble : ncclFloat;
    begin_group(own, device);
    for (int r = 0; r < own->ranks; r++) {
        Real *part = buffer + offsets[r];
        const size_t count = (size_t)(offsets[r + 1] - offsets[r]);
        if (count > 0)
            check_nccl(own,
                       ncclReduce(part, part, count, type, ncclSum, r, own->communicator, stream),
                       "ncclReduce");
    }
    end_group(own);
}

void nccl_end(NcclRanks *own, int status)
{
    ncclComm_t communicator = own->communicator;
    own->communicator = NULL;
    if (communicator && status)
        ncclCommAbort(communicator);
    else if (communicator)
        ncclCommDestroy(communicator); /* an error, as after CUDA's end at exit, loses nothing */
}
