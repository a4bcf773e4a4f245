/* The ranks of this thread: who they are, what they exchange, how they end. */
#include "distributed/internal.h"
#include "autograd/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local DistTransport transport = { .ranks = 1 };
static _Thread_local DistTraffic traffic;

int dist_rank(void)
{
    return transport.rank;
}

int dist_ranks(void)
{
    return transport.ranks;
}

DistTraffic dist_traffic(void)
{
    return traffic;
}

DistPart dist_part(int64_t count)
{
    if (count < 0)
        error_raise("dist_part: count is %lld, expected 0 or more", (long long)count);
    const int64_t rank = transport.rank, ranks = transport.ranks;
    const int64_t whole = count / ranks, rest = count % ranks; /* the first `rest` have one more */
    return (DistPart){ rank * whole + (rank < rest ? rank : rest), whole + (rank < rest) };
}

/* -------------------------------------------------------------------------------- start and end */

/* Other ranks that raise at the same time, as all do whose weights differ, leave the printing to
 * rank 0, which ends them while they wait. */
static void print_and_end(const char *sentence, void *context)
{
    (void)context;
    if (transport.rank > 0)
        usleep(300000);
    fflush(stdout);
    fprintf(stderr, "rank %d of %d: %s\n", transport.rank, transport.ranks, sentence);
    dist_abort(EXIT_FAILURE);
}

void dist_start_with(DistTransport given)
{
    if (transport.ranks > 1)
        error_raise("dist_start: it was called before; call dist_finish in between");
    if (given.ranks < 1 || given.ranks > DIST_MAX_RANKS || given.rank < 0 ||
        given.rank >= given.ranks)
        error_raise("dist_start: rank %d of %d, expected 0 to ranks - 1, of at most %d", given.rank,
                    given.ranks, DIST_MAX_RANKS);
    transport = given;
    traffic = (DistTraffic){ 0 };
    tape_process = (uint64_t)given.rank;
    if (given.ranks > 1)
        error_set_default(print_and_end);
}

void dist_finish(void)
{
    dist_sequence(1);
    if (transport.end) /* one rank of MPI finalizes it too */
        transport.end(transport.context, 0);
    transport = (DistTransport){ .ranks = 1 };
    tape_process = 0;
}

void dist_abort(int status)
{
    fflush(NULL);
    if (transport.ranks > 1)
        transport.end(transport.context, status);
    exit(status);
}

/* Replaced by the function of libtapegrad_mpi, if a program is linked with it. */
__attribute__((weak)) void dist_start(void)
{
    static const char *const variables[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE" };
    for (int i = 0; i < 3; i++) {
        const char *ranks = getenv(variables[i]);
        if (ranks && atoi(ranks) > 1)
            error_raise("dist_start: %s is %s, but the program was linked without MPI; link "
                        "libtapegrad_mpi before libtapegrad",
                        variables[i], ranks);
    }
}

/* ------------------------------------------------------------------------------------- exchange */
const DistTransport *dist_transport(void)
{
    return &transport;
}

static void count(const DistTransport *among, const int64_t *offsets, int64_t unit)
{
    const int r = among->rank;
    traffic.bytes += (offsets[among->ranks] - (offsets[r + 1] - offsets[r])) * unit;
    traffic.calls++;
}

static void all_gather_of(const DistTransport *among, void *buffer, const int64_t *offsets)
{
    if (among->ranks == 1)
        return;
    count(among, offsets, 1);
    among->all_gather(among->context, buffer, offsets);
}

void dist_all_gather(void *buffer, const int64_t *offsets)
{
    all_gather_of(&transport, buffer, offsets);
}

void dist_gather(void *buffer, const int64_t *offsets)
{
    if (transport.ranks == 1)
        return;
    traffic.bytes += transport.rank ? offsets[transport.rank + 1] - offsets[transport.rank] : 0;
    traffic.calls++;
    transport.gather(transport.context, buffer, offsets);
}

void dist_reduce_scatter(Real *buffer, const int64_t *offsets)
{
    if (transport.ranks == 1)
        return;
    count(&transport, offsets, sizeof(Real));
    transport.reduce_scatter(transport.context, buffer, offsets);
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
    dist_all_gather_rows_of(&transport, all, bytes);
}

void dist_sum(double *values, int n)
{
    if (transport.ranks == 1)
        return;
    const size_t bytes = (size_t)n * sizeof *values;
    double *all = memory_allocate((size_t)transport.ranks * bytes);
    if (!all)
        error_raise("dist_sum: memory is exhausted");
    memcpy(all + transport.rank * n, values, bytes);
    dist_all_gather_rows(all, bytes);
    memcpy(values, all, bytes);
    for (int r = 1; r < transport.ranks; r++)
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
