#include "tests/thread_ranks.h"
#include "tests/support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = 16 };

typedef struct Ranks {
    int count;
    pthread_barrier_t barrier;
    void *buffers[MAX_RANKS];        /* of the present exchange */
    struct Ranks *groups[MAX_RANKS]; /* by their first rank */
    void (*function)(void *context);
    void *context;
    void (*prepare)(DistTransport *transport);
} Ranks;

typedef struct Rank {
    Ranks *all;
    int rank;
} Rank;

static void meet(Rank *own, void *buffer)
{
    own->all->buffers[own->rank] = buffer;
    pthread_barrier_wait(&own->all->barrier);
}

static void copy_parts(Rank *own, char *buffer, const int64_t *offsets)
{
    for (int r = 0; r < own->all->count; r++)
        if (r != own->rank)
            memcpy(buffer + offsets[r], (char *)own->all->buffers[r] + offsets[r],
                   (size_t)(offsets[r + 1] - offsets[r]));
}

static void all_gather(void *context, void *buffer, const int64_t *offsets)
{
    meet(context, buffer);
    copy_parts(context, buffer, offsets);
    meet(context, buffer);
}

static void gather(void *context, void *buffer, const int64_t *offsets)
{
    Rank *own = context;
    meet(own, buffer);
    if (own->rank == 0)
        copy_parts(own, buffer, offsets);
    meet(own, buffer);
}

static void reduce_scatter(void *context, Real *buffer, const int64_t *offsets)
{
    Rank *own = context;
    const int64_t first = offsets[own->rank], count = offsets[own->rank + 1] - first;
    Real *sums = calloc((size_t)count + 1, sizeof *sums);
    meet(own, buffer);
    for (int r = 0; r < own->all->count; r++)
        for (int64_t i = 0; i < count; i++)
            sums[i] += ((Real *)own->all->buffers[r])[first + i];
    meet(own, buffer);
    memcpy(buffer + first, sums, (size_t)count * sizeof *sums);
    free(sums);
}

/* Of a group, which its first rank frees: destroy waits until all have left the barrier. */
static void end_group(void *context, int status)
{
    Rank *own = context;
    if (status)
        exit(status);
    meet(own, NULL);
    if (own->rank == 0) {
        pthread_barrier_destroy(&own->all->barrier);
        free(own->all);
    }
    free(own);
}

static DistTransport split(void *context, int ranks);

static DistTransport transport_of(Rank *own, void (*end)(void *context, int status))
{
    return (DistTransport){ .rank = own->rank,
                            .ranks = own->all->count,
                            .context = own,
                            .all_gather = all_gather,
                            .gather = gather,
                            .reduce_scatter = reduce_scatter,
                            .end = end,
                            .split = split };
}

static DistTransport split(void *context, int ranks)
{
    Rank *own = context, *member = malloc(sizeof *member);
    const int first = own->rank / ranks * ranks;
    if (own->rank == first) {
        Ranks *group = calloc(1, sizeof *group);
        group->count = ranks;
        pthread_barrier_init(&group->barrier, NULL, (unsigned)ranks);
        own->all->groups[first] = group;
    }
    meet(own, NULL);
    *member = (Rank){ own->all->groups[first], own->rank - first };
    meet(own, NULL);
    return transport_of(member, end_group);
}

static void end(void *context, int status)
{
    if (status)
        exit(status);
    meet(context, NULL);
}

static void *run(void *context)
{
    Rank *own = context;
    DistTransport transport = transport_of(own, end);
    if (own->all->prepare)
        own->all->prepare(&transport);
    dist_start_with(transport);
    own->all->function(own->all->context);
    dist_finish();
    return NULL;
}

void run_ranks(int ranks, void (*function)(void *context), void *context)
{
    run_ranks_with(ranks, function, context, NULL);
}

void run_ranks_with(int ranks, void (*function)(void *context), void *context,
                    void (*prepare)(DistTransport *transport))
{
    Ranks all = { .count = ranks, .function = function, .context = context, .prepare = prepare };
    Rank own[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    pthread_barrier_init(&all.barrier, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        own[r] = (Rank){ &all, r };
        pthread_create(&threads[r], NULL, run, &own[r]);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&all.barrier);
}

void make_rank_devices(void)
{
    setenv("TAPEGRAD_CUDA_ON_HOST_DEVICES", "7", 1);
}

Device *rank_device(void)
{
#ifdef TAPEGRAD_CUDA_ON_HOST
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", dist_rank());
    if (device_is_cuda(test_device()))
        return device_open(name);
#endif
    return device_open("cpu");
}

void assert_ranks_end(int ranks, void (*function)(void *context), void *context,
                      void (*prepare)(DistTransport *transport), const char *text)
{
    char output[4096];
    size_t length = 0;
    int ends[2], status;
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        run_ranks_with(ranks, function, context, prepare);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], output + length, sizeof output - 1 - length)) > 0;)
        length += (size_t)n;
    output[length] = 0;
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status != 0, "the run succeeds, expected \"%s\"", text);
    ck_assert_msg(strstr(output, text) != NULL, "\"%s\", expected \"%s\"", output, text);
}
