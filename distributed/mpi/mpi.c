/* dist_start by MPI. All of its calls are made by the thread that called dist_start. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "distributed/distributed.h"

#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef TAPEGRAD_NCCL
#include "distributed/mpi/nccl.h"
#endif

/* MPI 3 counts in int. A test compiles this file with a smaller maximum. */
#ifndef MAX_COUNT
#define MAX_COUNT INT_MAX
#endif

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) {
        fprintf(stderr, "dist: memory is exhausted\n");
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    return memory;
}

static void counts_of(const int64_t *offsets, int ranks, int *counts, int *starts)
{
    for (int r = 0; r < ranks; r++) {
        if (offsets[ranks] > INT_MAX) {
            fprintf(stderr, "rank %d: an exchange of %lld elements, expected at most %d\n",
                    dist_rank(), (long long)offsets[ranks], INT_MAX);
            MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        }
        starts[r] = (int)offsets[r];
        counts[r] = (int)(offsets[r + 1] - offsets[r]);
    }
}

/* A type of 64 bytes, if all offsets are multiples of it, so that parts may exceed 2 GB. */
static int64_t unit_of(const int64_t *offsets, int ranks)
{
    for (int r = 0; r <= ranks; r++)
        if (offsets[r] % 64)
            return 1;
    return 64;
}

/* counts and starts of the offsets / unit */
static int *scaled_counts(const int64_t *offsets, int64_t unit, int ranks, int **starts)
{
    int64_t *scaled = allocate((size_t)(ranks + 1) * sizeof *scaled);
    int *counts = allocate(2 * (size_t)ranks * sizeof *counts);
    for (int r = 0; r <= ranks; r++)
        scaled[r] = offsets[r] / unit;
    *starts = counts + ranks;
    counts_of(scaled, ranks, counts, *starts);
    free(scaled);
    return counts;
}

static MPI_Datatype bytes_type(int64_t unit)
{
    static MPI_Datatype line;
    if (unit == 1)
        return MPI_BYTE;
    if (!line) {
        MPI_Type_contiguous(64, MPI_BYTE, &line);
        MPI_Type_commit(&line);
    }
    return line;
}

/* The context: a pointer to its communicator, of all ranks or of a group. */
static MPI_Comm comm_of(void *context)
{
    return *(MPI_Comm *)context;
}

static int rank_of(void *context)
{
    int rank;
    MPI_Comm_rank(comm_of(context), &rank);
    return rank;
}

static int ranks_of(void *context)
{
    int ranks;
    MPI_Comm_size(comm_of(context), &ranks);
    return ranks;
}

static void all_gather(void *context, void *buffer, const int64_t *offsets)
{
    const int ranks = ranks_of(context);
    const int64_t unit = unit_of(offsets, ranks);
    int *starts, *counts = scaled_counts(offsets, unit, ranks, &starts);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, counts, starts, bytes_type(unit),
                   comm_of(context));
    free(counts);
}

static void gather(void *context, void *buffer, const int64_t *offsets)
{
    const int rank = rank_of(context), ranks = ranks_of(context);
    const int64_t unit = unit_of(offsets, ranks);
    int *starts, *counts = scaled_counts(offsets, unit, ranks, &starts);
    const MPI_Datatype type = bytes_type(unit);
    if (rank == 0)
        MPI_Gatherv(MPI_IN_PLACE, 0, type, buffer, counts, starts, type, 0, comm_of(context));
    else
        MPI_Gatherv((char *)buffer + offsets[rank], counts[rank], type, NULL, NULL, NULL, type, 0,
                    comm_of(context));
    free(counts);
}

static MPI_Datatype real_type(void)
{
    return sizeof(Real) == sizeof(double) ? MPI_DOUBLE : MPI_FLOAT;
}

/* More elements than MPI counts: one part after the other, in blocks. */
static void reduce_in_blocks(void *context, Real *buffer, const int64_t *offsets)
{
    const int rank = rank_of(context), ranks = ranks_of(context);
    for (int r = 0; r < ranks; r++)
        for (int64_t first = offsets[r]; first < offsets[r + 1]; first += MAX_COUNT) {
            const int64_t rest = offsets[r + 1] - first;
            Real *block = buffer + first;
            MPI_Reduce(rank == r ? MPI_IN_PLACE : block, rank == r ? block : NULL,
                       rest < MAX_COUNT ? (int)rest : MAX_COUNT, real_type(), MPI_SUM, r,
                       comm_of(context));
        }
}

/* In place, MPI leaves this rank's part at the start of the buffer. */
static void reduce_scatter(void *context, Real *buffer, const int64_t *offsets)
{
    const int rank = rank_of(context), ranks = ranks_of(context);
    if (offsets[ranks] > MAX_COUNT) {
        reduce_in_blocks(context, buffer, offsets);
        return;
    }
    int *starts, *counts = scaled_counts(offsets, 1, ranks, &starts);
    MPI_Reduce_scatter(MPI_IN_PLACE, buffer, counts, real_type(), MPI_SUM, comm_of(context));
    memmove(buffer + offsets[rank], buffer, (size_t)counts[rank] * sizeof *buffer);
    free(counts);
}

/* --------------------------------------------------------------------------- between GPUs: NCCL */

/* The ranks of this machine, and how many they are. */
static MPI_Comm split_machine(int *neighbors)
{
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, neighbors);
    return machine;
}

#ifdef TAPEGRAD_NCCL
enum { BUS_BYTES = 32 };

/* The first rank whose GPU an earlier one uses too; -1: none. */
static int first_sharing(const char (*buses)[BUS_BYTES], int ranks)
{
    for (int r = 1; r < ranks; r++)
        for (int earlier = 0; earlier < r; earlier++)
            if (*buses[r] && strcmp(buses[r], buses[earlier]) == 0)
                return r;
    return -1;
}

/* NCCL refuses ranks that share a GPU, with a sentence that does not say so. */
static void share_id(ncclUniqueId *id, int device)
{
    int neighbors, own;
    MPI_Comm machine = split_machine(&neighbors);
    MPI_Comm_rank(machine, &own);
    char(*buses)[BUS_BYTES] = allocate((size_t)neighbors * sizeof *buses);
    memset(buses[own], 0, sizeof *buses);
    cudaDeviceGetPCIBusId(buses[own], BUS_BYTES, device);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buses, BUS_BYTES, MPI_CHAR, machine);
    if (first_sharing((const char(*)[BUS_BYTES])buses, neighbors) == own) {
        fprintf(stderr,
                "rank %d of %d: it shares GPU %s with another rank, which NCCL refuses: start one "
                "rank per GPU, or set TAPEGRAD_NCCL=no to exchange through host memory\n",
                dist_rank(), dist_ranks(), buses[own]);
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    }
    free(buses);
    MPI_Comm_free(&machine);
    MPI_Bcast(id, sizeof *id, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static NcclRanks nccl = { .share = share_id };

static void gpu_all_gather(void *context, int device, void *stream, void *buffer,
                           const int64_t *offsets)
{
    (void)context;
    nccl_all_gather(&nccl, device, stream, buffer, offsets);
}

static void gpu_reduce_scatter(void *context, int device, void *stream, Real *buffer,
                               const int64_t *offsets)
{
    (void)context;
    nccl_reduce_scatter(&nccl, device, stream, buffer, offsets);
}

static void use_nccl(DistTransport *transport)
{
    nccl.rank = transport->rank;
    nccl.ranks = transport->ranks;
    transport->device_all_gather = gpu_all_gather;
    transport->device_reduce_scatter = gpu_reduce_scatter;
}
#endif

/* Whether all ranks have NCCL and none has TAPEGRAD_NCCL=no in its environment, which mpirun does
 * not pass to other machines. */
static bool all_have_nccl(void)
{
    int have = 0;
#ifdef TAPEGRAD_NCCL
    const char *choice = getenv("TAPEGRAD_NCCL");
    have = !choice || strcmp(choice, "no") != 0;
#endif
    MPI_Allreduce(MPI_IN_PLACE, &have, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return have;
}

static MPI_Comm world;

static void end(void *context, int status)
{
#ifdef TAPEGRAD_NCCL
    if (status != 0 || context == &world)
        nccl_end(&nccl, status);
#endif
    if (status != 0) {
        usleep(100000); /* MPICH's mpirun may lose what a rank has just printed */
        MPI_Abort(MPI_COMM_WORLD, status);
    }
    if (context == &world) {
        MPI_Finalize();
        return;
    }
    MPI_Comm_free(context);
    free(context);
}

/* ------------------------------------------------------------------------------- the processors */

/* mpirun binds a process to one core by default; with more threads than processors they wait for
 * each other. */
static void report_processors(void *context, int threads)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        CPU_ZERO(&allowed); /* more processors than the set has bits: none is counted */
    int neighbors, own = CPU_COUNT(&allowed), all;
    const int rank = rank_of(context);
    cpu_set_t together;
    MPI_Comm machine = split_machine(&neighbors);
    MPI_Allreduce(&allowed, &together, (int)sizeof allowed, MPI_BYTE, MPI_BOR, machine);
    MPI_Comm_free(&machine);
    all = CPU_COUNT(&together);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (own == 0)
        return;
    if (threads > own)
        fprintf(stderr,
                "rank %d: %d threads on %d processors: start it by mpirun --bind-to none, or with "
                "OMP_NUM_THREADS=%d\n",
                rank, threads, own, own);
    else if (rank == 0 && neighbors > all && threads == 1)
        fprintf(stderr, "%d ranks of one thread on %d processors: start at most %d\n", neighbors,
                all, all);
    else if (rank == 0 && neighbors * threads > all)
        fprintf(stderr,
                "%d ranks of %d threads on %d processors: set OMP_NUM_THREADS=%d, or start "
                "fewer\n",
                neighbors, threads, all, all > neighbors ? all / neighbors : 1);
    else if (rank == 0 && own == 1 && all < online && online / neighbors > 1 &&
             !getenv("OMP_NUM_THREADS"))
        fprintf(stderr,
                "%d ranks of one thread on %d of %ld processors: to use all, start it by mpirun "
                "--bind-to none with OMP_NUM_THREADS=%ld\n",
                neighbors, all, online, online / neighbors);
}

/* --------------------------------------------------------------------------------------- groups */

static DistTransport transport_of(void *context);

static DistTransport split(void *context, int ranks)
{
    MPI_Comm *group = allocate(sizeof *group);
    const int rank = rank_of(context);
    MPI_Comm_split(comm_of(context), rank / ranks, rank, group);
    return transport_of(group);
}

static DistTransport transport_of(void *context)
{
    return (DistTransport){ .rank = rank_of(context),
                            .ranks = ranks_of(context),
                            .context = context,
                            .all_gather = all_gather,
                            .gather = gather,
                            .reduce_scatter = reduce_scatter,
                            .end = end,
                            .split = split };
}

/* Another MPI's mpirun starts processes that know nothing of each other, each rank 0 of 1: all
 * would write the same files. */
static void check_ranks(int launched)
{
    int ranks;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (launched < 0 || launched == ranks)
        return;
    fprintf(
        stderr,
        "dist_start: mpirun has started %d processes, but this program's MPI knows of %d: start "
        "it by the mpirun of the MPI that it was built with\n",
        launched, ranks);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

/* Not without mpirun: MPI alone would start a daemon. */
void dist_start(void)
{
    const int launched = dist_launched();
    if (!launched)
        return;
    int done, provided;
    MPI_Initialized(&done);
    if (!done)
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    check_ranks(launched);
    int neighbors;
    MPI_Comm machine = split_machine(&neighbors);
    world = MPI_COMM_WORLD;
    DistTransport transport = transport_of(&world);
    MPI_Comm_rank(machine, &transport.local);
    MPI_Comm_free(&machine);
    if (all_have_nccl()) {
#ifdef TAPEGRAD_NCCL
        use_nccl(&transport);
#endif
    }
    transport.ready = report_processors;
    dist_start_with(transport);
}
