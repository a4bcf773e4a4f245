/* Training on several GPUs through distributed/mpi/nccl.c: the emulation's GPUs, threads as ranks,
 * and the emulation's NCCL, which checks what NCCL demands (tests/cuda_on_host/nccl.cpp). */
#include "distributed/mpi/nccl.h"
#include "tests/support.h"
#include "tests/thread_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 12, INPUTS = 5, WIDTH = 8, OUTPUTS = 3, MAX_RANKS = 6 };

/* ------------------------------------------------------------------------------- the transport */
typedef enum {
    NO_FAULT,
    OTHER_ORDER,    /* rank 1 gathers before it reduces */
    OTHER_COUNTS,   /* rank 1 divides the buffer otherwise */
    OTHER_STREAM,   /* without a wait for the device's stream */
    HOST_BUFFER,    /* rank 1's buffer is memory of the host */
    MISSING_CALL,   /* rank 1 does not gather */
    OPEN_GROUP,     /* rank 1 does not end a group */
    SHARED_GPU,     /* both ranks are on cuda:0 */
    DIFFERENT_KINDS /* rank 1 is on the CPU */
} Fault;

static Fault fault;
static bool through_host;
static _Thread_local NcclRanks ranks_here;
static _Thread_local int exchanges;

static pthread_mutex_t id_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t id_is_there = PTHREAD_COND_INITIALIZER;
static ncclUniqueId shared_id;
static int id_readers; /* that have not read it */

/* Takes the place of MPI_Bcast. */
static void share_between_threads(ncclUniqueId *id, int device)
{
    (void)device;
    pthread_mutex_lock(&id_lock);
    if (ranks_here.rank == 0) {
        shared_id = *id;
        id_readers = ranks_here.ranks;
        pthread_cond_broadcast(&id_is_there);
    }
    while (id_readers == 0)
        pthread_cond_wait(&id_is_there, &id_lock);
    *id = shared_id;
    id_readers--;
    pthread_mutex_unlock(&id_lock);
}

static bool fails_here(Fault kind)
{
    return fault == kind && dist_rank() == 1;
}

static void gather_on_device(void *context, int device, void *stream, void *buffer,
                             const int64_t *offsets)
{
    (void)context;
    exchanges++;
    if (fails_here(MISSING_CALL) && exchanges == 3)
        return;
    if (fails_here(OPEN_GROUP) && exchanges == 3)
        ncclGroupStart();
    nccl_all_gather(&ranks_here, device, stream, buffer, offsets);
}

static void reduce_on_device(void *context, int device, void *stream, Real *buffer,
                             const int64_t *offsets)
{
    int64_t moved[MAX_RANKS + 1];
    (void)context;
    exchanges++;
    memcpy(moved, offsets, (size_t)(ranks_here.ranks + 1) * sizeof *moved);
    if (fails_here(OTHER_COUNTS))
        moved[1] -= 1;
    if (fails_here(OTHER_ORDER))
        nccl_all_gather(&ranks_here, device, stream, buffer, offsets);
    if (fails_here(HOST_BUFFER))
        buffer = test_zeros(offsets[ranks_here.ranks]);
    nccl_reduce_scatter(&ranks_here, device, fault == OTHER_STREAM ? NULL : stream, buffer, moved);
}

static void use_nccl(DistTransport *transport)
{
    ranks_here = (NcclRanks){ .rank = transport->rank,
                              .ranks = transport->ranks,
                              .share = share_between_threads };
    exchanges = 0;
    transport->device_all_gather = gather_on_device;
    transport->device_reduce_scatter = reduce_on_device;
}

/* ---------------------------------------------------------------------------------- a small run */
typedef struct Run {
    TestOptimizer kind;
    int steps;
    bool small; /* two weights */
    double clip;
    int64_t rows; /* of ROWS; with fewer than ranks, some have no gradients */
    Real *values[MAX_RANKS];
    double norms[MAX_RANKS];
    int64_t count;
} Run;

static Device *faulty_rank_device(void)
{
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", fault == SHARED_GPU ? 0 : dist_rank());
    return device_open(fails_here(DIFFERENT_KINDS) ? "cpu" : name);
}

/* The ranks begin with other weights: rank 0's are used. */
static void train(void *context)
{
    Run *run = context;
    const int rank = dist_rank();
    Device *device = faulty_rank_device();
    Params *params = params_new(device, 1);
    const Linear in = nn_linear(params, "in", INPUTS, run->small ? OUTPUTS : WIDTH);
    const Linear out = run->small ? in : nn_linear(params, "out", WIDTH, OUTPUTS);
    Tensor *values = params_flat_values(params);
    if (rank)
        tensor_write(values, test_normal(77, tensor_count(values)));
    Optimizer *optimizer = test_optimizer(run->kind, params, optim_adam_config(1e-2));
    dist_optimizer(optimizer);
    Tape *tape = tape_new(device);
    const DistPart part = dist_part(run->rows);
    dist_set_weight(params, (double)part.count);
    for (int step = 0; step < run->steps; step++) {
        tape_reset(tape);
        if (part.count) {
            const Real *xs = test_normal((uint64_t)(10 + step), ROWS * INPUTS),
                       *ys = test_normal((uint64_t)(1000 + step), ROWS * OUTPUTS);
            Tensor *x = tape_input(tape, xs + part.first * INPUTS, shape(part.count, INPUTS));
            Tensor *y = tape_input(tape, ys + part.first * OUTPUTS, shape(part.count, OUTPUTS));
            x = nn_linear_forward(tape, &in, x);
            if (!run->small)
                x = nn_linear_forward(tape, &out, op_tanh(tape, x));
            tape_backward(tape, op_mean_squared_error(tape, x, y));
        }
        params_clip_gradients(params, run->clip);
        optim_step(optimizer);
    }
    run->norms[rank] = params_gradient_norm(params);
    run->count = tensor_count(values);
    run->values[rank] = test_values(values);
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
    nccl_end(&ranks_here, 0);
}

static Run run_on(int ranks, Run run)
{
    ranks_here = (NcclRanks){ 0 };
    if (ranks == 1)
        train(&run);
    else
        run_ranks_with(ranks, train, &run, through_host ? NULL : use_nccl);
    for (int r = 1; r < ranks; r++) {
        assert_identical(run.values[r], run.values[0], run.count);
        ck_assert_double_eq(run.norms[r], run.norms[0]);
    }
    return run;
}

static void check_ranks(int ranks, Run run)
{
    const Run one = run_on(1, run), several = run_on(ranks, run);
    assert_near("weights", several.values[0], one.values[0], one.count,
                sizeof(Real) == 8 ? 1e-10 : 1e-3);
}

static const Run plain_run = { .kind = ADAMW, .steps = 3, .clip = 0.05, .rows = ROWS };

/* ---------------------------------------------------------------------------------------- tests */
TEST(ranks_with_a_gpu_each_train_as_one)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        Run run = plain_run;
        check_ranks(ranks, run);
        run.kind = MUON;
        check_ranks(ranks, run);
    }
}

TEST(two_runs_through_nccl_are_bitwise_equal)
{
    const Run a = run_on(3, plain_run), b = run_on(3, plain_run);
    assert_identical(a.values[0], b.values[0], a.count);
}

/* Sums in the order of ranks: here the emulated NCCL adds as the transport of the host does. */
TEST(nccl_and_host_memory_agree_bitwise)
{
    const Run device = run_on(3, plain_run);
    through_host = true;
    const Run host = run_on(3, plain_run);
    assert_identical(device.values[0], host.values[0], host.count);
}

/* Six ranks share two weights, and only four have rows. */
TEST(empty_parts_and_ranks_without_gradients)
{
    Run run = plain_run;
    run.small = true;
    run.rows = 4;
    check_ranks(MAX_RANKS, run);
}

static int64_t copies_of(int ranks)
{
    const int64_t before = tapegrad_cuda_on_host_counts().copies_in;
    run_on(ranks, plain_run);
    return tapegrad_cuda_on_host_counts().copies_in - before;
}

/* Each rank writes what one process writes, and the summed norm of each step; ranks 1 and 2 write
 * their first weights. */
TEST(weights_and_gradients_are_not_copied_from_the_host)
{
    const int64_t one = copies_of(1), three = 3 * (one + plain_run.steps) + 2;
    ck_assert_int_eq(copies_of(3), three);
    through_host = true; /* once for the first weights, and twice per step */
    ck_assert_int_eq(copies_of(3), three + 3 * (1 + 2 * plain_run.steps));
}

TEST(cuda_is_the_gpu_of_the_rank_on_its_machine)
{
    ck_assert_str_eq(device_name(device_open("cuda")), "cuda:0");
    for (int local = 1; local < 2 * MAX_RANKS; local++) {
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", local % MAX_RANKS);
        dist_start_with((DistTransport){ .ranks = 1, .local = local });
        ck_assert_str_eq(device_name(device_open("cuda")), name);
        dist_finish();
    }
    ck_assert_str_eq(device_name(device_open("cuda:1")), "cuda:1");
}

static void assert_found(Fault kind, const char *text)
{
    fault = kind;
    Run run = plain_run;
    run.steps = 1;
    assert_ranks_end(2, train, &run, use_nccl, text);
}

TEST(another_order_of_calls_is_found)
{
    assert_found(OTHER_ORDER, "rank 0 calls ncclReduce of ");
}

TEST(other_counts_are_found)
{
    assert_found(OTHER_COUNTS, "group 2, call 1: rank 0 calls ncclReduce of ");
}

TEST(a_missing_wait_between_streams_is_found)
{
    assert_found(OTHER_STREAM, "its stream does not wait for work on another stream");
}

TEST(a_buffer_of_the_host_is_found)
{
    assert_found(HOST_BUFFER, "ncclReduce: the send buffer is not memory of a device");
}

TEST(a_missing_call_is_found)
{
    assert_found(MISSING_CALL, "for rank 1, which has destroyed its communicator");
}

TEST(an_open_group_is_found)
{
    assert_found(OPEN_GROUP, "ncclCommDestroy: rank 1 has not ended a group");
}

TEST(errors_of_nccl_end_all_ranks_with_a_sentence)
{
    assert_found(SHARED_GPU, " of 2: ncclCommInitRank: invalid usage (run with NCCL_DEBUG=WARN for "
                             "details): Duplicate GPU detected\n");
}

TEST(ranks_on_different_kinds_of_devices_raise)
{
    assert_found(DIFFERENT_KINDS, "rank 0 of 2: the kinds of devices of ranks 0 and 1 differ, "
                                  "expected the same on all ranks\n");
}

static void begin_nccl(void)
{
    setenv("TAPEGRAD_CUDA_ON_HOST_DEVICES", "6", 1); /* one per rank */
}

int main(void)
{
    return test_main("nccl", begin_nccl, test_forget);
}
