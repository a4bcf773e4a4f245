/* Training by several ranks, which are threads here; tests/test_mpi.sh has processes. */
#include "tests/folder.h"
#include "tests/support.h"
#include "tests/thread_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- a small run */
enum { ROWS = 12, INPUTS = 5, WIDTH = 8, OUTPUTS = 3, MAX_RANKS = 7 };

/* Trains a small model on ROWS rows, each rank on its part of them. */
typedef struct Run {
    TestOptimizer kind;
    int steps, micro_batches;
    double clip, dropout;
    Precision precision;
    int clips;                      /* calls per step, by the norm of all weights; 0: by each's */
    int64_t rows;                   /* of ROWS; fewer than ranks leave some idle */
    const char *save, *load;        /* checkpoints */
    bool differ;                    /* ranks have other initial values: of rank 0 are used */
    Real *values[MAX_RANKS];        /* the weights of each rank in the end */
    double norms[MAX_RANKS];        /* of the last step's gradients */
    DistTraffic traffic[MAX_RANKS]; /* of all steps */
    int64_t count;
} Run;

typedef struct Model {
    Linear in, out;
    LayerNorm norm;
    Attention attention; /* with joined weights */
    Dropout dropout;
} Model;

static Model model_new(Params *params, double dropout)
{
    const TransformerConfig config = { .heads = 2, .head_dim = WIDTH / 2 };
    return (Model){ nn_linear(params, "in", INPUTS, WIDTH),
                    nn_linear(params, "out", WIDTH, OUTPUTS), nn_layernorm(params, "norm", WIDTH),
                    nn_attention(params, "attention", config), nn_dropout(dropout) };
}

/* The mean over `count` rows from `first` on. */
static Tensor *loss_of(Tape *tape, const Model *model, int64_t first, int64_t count, int step)
{
    const Real *xs = test_normal((uint64_t)(10 + step), ROWS * INPUTS),
               *ys = test_normal((uint64_t)(1000 + step), ROWS * OUTPUTS);
    Tensor *x = tape_input(tape, xs + first * INPUTS, shape(count, 1, INPUTS));
    Tensor *y = tape_input(tape, ys + first * OUTPUTS, shape(count, 1, OUTPUTS));
    x = nn_linear_forward(tape, &model->in, x);
    x = nn_layernorm_forward(tape, &model->norm, x);
    x = op_add(tape, x, nn_attention_forward(tape, &model->attention, x, (AttentionOptions){ 0 }));
    x = nn_dropout_forward(tape, &model->dropout, x);
    return op_mean_squared_error(tape, nn_linear_forward(tape, &model->out, x), y);
}

/* The loss in bf16 under these weights is that under equal ones, whose copy in bf16 is new. */
static void check_bf16_copy(Params *params, const Model *model)
{
    Params *fresh = params_new(rank_device(), 2);
    const Model equal = model_new(fresh, 0);
    tensor_write(params_flat_values(fresh), test_values(params_flat_values(params)));
    Tape *tape = tape_new(rank_device());
    tape_set_precision(tape, PRECISION_BF16);
    assert_identical(test_values(loss_of(tape, model, 0, ROWS, 9)),
                     test_values(loss_of(tape, &equal, 0, ROWS, 9)), 1);
    tape_free(tape);
    params_free(fresh);
}

static void train(void *context)
{
    Run *run = context;
    const int rank = dist_rank();
    Device *device = rank_device();
    Params *params = params_new(device, 1);
    const Model model = model_new(params, run->dropout);
    AdamConfig config = optim_adam_config(1e-2);
    config.eps = 1e-3; /* where a gradient is all rounding, its sign must not decide */
    config.weight_decay = 0.1;
    if (run->differ && rank)
        params_flat_values(params);
    if (run->differ && rank)
        tensor_write(params_flat_values(params),
                     test_normal(77, tensor_count(params_flat_values(params))));
    Optimizer *optimizer = test_optimizer(run->kind, params, config);
    optim_set_group(optimizer, "*.bias", 1, 0);
    dist_optimizer(optimizer);
    Tape *tape = tape_new(device);
    tape_seed(tape, 1);
    tape_set_precision(tape, run->precision);
    if (run->load)
        assert_ok(optim_load(optimizer, tape, run->load));
    const DistPart part = dist_part(run->rows);
    dist_set_weight(params, (double)part.count);
    const DistTraffic before = dist_traffic();
    for (int i = 0; i < run->steps; i++) {
        const int step = (int)optim_steps(optimizer);
        for (int k = 0; k < run->micro_batches && part.count; k++) {
            tape_reset(tape);
            Tensor *loss = loss_of(tape, &model, part.first, part.count, step + 100 * k);
            tape_backward(tape, op_scale(tape, loss, 1.0 / run->micro_batches));
        }
        for (int k = 0; run->clip > 0 && k < run->clips; k++)
            params_clip_gradients(params, run->clip / (k + 1));
        if (run->clip > 0 && run->clips == 0)
            params_clip_each_gradient(params, run->clip);
        optim_step(optimizer);
    }
    const DistTraffic after = dist_traffic();
    run->traffic[rank] = (DistTraffic){ after.bytes - before.bytes, after.calls - before.calls };
    if (run->clip > 0)
        run->norms[rank] = params_gradient_norm(params);
    if (run->save)
        assert_ok(optim_save(optimizer, tape, NULL, 0, run->save));
    optim_set_training(optimizer, false);
    if (run->precision == PRECISION_BF16)
        check_bf16_copy(params, &model);
    run->count = tensor_count(params_flat_values(params));
    run->values[rank] = test_values(params_flat_values(params));
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
}

static Run run_of(TestOptimizer kind)
{
    return (Run){ .kind = kind, .steps = 1, .micro_batches = 1, .clips = 1, .rows = ROWS };
}

static void run_on(int ranks, Run *run)
{
    if (ranks == 1)
        train(run);
    else
        run_ranks(ranks, train, run);
}

/* Rounding errors of one step, which Adam's division by sqrt(v) magnifies, and Muon where singular
 * values are small; more of several. In float Muon's are as large as its steps: double tests it. */
static double tolerance(const Run *run)
{
    const TestOptimizer kind = run->kind;
    if (run->precision == PRECISION_BF16)
        return 1e-3; /* sums that differ by a rounding error of float may differ by one of bf16 */
    if (sizeof(Real) == 4 && kind != MUON)
        return 1e-4;
    return (sizeof(Real) == 8 ? 1e-12 : 1e-4) * (kind == MUON ? 100 : 1) *
           (run->steps > 1 ? 100 : 1);
}

/* The run on several ranks ends as that on one; its ranks agree bit by bit. */
static void check_ranks(int ranks, Run one)
{
    Run several = one;
    one.save = one.load = NULL;
    if (several.load)
        ck_abort_msg("a run that loads is compared by its caller");
    run_on(1, &one);
    run_on(ranks, &several);
    for (int r = 0; r < ranks; r++) {
        assert_identical(several.values[r], several.values[0], one.count);
        ck_assert_double_eq(several.norms[r], several.norms[0]);
    }
    char what[64];
    snprintf(what, sizeof what, "optimizer %d on %d ranks", (int)one.kind, ranks);
    assert_near(what, several.values[0], one.values[0], one.count, tolerance(&one));
    ck_assert_double_le(fabs(several.norms[0] - one.norms[0]),
                        tolerance(&one) * (1 + one.norms[0]));
}

/* ---------------------------------------------------------------------------------------- tests */
TEST(every_optimizer_steps_on_several_ranks_as_on_one)
{
    for (int kind = 0; kind < OPTIMIZERS; kind++)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int steps = 1; steps <= 5; steps += 4) {
                Run run = run_of((TestOptimizer)kind);
                run.steps = steps;
                check_ranks(ranks, run);
            }
}

/* On CUDA the optimizers' kernels write a rank's part of the weights in bf16. By 2 and 4 ranks the
 * mean's gradients differ from those of one by a power of 2, which rounds alike. */
TEST(every_optimizer_steps_in_bf16)
{
    for (int kind = 0; test_has_bf16() && kind < OPTIMIZERS; kind++)
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            Run run = run_of((TestOptimizer)kind);
            run.precision = PRECISION_BF16;
            run.steps = 3;
            check_ranks(ranks, run);
        }
}

TEST(two_runs_on_several_ranks_are_bitwise_equal)
{
    Run a = run_of(RADAM), b = a;
    a.steps = b.steps = 8;
    a.clip = b.clip = 0.1;
    a.dropout = b.dropout = 0.5;
    run_on(3, &a);
    run_on(3, &b);
    assert_identical(a.values[0], b.values[0], a.count);
}

/* nanochat clipped by each rank's own norm before the sum. */
TEST(gradients_are_clipped_by_the_norm_of_their_mean)
{
    Run run = run_of(MOMENTUM);
    run.steps = 3;
    run.clip = 0.05;
    check_ranks(4, run);
}

/* twinkle reduced a norm twice; and each gradient by itself. */
TEST(clipping_twice_exchanges_once)
{
    for (int clips = 0; clips <= 2; clips += 2) {
        Run run = run_of(MOMENTUM), once = run;
        run.clips = clips;
        run.clip = once.clip = 0.05;
        check_ranks(3, run);
        run_on(3, &once);
        run_on(3, &run);
        ck_assert_int_lt(run.traffic[1].bytes - once.traffic[1].bytes, 100); /* a norm more */
    }
}

/* Gradients of micro-batches are exchanged once: tt-metal clipped each. */
TEST(micro_batches_exchange_once)
{
    Run one = run_of(ADAMW), four = one;
    one.clip = four.clip = 0.05;
    four.micro_batches = 4;
    check_ranks(3, four);
    run_on(3, &one);
    run_on(3, &four);
    for (int r = 0; r < 3; r++) {
        ck_assert_int_eq(four.traffic[r].calls, one.traffic[r].calls);
        ck_assert_int_eq(four.traffic[r].bytes, one.traffic[r].bytes);
    }
}

TEST(ranks_with_unequal_and_no_rows_have_their_weight)
{
    for (int64_t rows = 1; rows <= ROWS; rows += 2) {
        Run run = run_of(ADAM);
        run.rows = rows;
        run.clip = 1;
        check_ranks(5, run);
    }
}

TEST(weights_of_rank_0_become_those_of_all)
{
    Run run = run_of(MUON);
    run.differ = true;
    check_ranks(3, run);
}

/* More ranks than weights leave some without work. */
TEST(more_ranks_than_weights)
{
    check_ranks(MAX_RANKS, run_of(ADAMW));
}

TEST(a_checkpoint_continues_on_another_number_of_ranks)
{
    static const int counts[] = { 4, 2, 1, 3 };
    for (int kind = 0; kind < OPTIMIZERS; kind++) {
        Run whole = run_of((TestOptimizer)kind), part = whole;
        whole.steps = 8;
        part.steps = 2;
        train(&whole);
        for (int i = 0; i < 4; i++) {
            part.save = path;
            run_on(counts[i], &part);
            part.load = path;
        }
        assert_near("weights", part.values[0], whole.values[0], whole.count, tolerance(&whole));
    }
}

static void save_nowhere(void *context)
{
    (void)context;
    Params *params = params_new(device_open("cpu"), 1);
    nn_linear(params, "linear", 3, 3);
    Optimizer *optimizer = optim_adamw(params, optim_adam_config(1e-3));
    dist_optimizer(optimizer);
    ck_assert(!optim_save(optimizer, NULL, NULL, 0, "/nowhere/a.safetensors"));
    ck_assert_ptr_nonnull(strstr(tapegrad_error(), "/nowhere/a.safetensors"));
    ck_assert(!optim_load(optimizer, NULL, "/nowhere/a.safetensors"));
    ck_assert_ptr_nonnull(strstr(tapegrad_error(), "rank 0: "));
    optim_free(optimizer);
    params_free(params);
}

TEST(all_ranks_report_that_rank_0_could_not_write)
{
    run_ranks(3, save_nowhere, NULL);
}

static void draw_masks(void *context)
{
    Tape *tape = tape_new(device_open("cpu"));
    tape_seed(tape, 1);
    Real ones[64];
    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    Real **masks = context;
    masks[dist_rank()] = test_values(op_dropout(tape, tape_input(tape, ones, shape(64)), 0.5));
    tape_free(tape);
}

TEST(dropout_masks_of_ranks_differ)
{
    Real *masks[3];
    run_ranks(3, draw_masks, masks);
    for (int r = 1; r < 3; r++)
        ck_assert_int_ne(memcmp(masks[r], masks[0], 64 * sizeof(Real)), 0);
    draw_masks(masks + 1);
    assert_identical(masks[1], masks[0], 64); /* rank 0's are those of one process */
}

static void sum_ranks(void *context)
{
    (void)context;
    const int rank = dist_rank();
    double values[] = { rank, 1 };
    dist_sum(values, 2);
    ck_assert_double_eq(values[0], 6);
    ck_assert_double_eq(values[1], 4);
    ck_assert(dist_any(rank == 2));
    ck_assert(!dist_any(false));
    const DistPart part = dist_part(10);
    ck_assert_int_eq(part.first, rank < 2 ? 3 * rank : 2 * rank + 2);
    ck_assert_int_eq(part.count, rank < 2 ? 3 : 2);
}

TEST(sums_and_parts)
{
    run_ranks(4, sum_ranks, NULL);
    ck_assert_int_eq(dist_ranks(), 1);
    ck_assert_int_eq(dist_part(10).count, 10);
    ck_assert(dist_any(true) && !dist_any(false));
}

/* What rank 0 keeps after its ranks have finished. */
typedef struct Kept {
    Params *params;
    Optimizer *optimizer;
} Kept;

static void leave(void *context)
{
    Params *params = params_new(device_open("cpu"), 1);
    nn_linear(params, "linear", 2, 2);
    Optimizer *optimizer = optim_adamw(params, optim_adam_config(1e-3));
    dist_optimizer(optimizer);
    params_flat_gradients(params);
    optim_step(optimizer);
    if (dist_rank() == 0)
        *(Kept *)context = (Kept){ params, optimizer };
    else {
        optim_free(optimizer);
        params_free(params);
    }
}

TEST(divided_weights_need_their_ranks)
{
    Kept kept = { NULL, NULL };
    run_ranks(2, leave, &kept);
    assert_raises("optim_step: the weights are divided among 2 ranks, but there are 1; expected "
                  "before dist_finish",
                  optim_step(kept.optimizer));
    optim_free(kept.optimizer);
    params_free(kept.params);
}

TEST(misuse_raises)
{
    Params *params = params_new(test_device(), 1);
    const Linear linear = nn_linear(params, "linear", 2, 2);
    (void)linear;
    assert_raises("dist_part: count is -1, expected 0 or more", dist_part(-1));
    assert_raises("dist_optimizer: the optimizer is NULL", dist_optimizer(NULL));
    assert_raises("dist_set_weight: params is NULL", dist_set_weight(NULL, 1));
    assert_raises("dist_set_weight: weight is -1, expected 0 or more, and finite",
                  dist_set_weight(params, -1));
    assert_raises("dist_start: rank 2 of 2, expected 0 to ranks - 1, of at most 4096",
                  dist_start_with((DistTransport){ .rank = 2, .ranks = 2 }));
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_raises("dist_start: mpirun has started 2 processes, but the program was linked without "
                  "MPI; link libtapegrad_mpi before libtapegrad",
                  dist_start());
    params_free(params);
}

/* ---------------------------------------------------------------------------- ranks that differ */
enum { KIND, COUNT, SEED, NAMES, SHAPES, STEPS, LATE, UNDIVIDED, DIFFERENCES };
static const char *const differences[DIFFERENCES] = {
    [KIND] = "the optimizers of ranks 0 and 1 differ",
    [COUNT] = "the numbers of weights of ranks 0 and 1 differ",
    [SEED] = "the seeds of the weights of ranks 0 and 1 differ",
    [NAMES] = "the names and shapes of the weights of ranks 0 and 1 differ",
    [SHAPES] = "the names and shapes of the weights of ranks 0 and 1 differ",
    [STEPS] = "the steps of the optimizers of ranks 0 and 1 differ",
    [LATE] = "dist_set_weight: expected after dist_optimizer",
    [UNDIVIDED] =
        "optim_step: the optimizer is not divided as its weights are: call dist_optimizer",
};

static const char *file_of(int steps)
{
    static _Thread_local char name[640];
    snprintf(name, sizeof name, "%s.%d", path, steps);
    return name;
}

static void differ(void *context)
{
    const int what = *(int *)context, rank = dist_rank();
    Params *params = params_new(rank_device(), what == SEED ? 1 + (uint64_t)rank : 1);
    nn_linear(params, what == NAMES && rank ? "b" : "a", what == SHAPES && rank ? 3 : 2, 2);
    if (what == COUNT && rank)
        nn_linear(params, "c", 2, 2);
    if (what == LATE)
        dist_set_weight(params, 2);
    const AdamConfig config = optim_adam_config(1e-3);
    Optimizer *optimizer =
        what == KIND && rank ? optim_radam(params, config) : optim_adamw(params, config);
    dist_optimizer(optimizer);
    if (what == UNDIVIDED)
        optim_step(optim_adamw(params, config));
    if (what == STEPS && !optim_load(optimizer, NULL, file_of(rank)))
        exit(0);
    exit(0);
}

/* A checkpoint of the same weights after these steps; on the CPU, as CUDA does not survive fork. */
static void save_after(int steps)
{
    Params *params = params_new(device_open("cpu"), 1);
    nn_linear(params, "a", 2, 2);
    Optimizer *optimizer = optim_adamw(params, optim_adam_config(1e-3));
    for (int i = 0; i < steps; i++) {
        params_zero_gradients(params);
        params_flat_gradients(params);
        optim_step(optimizer);
    }
    assert_ok(optim_save(optimizer, NULL, NULL, 0, file_of(steps)));
    optim_free(optimizer);
    params_free(params);
}

TEST(ranks_that_differ_end_with_a_sentence)
{
    save_after(0);
    save_after(1);
    for (int what = 0; what < DIFFERENCES; what++)
        assert_ranks_end(2, differ, &what, NULL, differences[what]);
}

static void begin(void)
{
    begin_folder("distributed");
    make_rank_devices();
}

int main(void)
{
    return test_main("distributed", begin, end_folder);
}
