/* Checkpoints: a run that stops and continues, the contents of a file, and files
 * that are refused. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- the model
 * Two linear layers with dropout between them learn y from x, both random and new in each step. */
enum { BATCH = 4, IN = 3, HIDDEN = 5, OUT = 2 };

typedef struct Model {
    Params *params;
    Linear first, second;
    Dropout dropout;
    Optimizer *optimizer;
    Tape *tape;
} Model;

static Optimizer *make(TestOptimizer kind, Params *params, Schedule schedule)
{
    AdamConfig config = optim_adam_config(0.01);
    config.weight_decay = kind >= ADAMW ? 0.1 : 0;
    config.schedule = schedule;
    return test_optimizer(kind, params, config);
}

static Model model_new(TestOptimizer kind, Schedule schedule, uint64_t seed)
{
    Model model = { .params = params_new(test_device(), seed) };
    model.first = nn_linear(model.params, "first", IN, HIDDEN);
    model.second = nn_linear(model.params, "second", HIDDEN, OUT);
    model.dropout = nn_dropout(0.25);
    model.optimizer = make(kind, model.params, schedule);
    model.tape = tape_new(test_device());
    tape_seed(model.tape, seed);
    return model;
}

static void model_free(Model model)
{
    tape_free(model.tape);
    optim_free(model.optimizer);
    params_free(model.params);
}

static Tensor *loss(Model *model, int64_t step)
{
    Tape *tape = model->tape;
    const Real *numbers = test_normal((uint64_t)step, BATCH * (IN + OUT));
    Tensor *x = tape_input(tape, numbers, shape(BATCH, IN));
    Tensor *y = tape_input(tape, numbers + BATCH * IN, shape(BATCH, OUT));
    x = op_tanh(tape, nn_linear_forward(tape, &model->first, x));
    x = nn_dropout_forward(tape, &model->dropout, x);
    return op_mean_squared_error(tape, nn_linear_forward(tape, &model->second, x), y);
}

/* Trains up to last_step, wherever the optimizer stands; the observed values rise,
 * fall and rise. */
static void train(Model *model, int64_t last_step)
{
    while (optim_steps(model->optimizer) < last_step) {
        const int64_t step = optim_steps(model->optimizer) + 1;
        tape_backward(model->tape, loss(model, step));
        optim_step(model->optimizer);
        tape_reset(model->tape);
        optim_observe(model->optimizer, (double)(step % 7) - (double)step / 8);
    }
}

/* ---------------------------------------------------------------------------------------- files */
static char path[] = "/tmp/tapegrad-checkpoint-XXXXXX", other_path[] = "/tmp/tapegrad-other-XXXXXX";

static void begin(void)
{
    close(mkstemp(path));
    close(mkstemp(other_path));
}

static void end(void)
{
    unlink(path);
    unlink(other_path);
}

static void save(Model *model)
{
    assert_ok(optim_save(model->optimizer, model->tape, NULL, 0, path));
}

static void load(Model *model)
{
    assert_ok(optim_load(model->optimizer, model->tape, path));
}

typedef struct Bytes {
    char *data;
    size_t size;
} Bytes;

static Bytes read_bytes(const char *from)
{
    FILE *file = fopen(from, "rb");
    ck_assert_ptr_nonnull(file);
    fseek(file, 0, SEEK_END);
    Bytes bytes = { .size = (size_t)ftell(file) };
    bytes.data = malloc(bytes.size + 1);
    rewind(file);
    ck_assert_uint_eq(fread(bytes.data, 1, bytes.size, file), bytes.size);
    fclose(file);
    return bytes;
}

/* Writes a new file: overwriting an existing one and closing it may wait for the disk. */
static void write_bytes(const char *to, Bytes bytes, size_t count)
{
    unlink(to);
    FILE *file = fopen(to, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes.data, 1, count, file), count);
    fclose(file);
}

/* All state that a checkpoint holds: equal bytes mean equal state. */
static Bytes state_of(Model *model)
{
    ck_assert(optim_save(model->optimizer, model->tape, NULL, 0, other_path));
    return read_bytes(other_path);
}

/* --------------------------------------------------------------------------------------- resume */
TEST(a_resumed_run_continues_bitwise)
{
    const int64_t drops[] = { 4, 15 };
    const Schedule schedules[] = { optim_constant(), optim_warm_up(5), optim_drops(0.5, 2, drops),
                                   optim_cosine(5, 18, 0.1), optim_plateau(0.5, 1, 0.01) };
    for (TestOptimizer kind = 0; kind < OPTIMIZERS; kind++)
        for (int j = 0; j < (kind == SCHEDULE_FREE ? 2 : 5); j++) {
            Model whole = model_new(kind, schedules[j], 1);
            Model again = model_new(kind, schedules[j], 1);
            Model start = model_new(kind, schedules[j], 1);
            Model rest = model_new(kind, schedules[j], 2);
            train(&whole, 20);
            train(&again, 20);
            assert_identical_weights(whole.params, again.params);
            train(&start, 10);
            save(&start);
            train(&rest, 3); /* any state before the load */
            tape_backward(rest.tape, loss(&rest, 4));
            tape_reset(rest.tape);
            load(&rest);
            ck_assert_int_eq(optim_steps(rest.optimizer), 10);
            ck_assert(!rest.first.weight->has_gradient);
            train(&rest, 20);
            assert_identical_weights(rest.params, whole.params);
            ck_assert(optim_learning_rate(rest.optimizer) == optim_learning_rate(whole.optimizer));
            ck_assert(tape_random(rest.tape).counter == tape_random(whole.tape).counter);
            model_free(whole);
            model_free(again);
            model_free(start);
            model_free(rest);
        }
}

TEST(a_new_base_of_the_learning_rate_is_kept)
{
    Model a = model_new(ADAM, optim_constant(), 1), b = model_new(ADAM, optim_constant(), 2);
    const double rates[] = { 0.1, 0, 1e-37, 3e38, 1 };
    for (int i = 0; i < 5; i++) {
        optim_set_learning_rate(a.optimizer, rates[i]);
        save(&a);
        load(&b);
        ck_assert(optim_learning_rate(b.optimizer) == rates[i]);
    }
    model_free(a);
    model_free(b);
}

TEST(another_schedule_may_continue_a_run)
{
    Model a = model_new(ADAM, optim_constant(), 1);
    train(&a, 10);
    save(&a);
    Model b = model_new(ADAM, optim_cosine(0, 20, 0), 2);
    load(&b);
    const double factor = (1 + cos(acos(-1) * 11 / 20)) / 2;
    ck_assert_double_eq_tol(optim_learning_rate(b.optimizer), 0.01 * factor, 1e-9);
    Model c = model_new(ADAM, optim_plateau(0.5, 0, 0), 2);
    load(&c);
    ck_assert(optim_learning_rate(c.optimizer) == 0.01);
    optim_observe(c.optimizer, 3);
    optim_observe(c.optimizer, 3);
    ck_assert(optim_learning_rate(c.optimizer) == 0.01 / 2);
    model_free(a);
    model_free(b);
    model_free(c);
}

/* ---------------------------------------------------------------------------- what a file holds */
static void assert_text(const TensorFile *file, const char *key, const char *expected)
{
    const char *text = tensor_file_metadata(file, key);
    ck_assert_msg(text && strcmp(text, expected) == 0, "%s is %s, expected %s", key,
                  text ? text : "missing", expected);
}

TEST(a_file_holds_names_state_and_texts)
{
    Model model = model_new(RADAM, optim_plateau(0.5, 1, 0), 1);
    train(&model, 2);
    tape_set_random(model.tape, (Random){ UINT64_MAX, UINT64_MAX - 1, (uint64_t)1 << 63 });
    optim_set_learning_rate(model.optimizer, 0.375);
    const FileMetadata texts[] = { { "preset", "small" }, { "note", "\"ä\"\n" } };
    assert_ok(optim_save(model.optimizer, model.tape, texts, 2, path));
    TensorFile *file = tensor_file_open(path);
    ck_assert_int_eq(tensor_file_count(file), 12);
    static const char *const parts[] = { "", "optimizer.m.", "optimizer.v." };
    for (int i = 0; i < 12; i++) {
        const Tensor *weight = params_at(model.params, i % 4);
        char name[64];
        snprintf(name, sizeof name, "%s%s", parts[i / 4], weight->name);
        const FileEntry *entry = tensor_file_find(file, name);
        ck_assert_ptr_nonnull(entry);
        ck_assert(shape_equal(entry->shape, weight->shape));
    }
    assert_text(file, "tapegrad.optimizer", "radam");
    assert_text(file, "tapegrad.steps", "2");
    assert_text(file, "tapegrad.learning_rate", "0x3p-3");
    assert_text(file, "tapegrad.schedule", "plateau");
    assert_text(file, "tapegrad.plateau.best", "0x7p-3"); /* 1 - 1 / 8; then 2 - 2 / 8 */
    assert_text(file, "tapegrad.plateau.bad", "1");
    assert_text(file, "tapegrad.plateau.factor", "0x1p0");
    assert_text(file, "tapegrad.random.seed", "18446744073709551615");
    assert_text(file, "tapegrad.random.stream", "18446744073709551614");
    assert_text(file, "tapegrad.random.counter", "9223372036854775808");
    assert_text(file, "tapegrad.momentum", "0x0p0");
    assert_text(file, "tapegrad.nesterov", "0");
    assert_text(file, "preset", "small");
    assert_text(file, "note", "\"ä\"\n");
    const char *beta = tensor_file_metadata(file, "tapegrad.beta2");
    ck_assert((Real)strtod(beta, NULL) == (Real)0.999);
    tensor_file_close(file);
    model_free(model);
}

TEST(keys_of_the_program_must_not_collide)
{
    Model model = model_new(SGD, optim_constant(), 1);
    save(&model);
    Bytes before = read_bytes(path);
    const FileMetadata own = { "tapegrad.steps", "7" }, none = { NULL, "7" };
    const FileMetadata twice[] = { { "a", "1" }, { "a", "2" } };
    char sentence[256];
    ck_assert(!optim_save(model.optimizer, NULL, &own, 1, path));
    snprintf(sentence, sizeof sentence,
             "optim_save: %s: the key \"tapegrad.steps\" starts with \"tapegrad.\", which "
             "is reserved",
             path);
    ck_assert_str_eq(tapegrad_error(), sentence);
    ck_assert(!optim_save(model.optimizer, NULL, NULL, -1, path));
    snprintf(sentence, sizeof sentence, "optim_save: %s: there are -1 texts, expected 0 or more",
             path);
    ck_assert_str_eq(tapegrad_error(), sentence);
    ck_assert(!optim_save(model.optimizer, NULL, NULL, 1, path));
    snprintf(sentence, sizeof sentence, "optim_save: %s: texts is NULL", path);
    ck_assert_str_eq(tapegrad_error(), sentence);
    ck_assert(!optim_save(model.optimizer, NULL, NULL, 0, NULL));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_save: the path is NULL");
    ck_assert(!optim_save(model.optimizer, NULL, &none, 1, path));
    ck_assert(!optim_save(model.optimizer, NULL, twice, 2, path));
    ck_assert(!optim_save(model.optimizer, NULL, NULL, 0, "/tmp/no/such/folder"));
    Bytes after = read_bytes(path);
    ck_assert_uint_eq(after.size, before.size);
    ck_assert_mem_eq(after.data, before.data, before.size);
    free(before.data);
    free(after.data);
    model_free(model);
}

TEST(the_weights_alone_come_from_a_checkpoint_too)
{
    Model a = model_new(RADAM, optim_constant(), 1), b = model_new(RADAM, optim_constant(), 2);
    train(&a, 3);
    save(&a);
    assert_ok(params_load(b.params, path));
    assert_identical_weights(a.params, b.params);
    ck_assert_int_eq(optim_steps(b.optimizer), 0);
    model_free(a);
    model_free(b);
}

/* -------------------------------------------------------------------------------- refused files
 * A victim has made some steps and has gradients that no step has used yet. */
typedef struct Victim {
    Model model;
    Bytes state;
    const Real *gradient;
} Victim;

static Victim victim_new(void)
{
    Victim victim = { .model = model_new(ADAM, optim_plateau(0.5, 1, 0), 2) };
    Model *model = &victim.model;
    train(model, 5);
    tape_backward(model->tape, loss(model, 6));
    tape_reset(model->tape);
    victim.gradient = test_values(tensor_gradient(model->first.weight));
    victim.state = state_of(model);
    return victim;
}

static void victim_free(Victim victim)
{
    free(victim.state.data);
    model_free(victim.model);
}

static void assert_untouched(Victim *victim)
{
    Bytes state = state_of(&victim->model);
    ck_assert_uint_eq(state.size, victim->state.size);
    ck_assert_mem_eq(state.data, victim->state.data, state.size);
    free(state.data);
    ck_assert_mem_eq(test_values(tensor_gradient(victim->model.first.weight)), victim->gradient,
                     IN * HIDDEN * sizeof(Real));
}

/* Fails unless loading is refused with this sentence, where %s stands for the path. */
static void assert_refused(Victim *victim, const char *format)
{
    const char *place = strstr(format, "%s");
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%.*s%s%s", (int)(place - format), format, path, place + 2);
    ck_assert(!optim_load(victim->model.optimizer, victim->model.tape, path));
    ck_assert_str_eq(tapegrad_error(), sentence);
    assert_untouched(victim);
}

/* Writes a checkpoint of a model like the victim's in which the text of key is value, and entry is
 * renamed to name; NULL removes the text or the entry. */
static void write_changed(const char *key, const char *value, const char *entry, const char *name)
{
    static const char *const keys[] = {
        "tapegrad.optimizer",   "tapegrad.steps",          "tapegrad.learning_rate",
        "tapegrad.plateau.bad", "tapegrad.plateau.factor", "tapegrad.plateau.best",
        "tapegrad.random.seed", "tapegrad.random.stream",  "tapegrad.random.counter",
    };
    Model model = model_new(ADAM, optim_plateau(0.5, 1, 0), 1);
    train(&model, 3);
    save(&model);
    model_free(model);
    FileEntry entries[16];
    static Real data[16][64];
    FileMetadata texts[16];
    int entry_count = 0, text_count = 0;
    TensorFile *file = tensor_file_open(path);
    for (int i = 0; i < tensor_file_count(file); i++) {
        FileEntry copy = *tensor_file_entry(file, i);
        ck_assert_int_lt(shape_count(copy.shape), 64);
        assert_ok(tensor_file_read_bytes(file, copy.name, data[i]));
        copy.data = data[i];
        if (entry && strcmp(copy.name, entry) == 0)
            copy.name = name;
        if (copy.name)
            entries[entry_count++] = copy;
    }
    for (int i = 0; i < 9; i++) {
        const bool change = key && strcmp(keys[i], key) == 0;
        const char *text = change ? value : tensor_file_metadata(file, keys[i]);
        if (text)
            texts[text_count++] = (FileMetadata){ keys[i], text };
    }
    ck_assert_int_eq(entry_count + text_count, 12 + 9 - (entry && !name) - (key && !value));
    assert_ok(tensor_file_save(entries, entry_count, texts, text_count, path));
    tensor_file_close(file);
}

#define NO_CHECKPOINT                                                                              \
    "optim_load: %s: there is no metadata \"tapegrad.optimizer\": it is not a checkpoint of "      \
    "optim_save; "                                                                                 \
    "params_load reads weights alone"
#define NO_RANDOM                                                                                  \
    "optim_load: %s: there is no metadata \"tapegrad.random.seed\": it was saved without a tape; " \
    "load "                                                                                        \
    "it with NULL for the tape"

TEST(bad_texts_are_refused)
{
    Victim victim = victim_new();
#define COUNT_RANGE "expected an integer from 0 to 4611686018427387903"
#define RANDOM_RANGE "expected an integer from 0 to 18446744073709551615"
    static const char *const cases[][3] = {
        { "optimizer", NULL, NO_CHECKPOINT },
        { "optimizer", "radam",
          "optim_load: %s: it was saved from the optimizer radam; this one is adam" },
        { "steps", NULL, "optim_load: %s: there is no metadata \"tapegrad.steps\"" },
        { "steps", "", "optim_load: %s: tapegrad.steps is \"\", " COUNT_RANGE },
        { "steps", "-1", "optim_load: %s: tapegrad.steps is \"-1\", " COUNT_RANGE },
        { "steps", " 1", "optim_load: %s: tapegrad.steps is \" 1\", " COUNT_RANGE },
        { "steps", "1.5", "optim_load: %s: tapegrad.steps is \"1.5\", " COUNT_RANGE },
        { "steps", "9223372036854775807",
          "optim_load: %s: tapegrad.steps is \"9223372036854775807\", " COUNT_RANGE },
        { "learning_rate", NULL,
          "optim_load: %s: there is no metadata \"tapegrad.learning_rate\"" },
        { "plateau.best", NULL, "optim_load: %s: there is no metadata \"tapegrad.plateau.best\"" },
        { "plateau.best", "nan",
          "optim_load: %s: tapegrad.plateau.best is \"nan\", expected a number from -inf to inf" },
        { "plateau.bad", "x", "optim_load: %s: tapegrad.plateau.bad is \"x\", " COUNT_RANGE },
        { "plateau.factor", "2",
          "optim_load: %s: tapegrad.plateau.factor is \"2\", expected a number from 0 to 1" },
        { "plateau.factor", "",
          "optim_load: %s: tapegrad.plateau.factor is \"\", expected a number from 0 to 1" },
        { "plateau.factor", "0x1p-1 ",
          "optim_load: %s: tapegrad.plateau.factor is \"0x1p-1 \", expected a number from 0 to 1" },
        { "random.seed", NULL, NO_RANDOM },
        { "random.stream", "0x1",
          "optim_load: %s: tapegrad.random.stream is \"0x1\", " RANDOM_RANGE },
        { "random.counter", "18446744073709551616",
          "optim_load: %s: tapegrad.random.counter is \"18446744073709551616\", " RANDOM_RANGE },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64];
        snprintf(key, sizeof key, "tapegrad.%s", cases[i][0]);
        write_changed(key, cases[i][1], NULL, NULL);
        assert_refused(&victim, cases[i][2]);
    }
    static const char *const rates[] = { "-1", "inf", "nan", "fast", "0x1p2000" };
    for (int i = 0; i < 5; i++) {
        write_changed("tapegrad.learning_rate", rates[i], NULL, NULL);
        ck_assert(!optim_load(victim.model.optimizer, victim.model.tape, path));
        ck_assert(strstr(tapegrad_error(), "tapegrad.learning_rate is") != NULL);
        assert_untouched(&victim);
    }
    victim_free(victim);
}

TEST(other_entries_are_refused)
{
    Victim victim = victim_new();
    write_changed(NULL, NULL, "first.bias", NULL);
    assert_refused(&victim, "tensor_file_read: %s: there is no entry \"first.bias\"");
    write_changed(NULL, NULL, "optimizer.m.first.bias", NULL);
    assert_refused(&victim, "tensor_file_read: %s: there is no entry \"optimizer.m.first.bias\"");
    write_changed(NULL, NULL, "optimizer.v.second.weight", "optimizer.w.second.weight");
    assert_refused(&victim,
                   "tensor_file_read: %s: there is no entry \"optimizer.v.second.weight\"");

    Params *params = params_new(test_device(), 1);
    nn_linear(params, "first", IN, HIDDEN);
    nn_linear(params, "second", HIDDEN, OUT);
    nn_linear(params, "third", 2, 2);
    Optimizer *optimizer = make(ADAM, params, optim_constant());
    ck_assert(optim_save(optimizer, victim.model.tape, NULL, 0, path));
    assert_refused(&victim, "optim_load: %s: there is no weight for the entry "
                            "\"third.weight\"");
    optim_free(optimizer);
    params_free(params);

    params = params_new(test_device(), 1);
    nn_linear(params, "first", IN, HIDDEN);
    nn_linear(params, "second", HIDDEN, OUT + 1);
    optimizer = make(ADAM, params, optim_constant());
    ck_assert(optim_save(optimizer, victim.model.tape, NULL, 0, path));
    assert_refused(&victim, "tensor_file_read: %s: entry \"second.weight\" has shape [3,5], "
                            "expected [2,5]");
    ck_assert(params_save(params, path));
    assert_refused(&victim, NO_CHECKPOINT);
    optim_free(optimizer);
    params_free(params);
    victim_free(victim);
}

TEST(momentum_and_a_tape_must_agree)
{
    Model plain = model_new(SGD, optim_constant(), 1),
          heavy = model_new(MOMENTUM, optim_constant(), 1);
    save(&heavy);
    ck_assert(!optim_load(plain.optimizer, plain.tape, path));
    ck_assert(strstr(tapegrad_error(), "no weight for the entry \"optimizer.m.") != NULL);
    save(&plain);
    ck_assert(!optim_load(heavy.optimizer, heavy.tape, path));
    ck_assert(strstr(tapegrad_error(), "there is no entry \"optimizer.m.first.weight\"") != NULL);
    ck_assert(optim_save(plain.optimizer, NULL, NULL, 0, path));
    ck_assert(!optim_load(plain.optimizer, plain.tape, path));
    ck_assert(strstr(tapegrad_error(), "it was saved without a tape") != NULL);
    ck_assert(optim_load(plain.optimizer, NULL, path));
    save(&plain);
    const Random random = tape_random(plain.tape);
    ck_assert(optim_load(plain.optimizer, NULL, path));
    ck_assert(tape_random(plain.tape).counter == random.counter);
    model_free(plain);
    model_free(heavy);
}

TEST(every_truncation_is_refused)
{
    Victim victim = victim_new();
    write_changed(NULL, NULL, NULL, NULL);
    Bytes whole = read_bytes(path);
    for (size_t size = 0; size < whole.size; size++) {
        write_bytes(path, whole, size);
        ck_assert_msg(!optim_load(victim.model.optimizer, victim.model.tape, path),
                      "%zu of %zu bytes were loaded", size, whole.size);
        if (size % 256 == 0)
            assert_untouched(&victim);
    }
    assert_untouched(&victim);
    unlink(path);
    assert_refused(&victim, "tensor_file_open: %s: No such file or directory");
    write_bytes(path, whole, whole.size);
    load(&victim.model);
    ck_assert_int_eq(optim_steps(victim.model.optimizer), 3);
    free(whole.data);
    victim_free(victim);
}

/* Some damage cannot be detected (a digit of a number), but a refused file must change nothing. */
TEST(damage_that_shows_changes_nothing)
{
    Victim victim = victim_new();
    Bytes own = victim.state;
    int refused = 0, loaded = 0;
    for (size_t i = 0; i < own.size; i += i < 1500 ? 1 : 37)
        for (int bit = 0; bit < 8; bit += 3) {
            own.data[i] ^= (char)(1 << bit);
            write_bytes(path, own, own.size);
            own.data[i] ^= (char)(1 << bit);
            if (optim_load(victim.model.optimizer, victim.model.tape, path)) {
                loaded++;
                write_bytes(path, own, own.size);
                load(&victim.model);
                tape_backward(victim.model.tape, loss(&victim.model, 6));
                tape_reset(victim.model.tape);
                load(&victim.model);
            } else {
                refused++;
            }
        }
    Bytes state = state_of(&victim.model);
    ck_assert_mem_eq(state.data, own.data, own.size);
    free(state.data);
    ck_assert_int_gt(refused, 1000);
    ck_assert_int_gt(loaded, 10);
    victim_free(victim);
}

/* ----------------------------------------------------------------------------- exhausted memory */
TEST(failed_allocations_may_be_repeated)
{
    Model whole = model_new(RADAM, optim_constant(), 1);
    train(&whole, 6);
    for (int saving = 0; saving < 2; saving++)
        for (int n = 1;; n++) {
            Model start = model_new(RADAM, optim_constant(), 1);
            Model rest = model_new(RADAM, optim_constant(), 2);
            train(&start, 3);
            train(&rest, 2);
            if (!saving)
                save(&start);
            Bytes before = state_of(&rest);
            const size_t held = device_memory(test_device()).current;
            device_fail_allocation(n);
            const bool good = saving ? optim_save(start.optimizer, start.tape, NULL, 0, path)
                                     : optim_load(rest.optimizer, rest.tape, path);
            const bool happened = device_fail_allocation(0);
            ck_assert(good == !happened);
            ck_assert_uint_eq(device_memory(test_device()).current, held);
            if (happened) {
                assert_exhausted();
                Bytes after = state_of(&rest);
                ck_assert_mem_eq(after.data, before.data, before.size);
                free(after.data);
                if (saving)
                    save(&start);
                load(&rest);
            } else if (saving) {
                load(&rest);
            }
            train(&rest, 6);
            assert_identical_weights(rest.params, whole.params);
            free(before.data);
            model_free(start);
            model_free(rest);
            if (!happened) {
                ck_assert_int_gt(n, saving ? 5 : 3);
                break;
            }
        }
    model_free(whole);
}

int main(void)
{
    return test_main("checkpoint", begin, end);
}
