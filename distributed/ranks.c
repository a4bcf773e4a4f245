/* The ranks of this thread: who they are, what they exchange, how they end. */
#include "distributed/internal.h"
#include "autograd/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local DistTransport ranks_transport = { .ranks = 1 };
static _Thread_local DistTraffic ranks_traffic;

int dist_rank(void)
{
    return ranks_transport.rank;
}

int dist_ranks(void)
{
    return ranks_transport.ranks;
}

DistTraffic dist_traffic(void)
{
    return ranks_traffic;
}

DistPart dist_part(int64_t count)
{
    if (count < 0)
        error_raise("dist_part: count is %lld, expected 0 or more", (long long)count);
    const int64_t rank = ranks_transport.rank, ranks = ranks_transport.ranks;
    const int64_t whole = count / ranks, rest = count % ranks; /* the first `rest` have one more */
    return (DistPart){ rank * whole + (rank < rest ? rank : rest), whole + (rank < rest) };
}

/* -------------------------------------------------------------------------------- start and end */

/* Many short waits, not a long one: where all processes halt for a second, as those of a virtual
 * machine may, one of them ends, and rank 0 has the others. */
void dist_wait_for_abort(void)
{
    for (int i = 0; i < 20 && ranks_transport.rank > 0; i++)
        usleep(100000);
}

static void print_and_abort(const char *sentence, void *context)
{
    (void)context;
    dist_wait_for_abort();
    fflush(stdout);
    fprintf(stderr, "rank %d of %d: %s\n", ranks_transport.rank, ranks_transport.ranks, sentence);
    dist_abort(EXIT_FAILURE);
}

void dist_start_with(DistTransport given)
{
    if (ranks_transport.end)
        error_raise("dist_start: it was called before; call dist_finish in between");
    if (given.ranks < 1 || given.ranks > DIST_MAX_RANKS || given.rank < 0 ||
        given.rank >= given.ranks)
        error_raise("dist_start: rank %d of %d, expected 0 to ranks - 1, of at most %d", given.rank,
                    given.ranks, DIST_MAX_RANKS);
    ranks_transport = given;
    tape_rank = (uint64_t)given.rank;
    if (given.local > 0)
        device_choose_gpu(given.local);
    if (given.ranks == 1)
        return;
    error_set_default(print_and_abort);
    const char own[] = TAPEGRAD_VERSION, real = sizeof(Real);
    dist_need_equal("versions of tapegrad", own, sizeof own);
    dist_need_equal("types of Real", &real, sizeof real);
    ranks_traffic = (DistTraffic){ 0 };
}

void dist_finish(void)
{
    dist_sequence(1);
    if (ranks_transport.end) /* one rank of MPI finalizes it too */
        ranks_transport.end(ranks_transport.context, 0);
    ranks_transport = (DistTransport){ .ranks = 1 };
    error_set_default(NULL);
    tape_rank = 0;
}

void dist_abort(int status)
{
    fflush(NULL);
    if (ranks_transport.end)
        ranks_transport.end(ranks_transport.context, status);
    exit(status);
}

int dist_launched(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE"); /* Open MPI's mpirun */
    if (!size)
        size = getenv("PMI_SIZE"); /* MPICH's, and Slurm's srun --mpi=pmi2 */
    if (!size && getenv("PMIX_RANK"))
        size = getenv("SLURM_STEP_NUM_TASKS"); /* srun --mpi=pmix */
    if (size)
        return atoi(size);
    return getenv("PMIX_RANK") || getenv("PMI_RANK") ? -1 : 0;
}

/* Replaced by the function of libtapegrad_mpi, if a program is linked with it. */
__attribute__((weak)) void dist_start(void)
{
    const int ranks = dist_launched();
    if (ranks > 1)
        error_raise("dist_start: mpirun has started %d processes, but the program was linked "
                    "without MPI; link libtapegrad_mpi before libtapegrad",
                    ranks);
}

/* ------------------------------------------------------------------------------------- exchange */
const DistTransport *dist_transport(void)
{
    return &ranks_transport;
}

static void count_traffic(const DistTransport *among, const int64_t *offsets, int64_t unit)
{
    const int r = among->rank;
    ranks_traffic.bytes += (offsets[among->ranks] - (offsets[r + 1] - offsets[r])) * unit;
    ranks_traffic.calls++;
}

static void all_gather_of(const DistTransport *among, void *buffer, const int64_t *offsets)
{
    if (among->ranks == 1)
        return;
    count_traffic(among, offsets, 1);
    among->all_gather(among->context, buffer, offsets);
}

void dist_all_gather(void *buffer, const int64_t *offsets)
{
    all_gather_of(&ranks_transport, buffer, offsets);
}

void dist_gather(void *buffer, const int64_t *offsets)
{
    if (ranks_transport.ranks == 1)
        return;
    ranks_traffic.bytes += ranks_transport.rank
                               ? offsets[ranks_transport.rank + 1] - offsets[ranks_transport.rank]
                               : 0;
    ranks_traffic.calls++;
    ranks_transport.gather(ranks_transport.context, buffer, offsets);
}

void dist_reduce_scatter(Real *buffer, const int64_t *offsets)
{
    if (ranks_transport.ranks == 1)
        return;
    count_traffic(&ranks_transport, offsets, sizeof(Real));
    ranks_transport.reduce_scatter(ranks_transport.context, buffer, offsets);
}

bool dist_all_gather_on(Device *device, void *buffer, const int64_t *offsets)
{
    if (!device_is_cuda(device) || !ranks_transport.device_all_gather)
        return false;
    count_traffic(&ranks_transport, offsets, 1);
    const DeviceStream on = device_stream(device);
    ranks_transport.device_all_gather(ranks_transport.context, on.index, on.stream, buffer,
                                      offsets);
    return true;
}

bool dist_reduce_scatter_on(Device *device, Real *buffer, const int64_t *offsets)
{
    if (!device_is_cuda(device) || !ranks_transport.device_reduce_scatter)
        return false;
    count_traffic(&ranks_transport, offsets, sizeof(Real));
    const DeviceStream on = device_stream(device);
    ranks_transport.device_reduce_scatter(ranks_transport.context, on.index, on.stream, buffer,
                                          offsets);
    return true;
}

void dist_all_gather_rows_of(const DistTransport *among, void *all, size_t bytes)
{
    int64_t offsets[DIST_MAX_RANKS + 1];
    for (int r = 0; r <= among->ranks; r++)
        offsets[r] = r * (int64_t)bytes;
    all_gather_of(among, all, offsets);
}

void dist_all_gather_rows(void *all, size_t bytes)
{
    dist_all_gather_rows_of(&ranks_transport, all, bytes);
}

void dist_sum(double *values, int n)
{
    if (ranks_transport.ranks == 1)
        return;
    const size_t bytes = (size_t)n * sizeof *values;
    double *all = memory_allocate((size_t)ranks_transport.ranks * bytes);
    if (!all)
        error_raise("dist_sum: memory is exhausted");
    memcpy(all + ranks_transport.rank * n, values, bytes);
    dist_all_gather_rows(all, bytes);
    memcpy(values, all, bytes);
    for (int r = 1; r < ranks_transport.ranks; r++)
        for (int i = 0; i < n; i++)
            values[i] += all[r * n + i];
    free(all);
}

bool dist_any(bool here)
{
    double ranks = here;
    dist_sum(&ranks, 1);
    return ranks > 0;
}

/* FNV-1a */
static uint64_t hash_of_bytes(const void *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3;
    return h;
}

void dist_need_equal(const char *what, const void *data, size_t bytes)
{
    if (ranks_transport.ranks == 1)
        return;
    uint64_t *all = memory_allocate((size_t)ranks_transport.ranks * sizeof *all);
    if (!all)
        error_raise("dist_need_equal: memory is exhausted");
    all[ranks_transport.rank] = hash_of_bytes(data, bytes);
    dist_all_gather_rows(all, sizeof *all);
    int rank = 0;
    while (rank < ranks_transport.ranks && all[rank] == all[0])
        rank++;
    free(all);
    if (rank < ranks_transport.ranks)
        error_raise("the %s of ranks 0 and %d differ, expected the same on all ranks", what, rank);
}
