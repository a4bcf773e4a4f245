/* tape_replay: replayed steps give the results of eager steps. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SYMBOLS = 7, LENGTH = 12, BATCH = 3, STEPS = 6 };

typedef struct Trainer {
    Params *params;
    Embedding embedding;
    Transformer transformer;
    Lstm lstm; /* recurrent: instead of the transformer, with lengths, and its state is gru's */
    Gru gru;
    bool recurrent;
    Linear head;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *tokens, *targets, *weights, *lengths;
    Tensor *loss;
    bool eager; /* inputs come from tape_input, as in a step that is not replayed */
    int calls;
} Trainer;

static Trainer trainer_with(TestKind attention, bool recurrent)
{
    Device *device = test_device();
    Trainer trainer = { .params = params_new(device, 3),
                        .tape = tape_new(device),
                        .recurrent = recurrent };
    const TestConfig config = { .layers = 2,
                                .heads = 2,
                                .head_dim = 8,
                                .feed_forward = 24,
                                .attention = attention,
                                .lsh_rounds = 2,
                                .lsh_chunk = 4,
                                .dropout = 0.1 };
    trainer.embedding = nn_embedding(trainer.params, "embedding", SYMBOLS, 16);
    const RecurrentConfig stack = {
        .input = 16, .hidden = 8, .layers = 2, .bidirectional = true, .dropout = 0.1
    };
    if (recurrent) {
        trainer.lstm = nn_lstm(trainer.params, "lstm", stack);
        trainer.gru = nn_gru(trainer.params, "gru", stack);
    } else {
        trainer.transformer =
            nn_transformer(trainer.params, "transformer", test_config(trainer.params, config));
    }
    trainer.head = nn_linear(trainer.params, "head", 16, SYMBOLS);
    AdamConfig adam = optim_adam_config(0.01);
    adam.schedule = optim_cosine(2, STEPS, 0);
    trainer.optimizer = optim_radam(trainer.params, adam);
    Shape all = shape(BATCH, LENGTH);
    trainer.tokens = tape_persistent_i32(trainer.tape, all);
    trainer.targets = tape_persistent_i32(trainer.tape, all);
    trainer.weights = tape_persistent(trainer.tape, all);
    trainer.lengths = tape_persistent_i32(trainer.tape, shape(BATCH));
    tape_seed(trainer.tape, 5);
    return trainer;
}

static Trainer trainer_new(void)
{
    return trainer_with(KIND_CAUSAL_LINEAR, false);
}

static void trainer_free(Trainer *trainer)
{
    tape_free(trainer->tape);
    optim_free(trainer->optimizer);
    params_free(trainer->params);
}

static void write_inputs(Trainer *trainer, int step)
{
    int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH], lengths[BATCH];
    Real weights[BATCH * LENGTH];
    Random random = random_new(11, (uint64_t)step);
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = (int32_t)random_integer(&random, 0, SYMBOLS);
        targets[i] = (int32_t)random_integer(&random, 0, SYMBOLS);
        weights[i] = (Real)random_integer(&random, 0, 3);
    }
    for (int i = 0; i < BATCH; i++)
        lengths[i] = (int32_t)random_integer(&random, 0, LENGTH + 1);
    tensor_write_i32(trainer->lengths, lengths);
    tensor_write_i32(trainer->tokens, tokens);
    tensor_write_i32(trainer->targets, targets);
    tensor_write(trainer->weights, weights);
}

static void train(void *context)
{
    Trainer *trainer = context;
    trainer->calls++;
    Tape *tape = trainer->tape;
    Tensor *x = nn_embedding_forward(tape, &trainer->embedding, trainer->tokens);
    if (trainer->recurrent) {
        LstmState state = { NULL, NULL };
        x = nn_lstm_forward(tape, &trainer->lstm, x, trainer->lengths, &state);
        x = nn_gru_forward(tape, &trainer->gru, x, trainer->lengths, &state.hidden);
    } else {
        x = nn_transformer_forward(tape, &trainer->transformer, x, (AttentionOptions){ 0 });
    }
    Tensor *logits = nn_linear_forward(tape, &trainer->head, x);
    trainer->loss = op_cross_entropy(tape, logits, trainer->targets, trainer->weights);
    tape_backward(tape, trainer->loss);
    params_clip_gradients(trainer->params, 0.5);
    optim_step(trainer->optimizer);
}

static void assert_same_losses(const Trainer *a, const Trainer *b)
{
    const double loss = tensor_item(a->loss), other = tensor_item(b->loss);
    ck_assert_mem_eq(&loss, &other, sizeof loss);
}

static void train_both(Trainer *eager, Trainer *replayed, int step)
{
    write_inputs(eager, step);
    write_inputs(replayed, step);
    tape_reset(eager->tape);
    train(eager);
    tape_replay(replayed->tape, train, replayed);
    assert_same_losses(eager, replayed);
}

static void replay_both(Trainer *a, Trainer *b, int step)
{
    write_inputs(a, step);
    write_inputs(b, step);
    tape_replay(a->tape, train, a);
    tape_replay(b->tape, train, b);
    assert_same_losses(a, b);
}

static void check_replays(Trainer eager, Trainer replayed)
{
    for (int step = 0; step < STEPS; step++) {
        train_both(&eager, &replayed, step);
        const double expected = params_gradient_norm(eager.params);
        const double actual = params_gradient_norm(replayed.params);
        ck_assert_mem_eq(&expected, &actual, sizeof expected);
    }
    ck_assert_int_eq(replayed.calls, device_is_cuda(test_device()) ? 2 : STEPS);
    ck_assert_int_eq(optim_steps(replayed.optimizer), STEPS);
    assert_identical_weights(eager.params, replayed.params);
    Random a = tape_random(eager.tape), b = tape_random(replayed.tape);
    ck_assert(a.counter == b.counter);
    trainer_free(&eager);
    trainer_free(&replayed);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

TEST(replayed_steps_are_bitwise_the_steps)
{
    check_replays(trainer_new(), trainer_new());
}

TEST(replayed_steps_of_other_optimizers_are_bitwise_the_steps)
{
    for (TestOptimizer kind = SCHEDULE_FREE; kind <= MUON; kind++) {
        Trainer trainers[] = { trainer_new(), trainer_new() };
        for (int i = 0; i < 2; i++) {
            AdamConfig config = optim_adam_config(0.01);
            config.schedule = optim_warm_up(3);
            optim_free(trainers[i].optimizer);
            trainers[i].optimizer = test_optimizer(kind, trainers[i].params, config);
        }
        check_replays(trainers[0], trainers[1]);
    }
}

TEST(replayed_steps_that_recompute_are_bitwise_those_that_do_not)
{
    Trainer replayed = trainer_new();
    replayed.transformer.recompute = true;
    check_replays(trainer_new(), replayed);
}

/* The lengths of the sequences change from step to step. */
TEST(replayed_steps_of_recurrent_layers_are_bitwise_the_steps)
{
    check_replays(trainer_with(KIND_CAUSAL_LINEAR, true), trainer_with(KIND_CAUSAL_LINEAR, true));
}

/* The second change allocates nothing, the first one does. */
TEST(groups_may_change_between_replays)
{
    Trainer eager = trainer_new(), replayed = trainer_new();
    for (int step = 0; step < STEPS; step++) {
        Trainer *const both[] = { &eager, &replayed };
        for (int i = 0; i < 2; i++) {
            if (step == 3)
                optim_set_group(both[i]->optimizer, "embedding.*", 0, 1);
            if (step == 5)
                optim_set_group(both[i]->optimizer, "*.bias", 0.5, 0);
        }
        train_both(&eager, &replayed, step);
        assert_identical_weights(eager.params, replayed.params);
    }
    ck_assert_int_eq(replayed.calls, device_is_cuda(test_device()) ? 2 : STEPS);
    trainer_free(&eager);
    trainer_free(&replayed);
}

/* tape_reset discards the graph, which would compute the gradients of frozen weights. */
TEST(weights_may_be_frozen_between_replays)
{
    Trainer eager = trainer_new(), replayed = trainer_new();
    for (int step = 0; step < STEPS; step++) {
        Params *const both[] = { eager.params, replayed.params };
        for (int i = 0; i < 2 && step == 3; i++) {
            params_set_requires_grad(both[i], "embedding.*", false);
            params_set_requires_grad(both[i], "*.key.*", false); /* joined to query and value */
        }
        if (step % 3 == 0)
            tape_reset(replayed.tape);
        train_both(&eager, &replayed, step);
        assert_identical_weights(eager.params, replayed.params);
    }
    trainer_free(&eager);
    trainer_free(&replayed);
}

static void set_a_group(void *context)
{
    train(context);
    optim_set_group(((Trainer *)context)->optimizer, "*", 1, 0);
}

TEST(a_replayed_step_sets_no_group)
{
    if (!device_is_cuda(test_device()))
        return;
    Trainer trainer = trainer_new();
    write_inputs(&trainer, 0);
    tape_replay(trainer.tape, set_a_group, &trainer);
    assert_raises("optim_set_group: this step is replayed; call it before the step",
                  tape_replay(trainer.tape, set_a_group, &trainer));
    trainer_free(&trainer);
}

/* Every replay draws the same hashes as an eager step. */
TEST(replayed_hashes_are_bitwise_the_hashes)
{
    check_replays(trainer_with(KIND_CAUSAL_LSH, false), trainer_with(KIND_CAUSAL_LSH, false));
}

/* Work between replays does not disturb them: another tape's passes use other memory. */
TEST(other_work_between_replays)
{
    Trainer alone = trainer_new(), disturbed = trainer_new();
    Tape *other = tape_new(test_device());
    Real *numbers = test_normal(1, 4096);
    for (int step = 0; step < STEPS; step++) {
        replay_both(&alone, &disturbed, step);
        for (int64_t n = 1; n <= 4096; n *= 2)
            op_exp(other, tape_input(other, numbers, shape(n)));
        assert_same_losses(&alone, &disturbed);
        tape_reset(other);
    }
    tape_free(other);
    trainer_free(&alone);
    trainer_free(&disturbed);
}

/* tape_reset ends the replays; the next step starts over. */
TEST(a_reset_restarts_the_replays)
{
    Trainer once = trainer_new(), again = trainer_new();
    for (int step = 0; step < STEPS; step++) {
        if (step == 3)
            tape_reset(again.tape);
        replay_both(&once, &again, step);
    }
    ck_assert_int_eq(again.calls, device_is_cuda(test_device()) ? 4 : STEPS);
    trainer_free(&once);
    trainer_free(&again);
}

static void read_the_loss(void *context)
{
    train(context);
    tensor_item(((Trainer *)context)->loss);
}

static void take_an_input(void *context)
{
    Trainer *trainer = context;
    const Real one = 1;
    op_exp(trainer->tape, tape_input(trainer->tape, &one, shape(1)));
}

static void step_twice(void *context)
{
    Trainer *trainer = context;
    train(trainer);
    params_flat_gradients(trainer->params); /* zeros */
    optim_step(trainer->optimizer);
}

static void reset(void *context)
{
    tape_reset(((Trainer *)context)->tape);
}

TEST(a_step_must_not_reset)
{
    Trainer trainer = trainer_new();
    assert_raises("tape_replay: step is NULL", tape_replay(trainer.tape, NULL, NULL));
    assert_raises("tape_reset: inside a step of tape_replay, which resets before it",
                  tape_replay(trainer.tape, reset, &trainer));
    trainer_free(&trainer);
}

TEST(what_a_recorded_step_must_not_do)
{
    if (!device_is_cuda(test_device()))
        return;
    static const struct {
        TapeStep *step;
        const char *sentence;
    } cases[] = {
        { read_the_loss, "tape_replay: the step reads to the host while it is captured on cuda:0; "
                         "write inputs to tape_persistent tensors before, read results after" },
        { take_an_input, "tape_replay: the step copies from the host while it is captured on "
                         "cuda:0; write inputs to tape_persistent tensors before, read results "
                         "after" },
    };
    Trainer trainer = trainer_new(), other = trainer_new();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_inputs(&trainer, (int)i);
        write_inputs(&other, (int)i);
        if (cases[i].step == read_the_loss) {
            tape_replay(other.tape, train, &other);
            tape_reset(other.tape); /* or the error below would also undo this step's draws */
            tape_replay(trainer.tape, cases[i].step, &trainer);
        } else {
            tape_replay(trainer.tape, cases[i].step, &trainer);
        }
        assert_raises(cases[i].sentence, tape_replay(trainer.tape, cases[i].step, &trainer));
        tape_reset(trainer.tape);
    }
    /* The failed recordings leave no trace. */
    for (int step = 0; step < STEPS; step++)
        replay_both(&trainer, &other, step);
    trainer_free(&trainer);
    trainer_free(&other);
}

/* An optimizer has one buffer of per-step scalars, where the second step would
 * overwrite the first. */
TEST(a_replayed_step_contains_one_step_per_optimizer)
{
    if (!device_is_cuda(test_device()))
        return;
    Trainer trainer = trainer_new();
    write_inputs(&trainer, 0);
    tape_replay(trainer.tape, step_twice, &trainer);
    assert_raises("optim_step: a replayed step may contain one step per optimizer, this is the "
                  "second",
                  tape_replay(trainer.tape, step_twice, &trainer));
    ck_assert_int_eq(optim_steps(trainer.optimizer), 2);
    trainer_free(&trainer);
}

TEST(inputs_keep_within_the_bounds)
{
    Trainer trainer = trainer_new();
    write_inputs(&trainer, 0);
    tape_replay(trainer.tape, train, &trainer);
    int32_t tokens[BATCH * LENGTH] = { 0 };
    tokens[4] = SYMBOLS;
    assert_raises("tensor_write_i32: element 4 is 7, expected 0 to 6, as the operations that use "
                  "this tensor need",
                  tensor_write_i32(trainer.tokens, tokens));
    trainer_free(&trainer);
}

TEST(persistent_tensors_survive_resets)
{
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_persistent(tape, shape(2, 3));
    static const Real zeros[6], numbers[6] = { 1, 2, 3, 4, 5, 6 };
    ck_assert_mem_eq(test_values(x), zeros, sizeof zeros);
    tensor_write(x, numbers);
    tape_reset(tape);
    ck_assert_mem_eq(test_values(x), numbers, sizeof numbers);
    ck_assert(tensor_item(op_sum(tape, x, ALL_AXES)) == 21);
    tape_free(tape);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

/* -------------------------------------------------------------------------- kernels and memory */
typedef struct Chain {
    Tape *tape;
    Tensor *x;
    int exponentials, products, calls;
} Chain;

static void run_chain(void *context)
{
    Chain *chain = context;
    Tensor *x = chain->x;
    for (int i = 0; i < chain->exponentials; i++)
        x = op_exp(chain->tape, x);
    for (int i = 0; i < chain->products; i++)
        x = op_matmul(chain->tape, x, chain->x);
}

TEST(a_recorded_steps_kernels_are_counted)
{
    const bool cuda = device_is_cuda(test_device());
    Chain chain = { .tape = tape_new(test_device()) };
    chain.x = tape_persistent(chain.tape, shape(16, 16));
    for (chain.exponentials = 1; chain.exponentials < 4; chain.exponentials++) {
        tape_reset(chain.tape);
        tape_replay(chain.tape, run_chain, &chain);
        ck_assert_int_eq(tape_replay_kernels(chain.tape), 0);
        for (int i = 0; i < 2; i++) {
            tape_replay(chain.tape, run_chain, &chain);
            ck_assert_int_eq(tape_replay_kernels(chain.tape), cuda ? chain.exponentials : 0);
        }
    }
    chain.products = 2; /* cuBLAS may launch several kernels per product */
    tape_reset(chain.tape);
    for (int i = 0; i < 2; i++)
        tape_replay(chain.tape, run_chain, &chain);
    ck_assert_int_ge(tape_replay_kernels(chain.tape), cuda ? 4 + 2 : 0);
    tape_free(chain.tape);
}

static void fail_the_first_call(void *context)
{
    Chain *chain = context;
    run_chain(chain);
    if (++chain->calls == 1)
        op_exp(chain->tape, NULL);
}

/* A capture needs a whole step before it; an error between replays is not the step's. */
TEST(a_failed_step_is_no_warm_up)
{
    const bool cuda = device_is_cuda(test_device());
    Chain chain = { .tape = tape_new(test_device()), .exponentials = 1 };
    chain.x = tape_persistent(chain.tape, shape(16, 16));
    assert_raises("op_exp: x is NULL", tape_replay(chain.tape, fail_the_first_call, &chain));
    for (int call = 2; call <= 5; call++) {
        tape_replay(chain.tape, fail_the_first_call, &chain);
        ck_assert_int_eq(tape_replay_kernels(chain.tape), cuda && call > 2 ? 1 : 0);
        assert_raises("tensor_item: the tensor has shape [16,16], expected one element",
                      tensor_item(chain.x));
    }
    ck_assert_int_eq(chain.calls, cuda ? 3 : 5);
    tape_free(chain.tape);
}

/* The memory of the eager step is released, not held beside the graph's. */
TEST(a_recorded_step_reserves_the_memory_of_one_step)
{
    Trainer trainer = trainer_new();
    write_inputs(&trainer, 0);
    tape_replay(trainer.tape, train, &trainer);
    const size_t one = device_memory(test_device()).reserved;
    tape_replay(trainer.tape, train, &trainer);
    const size_t recorded = device_memory(test_device()).reserved;
    ck_assert_msg(recorded <= one + 64, "%zu bytes after a step, %zu after its recording", one,
                  recorded); /* 64: for the Philox counter */
    trainer_free(&trainer);
}

/* --------------------------------------------------------------------------------------- faults */
#ifdef TAPEGRAD_CUDA_ON_HOST
typedef struct Faulty {
    Trainer trainer;
    int call;     /* the call of the step in which the fault occurs, */
    bool at_end;  /* after its last kernel */
    bool replays; /* or the fault occurs in a replay */
} Faulty;

static void fault(void)
{
    setenv("TAPEGRAD_CUDA_ON_HOST_FAULT", "700", 1);
}

static void train_until_fault(void *context)
{
    Faulty *f = context;
    const bool now = f->trainer.calls == f->call;
    if (now && !f->at_end)
        fault();
    train(&f->trainer);
    if (now)
        fault();
}

/* A handler that leaves by longjmp can free everything without a second error, whatever the fault
 * has interrupted. */
TEST(after_a_fault_everything_can_be_freed)
{
    Device *device = test_device();
    if (!device_is_cuda(device))
        return;
    static const char illegal[] = "an illegal memory access was encountered";
    static const char hint[] = "; the fault may be an earlier kernel's: run with "
                               "CUDA_LAUNCH_BLOCKING=1 to find it";
    static const Faulty cases[] = {
        { .call = 0 }, { .call = 1 }, { .call = 1, .at_end = true }, { .call = -1, .replays = true }
    };
    for (volatile int i = 0; i < 4; i++) {
        static Faulty f;
        f = cases[i];
        f.trainer = trainer_new();
        volatile int errors = 0;
        test_expect_error();
        if (!setjmp(test_error_jump)) {
            write_inputs(&f.trainer, 0);
            for (int step = 0; step < 3; step++) {
                if (f.replays && step == 2)
                    fault();
                tape_replay(f.trainer.tape, train_until_fault, &f);
            }
            ck_abort_msg("case %d: no error", i);
        }
        errors++;
        ck_assert_msg(errors == 1, "case %d: freeing raises \"%s\"", i, tapegrad_error());
        ck_assert_msg(strstr(tapegrad_error(), illegal) != NULL, "%s", tapegrad_error());
        if (f.at_end)
            ck_assert_str_eq(tapegrad_error(), "tape_replay: CUDA could not capture the step: an "
                                               "illegal memory access was encountered");
        else
            ck_assert_msg(strstr(tapegrad_error(), hint) != NULL, "%s", tapegrad_error());
        trainer_free(&f.trainer);
        device_release_cached(device);
        tapegrad_on_error(NULL, NULL);
        ck_assert_uint_eq(device_memory(device).current, 0);
        unsetenv("TAPEGRAD_CUDA_ON_HOST_FAULT");
    }
}
#endif

/* ------------------------------------------------------------------------- persistent variables */
enum { PASSES = 3 };

typedef struct Passes {
    Tape *steps, *tape; /* one step of `steps` is PASSES passes of `tape` */
    Tensor *x, *upstream, *out;
} Passes;

/* out = x^2 */
static void square_passes(void *context)
{
    Passes *p = context;
    for (int i = 0; i < PASSES; i++) {
        tape_reset(p->tape);
        p->out = op_multiply(p->tape, p->x, p->x);
        tape_backward_from(p->tape, p->out, p->upstream);
    }
}

TEST(a_replayed_step_may_hold_passes_of_another_tape)
{
    Device *device = test_device();
    const Shape size = shape(2, 3);
    Passes p = { .steps = tape_new(device), .tape = tape_new(device) };
    p.x = tape_persistent_variable(p.tape, TENSOR_REAL, size);
    p.upstream = tape_persistent(p.tape, size);
    for (int step = 0; step < STEPS; step++) {
        const Real *x = test_normal((uint64_t)step, 6), *upstream = test_normal(STEPS, 6);
        tensor_write(p.x, x);
        tensor_write(p.upstream, upstream);
        tape_replay(p.steps, square_passes, &p);
        const Real *out = test_values(p.out), *dx = test_values(tensor_gradient(p.x));
        for (int i = 0; i < 6; i++) {
            ck_assert(out[i] == x[i] * x[i]);
            ck_assert(dx[i] == x[i] * upstream[i] + x[i] * upstream[i]);
        }
    }
    tape_free(p.steps);
    tape_free(p.tape);
    ck_assert_uint_eq(device_memory(device).current, 0);
}

typedef struct Carried {
    Tape *tape;
    Tensor *state, *weight;
} Carried;

static void carry(void *context)
{
    const Carried *c = context;
    Tensor *next = op_add(c->tape, op_multiply(c->tape, c->state, c->weight), c->weight);
    tape_backward(c->tape, tensor_keep(next));
    op_store(c->tape, c->state, next);
}

/* state <- 2 state + 2 */
TEST(a_replayed_step_hands_its_state_to_the_next)
{
    Carried c = { .tape = tape_new(test_device()) };
    c.state = tape_persistent(c.tape, shape(1));
    c.weight = tape_persistent_variable(c.tape, TENSOR_REAL, shape(1));
    tensor_write(c.weight, (Real[]){ 2 });
    for (int step = 1; step <= STEPS; step++) {
        tape_replay(c.tape, carry, &c);
        ck_assert_double_eq((double)test_values(c.state)[0], (double)((2 << step) - 2));
    }
    tape_free(c.tape);
}

TEST(a_persistent_variables_gradient_lives_until_the_reset)
{
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_persistent_variable(tape, TENSOR_REAL, shape(1000));
    const size_t before = device_memory(test_device()).current;
    for (int pass = 0; pass < 2; pass++) {
        tape_backward(tape, op_sum(tape, op_scale(tape, x, 3), ALL_AXES));
        ck_assert(test_values(tensor_gradient(x))[999] == 3);
        tape_reset(tape);
        ck_assert_uint_eq(device_memory(test_device()).current, before);
    }
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        tensor_gradient(x);
        ck_abort_msg("no error");
    }
    tapegrad_on_error(NULL, NULL);
    assert_raises("tape_persistent_variable: a tensor of type 1 has no gradient",
                  tape_persistent_variable(tape, TENSOR_INT32, shape(1)));
    assert_raises("tape_persistent_variable: bf16 needs a tape of that precision; see "
                  "tape_set_precision",
                  tape_persistent_variable(tape, TENSOR_BF16, shape(1)));
    tape_free(tape);
}

/* The sum of a function of one persistent tensor, with its gradient. */
typedef struct Function {
    Tape *tape;
    Tensor *x;
    Tensor *(*call)(Tape *tape, Tensor *x);
} Function;

static void run_function(void *context)
{
    const Function *f = context;
    Tensor *x = op_scale(f->tape, f->x, 1);
    tape_backward(f->tape, op_sum(f->tape, f->call(f->tape, x), ALL_AXES));
}

static void check_names(Precision precision, TensorType type)
{
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, precision);
    const int64_t last = 40000; /* more than is read at a time */
    Real *values = test_zeros(last + 1);
    Function f = { tape, tape_persistent_variable(tape, type, shape(last + 1)), op_sqrt };
    for (int64_t i = 0; i < last; i++)
        values[i] = 1;
    tensor_write(f.x, values);
    ck_assert(!tape_check_finite(tape, false));
    tape_replay(tape, run_function, &f); /* off */
    ck_assert(!tape_check_finite(tape, true));
    assert_raises("op_sqrt: the gradient of input 0 is [40001], and its element 40000 is inf",
                  tape_replay(tape, run_function, &f));
    tape_reset(tape);
    f.call = op_log;
    assert_raises("op_log: output 0 is [40001], and its element 40000 is -inf",
                  tape_replay(tape, run_function, &f));
    tape_reset(tape);
    values[last] = NAN;
    tensor_write(f.x, values);
    assert_raises("op_scale: input 0 is [40001], and its element 40000 is nan",
                  tape_replay(tape, run_function, &f));
    tape_set_recording(tape, false);
    assert_raises("op_exp: input 0 is [40001], and its element 40000 is nan", op_exp(tape, f.x));
    tape_set_recording(tape, true);
    values[last] = 1;
    tensor_write(f.x, values);
    for (int step = 0; step < 3; step++)
        tape_replay(tape, run_function, &f);
    ck_assert_int_eq(tape_replay_kernels(tape), 0);
    ck_assert(tape_check_finite(tape, false));
    for (int step = 0; step < 3; step++)
        tape_replay(tape, run_function, &f);
    ck_assert(!device_is_cuda(test_device()) || tape_replay_kernels(tape) > 0);
    tape_free(tape);
}

TEST(a_check_names_the_first_operation_that_is_not_finite)
{
    check_names(PRECISION_FLOAT32, TENSOR_REAL);
    if (test_has_bf16())
        check_names(PRECISION_BF16, TENSOR_BF16);
}

TEST(a_step_with_a_norm_that_is_not_finite_raises_and_changes_nothing)
{
    static const char not_finite[] =
        "optim_step: the norm of the gradients is nan, expected a finite one; the weights are "
        "unchanged; tape_check_finite finds the operation";
    Trainer trainer = trainer_new();
    Tensor *weights = params_flat_values(trainer.params);
    Real *before = test_values(weights), *wrong = test_values(weights);
    wrong[0] = NAN; /* of the embedding of symbol 0 */
    write_inputs(&trainer, 1);
    for (int replayed = 0; replayed < 2; replayed++) {
        tensor_write(weights, wrong);
        assert_raises(not_finite,
                      replayed ? tape_replay(trainer.tape, train, &trainer) : train(&trainer));
        if (!replayed) /* again */
            assert_raises(not_finite, optim_step(trainer.optimizer));
        ck_assert_mem_eq(test_values(weights), wrong, (size_t)tensor_count(weights) * sizeof(Real));
        ck_assert_int_eq(optim_steps(trainer.optimizer), replayed);
        tape_reset(trainer.tape);
        tape_check_finite(trainer.tape, true);
        assert_raises("op_embedding: input 0 embedding.weight is [7,16], and its element 0 is nan",
                      train(&trainer));
        tape_check_finite(trainer.tape, false);
        tape_reset(trainer.tape);
        tensor_write(weights, before);
        train(&trainer);
        tape_reset(trainer.tape);
    }
    Tensor *x = op_scale(trainer.tape, trainer.head.bias, NAN);
    tape_backward(trainer.tape, op_sum(trainer.tape, x, ALL_AXES));
    params_clip_gradients(trainer.params, 1);
    ck_assert(isnan(params_gradient_norm(trainer.params)));
    params_zero_gradients(trainer.params); /* skips the step */
    tape_reset(trainer.tape);
    train(&trainer);
    trainer_free(&trainer);
}

TEST(writing_bf16_rounds_to_nearest_even)
{
    if (!test_has_bf16())
        return;
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    /* For odd n, 1 + n / 256 is halfway between two bf16 neighbors, which are 1 / 128 apart;
     * NaN stays NaN. */
    const Real numbers[] = { 1, (Real)1.00390625, (Real)1.01171875, (Real)-1.005, NAN };
    const Real expected[] = { 1, 1, (Real)1.015625, (Real)-1.0078125, NAN };
    Tensor *x = tape_persistent_variable(tape, TENSOR_BF16, shape(5));
    tensor_write(x, numbers);
    const Real *found = test_values(x);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(found[i] == expected[i], "%g becomes %g, expected %g", (double)numbers[i],
                      (double)found[i], (double)expected[i]);
    ck_assert(isnan(found[4]));
    tape_backward(tape, op_sum(tape, op_scale(tape, x, 2), ALL_AXES));
    ck_assert_int_eq(tensor_gradient(x)->type, TENSOR_BF16);
    ck_assert(test_values(tensor_gradient(x))[0] == 2);
    tape_reset(tape);
    assert_raises("tape_set_precision: the tape has persistent tensors in bf16, which float32 does "
                  "not compute with",
                  tape_set_precision(tape, PRECISION_FLOAT32));
    tape_free(tape);
}

/* ----------------------------------------------------------------------------------- generation
 * A whole step on the device: its tokens are those that the previous step has sampled. */
enum { LONGEST = 7 };

typedef struct Generator {
    Params *params;
    Embedding symbols, places;
    Transformer transformer;
    Linear head;
    Tape *tape;
    TransformerState *state;
    Tensor *tokens, *place, *history, *logits;
    int calls;
} Generator;

static Generator generator_new(TestKind attention, int64_t sequences)
{
    Device *device = test_device();
    Generator g = { .params = params_new(device, 3), .tape = tape_new(device) };
    const TestConfig config = {
        .layers = 2, .heads = 2, .head_dim = 8, .feed_forward = 24, .attention = attention
    };
    g.symbols = nn_embedding(g.params, "symbols", SYMBOLS, 16);
    g.places = nn_embedding(g.params, "places", LONGEST, 16);
    g.transformer = nn_transformer(g.params, "transformer", test_config(g.params, config));
    g.head = nn_linear(g.params, "head", 16, SYMBOLS);
    g.state = nn_transformer_state(
        &g.transformer, (GenerationConfig){ .sequences = sequences, .max_length = LONGEST });
    g.tokens = tape_persistent_i32(g.tape, shape(sequences));
    g.place = tape_persistent_i32(g.tape, shape(sequences));
    g.history = tape_persistent_i32(g.tape, shape(sequences, LONGEST));
    tape_set_recording(g.tape, false);
    tape_seed(g.tape, 5);
    return g;
}

static void generator_free(Generator *g)
{
    nn_transformer_state_free(g->state);
    tape_free(g->tape);
    params_free(g->params);
}

static void generate(void *context)
{
    Generator *g = context;
    Tape *tape = g->tape;
    g->calls++;
    op_store_i32(tape, g->place, NULL, nn_transformer_state_positions(g->state));
    Tensor *x = op_add(tape, nn_embedding_forward(tape, &g->symbols, g->tokens),
                       nn_embedding_forward(tape, &g->places, g->place));
    x = nn_transformer_step(g->state, x);
    g->logits = nn_linear_forward(tape, &g->head, x);
    Tensor *chosen =
        op_sample(tape, g->logits, (Sampling){ .temperature = 1, .top_k = SYMBOLS - 1 });
    op_store_i32(tape, g->tokens, NULL, chosen);
    op_store_i32(tape, g->history, g->place, chosen);
}

static void assert_same(const Generator *a, const Generator *b)
{
    enum { MOST = 16 * LONGEST };
    int32_t expected[MOST], found[MOST];
    tensor_read_i32(a->history, expected);
    tensor_read_i32(b->history, found);
    ck_assert_mem_eq(expected, found, (size_t)tensor_count(a->history) * sizeof *found);
    ck_assert_mem_eq(test_values(a->logits), test_values(b->logits),
                     (size_t)tensor_count(a->logits) * sizeof(Real));
}

/* Generates twice from the first position, with other draws. */
static void check_generation(TestKind attention, int64_t sequences)
{
    Generator eager = generator_new(attention, sequences);
    Generator replayed = generator_new(attention, sequences);
    for (int step = 0; step < 2 * LONGEST; step++) {
        if (step == LONGEST) {
            nn_transformer_state_reset(eager.state, NN_ALL_SEQUENCES);
            nn_transformer_state_reset(replayed.state, NN_ALL_SEQUENCES);
        }
        tape_reset(eager.tape);
        generate(&eager);
        tape_replay(replayed.tape, generate, &replayed);
        assert_same(&eager, &replayed);
    }
    const bool cuda = device_is_cuda(test_device());
    ck_assert_int_eq(replayed.calls, cuda ? 2 : 2 * LONGEST);
    if (cuda) { /* past max_length nothing is written out of bounds */
        tape_replay(replayed.tape, generate, &replayed);
        const Real *logits = test_values(replayed.logits);
        ck_assert(logits[0] != logits[0]);
    }
    generator_free(&eager);
    generator_free(&replayed);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

TEST(generation_with_sampling_is_one_replayed_step)
{
    check_generation(KIND_CAUSAL_LINEAR, 1);
    check_generation(KIND_CAUSAL_LINEAR, 3);
    check_generation(KIND_CAUSAL_LINEAR, 11);
    check_generation(KIND_CAUSAL_SOFTMAX, 2);
    check_generation(KIND_CAUSAL_SOFTMAX, 11);
}

TEST(what_a_replay_stores_keeps_within_the_bounds)
{
    if (!device_is_cuda(test_device()))
        return;
    Generator g = generator_new(KIND_CAUSAL_LINEAR, 2);
    for (int step = 0; step < 3; step++)
        tape_replay(g.tape, generate, &g);
    const int32_t zeros[2] = { 0 };
    tensor_write_i32(g.tokens, zeros);
    const Real one = 1;
    op_embedding(g.tape, tape_input(g.tape, &one, shape(1, 1)), g.tokens);
    assert_raises("op_store_i32: from may be 0 to 6, expected 0 to 0, as the operations that use "
                  "to need",
                  tape_replay(g.tape, generate, &g));
    generator_free(&g);
}

/* A step that looks up a part of what the host has written. */
typedef struct Lookup {
    Tape *tape;
    Tensor *tokens, *weight, *out;
} Lookup;

static void look_up(void *context)
{
    Lookup *l = context;
    Tensor *parts[2] = { op_slice(l->tape, l->tokens, 0, 1, 2),
                         op_slice(l->tape, l->tokens, 0, 0, 1) };
    Tensor *indices = op_transpose(
        l->tape, op_reshape(l->tape, op_concat(l->tape, parts, 2, 0), shape(1, 3)), 0, 1);
    l->out = op_embedding(l->tape, l->weight, indices);
}

TEST(moved_integers_of_a_replay_keep_within_the_bounds)
{
    Lookup l = { .tape = tape_new(test_device()) };
    l.tokens = tape_persistent_i32(l.tape, shape(3));
    l.weight = tape_persistent(l.tape, shape(4, 1));
    tensor_write(l.weight, (const Real[]){ 10, 11, 12, 13 });
    tape_set_recording(l.tape, false);
    for (int32_t step = 0; step < 4; step++) {
        tensor_write_i32(l.tokens, (int32_t[]){ step, 3, 0 });
        tape_replay(l.tape, look_up, &l);
        assert_values(l.out, shape(3, 1, 1), VALUES(13, 10, (Real)(10 + step)));
    }
    tensor_write_i32(l.tokens, (int32_t[]){ 1, 4, 0 });
    assert_raises(device_is_cuda(test_device())
                      ? "op_transpose: the integers may be 0 to 4, expected 0 to 3, as the "
                        "operations that use the result need"
                      : "op_embedding: indices[0] is 4, expected 0 to 3, the rows of weight",
                  tape_replay(l.tape, look_up, &l));
    tape_free(l.tape);
}

#ifdef TAPEGRAD_CUDA_ON_HOST
typedef struct Computation {
    Tape *tape;
    Tensor *x;
    Real dropout;
} Computation;

static void compute(void *context)
{
    const Computation *c = context;
    op_dropout(c->tape, c->x, c->dropout);
}

/* Only the Philox counter is copied to the device, and only before a step that draws. */
TEST(replays_that_draw_nothing_copy_nothing)
{
    for (int draws = 0; draws < 2 && device_is_cuda(test_device()); draws++) {
        Tape *tape = tape_new(test_device());
        Computation c = { tape, tape_persistent(tape, shape(8)), draws ? (Real)0.5 : 0 };
        for (int step = 0; step < 3; step++)
            tape_replay(tape, compute, &c);
        const int64_t before = tapegrad_cuda_on_host_counts().copies_in;
        for (int step = 0; step < 5; step++)
            tape_replay(tape, compute, &c);
        ck_assert_int_eq(tapegrad_cuda_on_host_counts().copies_in - before, draws ? 5 : 0);
        tape_free(tape);
    }
}
#endif

int main(void)
{
    return test_main("replay", NULL, NULL);
}
