/* The state of generation: its files, its memory, and what exhausted memory leaves of it. */
#include "ext/decode/tests/generation.h"

#include <errno.h>
#include <unistd.h>

/* Counts the calls of malloc in programs and libraries. The sanitizers have a malloc of their own,
 * and the emulated CUDA device allocates memory for its threads. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
static int64_t mallocs;
void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes)
{
    __atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(bytes);
}
#else
static const int64_t mallocs;
#endif

/* ---------------------------------------------------------------------------------------- files */
static char path[64];

static const char *file_path(void)
{
    snprintf(path, sizeof path, "/tmp/tapegrad-generation-%ld", (long)getpid());
    return path;
}

TEST(a_loaded_state_continues_as_the_saved_one_would)
{
    for (int j = 0; j < KINDS; j++) {
        const Setup u = begin_with(kinds[j], 3, LENGTH);
        TransformerState *saved = new_state(3, LENGTH);
        step_through(saved, u.s, 0, 3);
        nn_transformer_state_reset(saved, 1);
        assert_ok(nn_transformer_state_save(saved, file_path()));
        nn_transformer_state_free(saved);
        step_through(u.state, u.s, 0, 1);
        assert_ok(nn_transformer_state_load(u.state, path));
        assert_positions(u.state, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 3, 0, 3 });
        ragged_step(u.state, u.s, (int32_t[]){ 4, 1, 4 });
        end_with(u);
        unlink(path);
    }
}

/* Prefills a state in one precision, loads its file in the other, and continues. */
TEST(a_kv_cache_in_bf16_is_filled_by_a_prompt_and_saved_for_either_precision)
{
    for (int j = 0; j < 4 && stored_on(test_device()) == 3; j++) {
        stored = all_stored[j % 2 ? 2 : 0];
        const Setup u = begin_with(softmax, 2, LENGTH);
        nn_transformer_prefill(tape, u.state, prompt(cut(u.s, u.s.x, 0, 4), 2, 4), NULL);
        assert_ok(nn_transformer_state_save(u.state, file_path()));
        stored = all_stored[j / 2 ? 2 : 0];
        TransformerState *loaded = new_state(2, LENGTH);
        assert_ok(nn_transformer_state_load(loaded, path));
        const Real *out = test_values(nn_transformer_step(loaded, rows(cut(u.s, u.s.x, 4, 1), 2)));
        assert_close(out, cut(u.s, u.s.out, 4, 1), 2 * width, j ? BF16_TOLERANCE : TOLERANCE);
        nn_transformer_state_free(loaded);
        end_with(u);
        unlink(path);
    }
}

static void refuse(TransformerState *state, const char *sentence)
{
    ck_assert(!nn_transformer_state_load(state, path));
    ck_assert_msg(strstr(tapegrad_error(), sentence) != NULL, "\"%s\" lacks \"%s\"",
                  tapegrad_error(), sentence);
}

/* Saves the state of another transformer, number of sequences or max_length. */
static void save_other(int64_t sequences, int64_t max_length)
{
    TransformerState *state = new_state(sequences, max_length);
    ck_assert(nn_transformer_state_save(state, file_path()));
    nn_transformer_state_free(state);
}

/* Saves the state with other counts in the file. */
static void save_with_counts(const TransformerState *state, const int32_t *counts)
{
    ck_assert(nn_transformer_state_save(state, file_path()));
    TensorFile *file = tensor_file_open(path);
    FileEntry entries[16];
    static Real data[16][4096];
    const int count = tensor_file_count(file);
    for (int i = 0; i < count; i++) {
        entries[i] = *tensor_file_entry(file, i);
        ck_assert_int_le(shape_count(entries[i].shape), 4096);
        ck_assert(tensor_file_read_bytes(file, entries[i].name, data[i]));
        entries[i].data = strcmp(entries[i].name, "counts") == 0 ? (const void *)counts : data[i];
    }
    ck_assert(tensor_file_save(entries, count, NULL, 0, path));
    tensor_file_close(file);
}

TEST(a_file_that_does_not_fit_changes_nothing)
{
    for (int j = 0; j < 2; j++) {
        const Setup u = begin_with(kinds[j], 2, LENGTH);
        step_through(u.state, u.s, 0, 2);
        save_other(3, LENGTH);
        refuse(u.state, "shape");
        save_other(2, LENGTH + 1);
        refuse(u.state, j ? "shape" : "max_length is 7, expected 6");
        save_with_counts(u.state, (int32_t[]){ 1, -1 });
        refuse(u.state, "counts[1] is -1, expected 0 to 6");
        save_with_counts(u.state, (int32_t[]){ 7, 1 });
        refuse(u.state, "counts[0] is 7, expected 0 to 6");
        ck_assert(nn_transformer_state_save(u.state, path));
        for (long length = 200; length >= 3; length -= 197) {
            ck_assert_int_eq(truncate(path, length), 0);
            refuse(u.state, path);
        }
        unlink(path);
        refuse(u.state, strerror(ENOENT));
        step_through(u.state, u.s, 2, LENGTH);
        end_with(u);
    }
}

TEST(another_transformers_file_is_refused)
{
    const struct {
        TestConfig config;
        const char *sentence;
    } others[] = {
        { softmax, "layers.0.sums" },
        { { .layers = 3 }, "has 5 entries, expected 4: it belongs to another transformer" },
    };
    for (int i = 0; i < 2; i++) {
        begin(others[i].config);
        save_other(2, LENGTH);
        end();
        const Setup u = begin_with(linear, 2, LENGTH);
        refuse(u.state, others[i].sentence);
        end_with(u);
    }
    unlink(path);
}

/* --------------------------------------------------------------------------------------- memory */
static void check_memory(TestConfig config, int calls, int64_t B)
{
    begin(config);
    if (B == MANY)
        test_set_threads(2);
    const int max_length = device_is_cuda(device) ? 6 : 40; /* the emulated device is slow */
    TransformerState *state = new_state(B, max_length);
    Tensor *x = tape_persistent(tape, shape(B, width));
    tensor_write(x, test_normal(2, B * width));
    device_reset_peak(device);
    for (int n = 0; n < calls; n++)
        nn_transformer_step(state, x);
    const DeviceMemory first = device_memory(device);
    const int64_t mallocs_first = mallocs;
    device_reset_peak(device);
    for (int n = calls; n < max_length; n++)
        nn_transformer_step(state, x);
    const int64_t mallocs_last = mallocs;
    const DeviceMemory last = device_memory(device);
    ck_assert_uint_eq(last.current, first.current);
    ck_assert_uint_eq(last.peak, first.peak);
    ck_assert_uint_eq(last.reserved, first.reserved);
    if (!device_is_cuda(device))
        ck_assert_int_eq(mallocs_last, mallocs_first);
    nn_transformer_state_free(state);
    end();
}

/* A step by operations allocates in the second call, too. */
TEST(memory_stays_what_it_is_after_the_first_steps)
{
    const bool cuda = device_is_cuda(test_device()), engine = cuda || has_cpu_engine(test_device());
    for (int j = 0; j < (cuda ? 2 : KINDS); j++) {
        check_memory(kinds[j], engine && j < 2 ? 1 : 2, 1);
        check_memory(kinds[j], engine && j < 2 ? 1 : 2, MANY);
    }
}

static void check_size(TestConfig config)
{
    begin(config);
    TransformerState *state = new_state(2, 4);
    const size_t before = device_memory(device).current;
    nn_transformer_state_free(state);
    state = new_state(2, 100000);
    ck_assert_uint_eq(device_memory(device).current, before);
    nn_transformer_state_free(state);
    end();
}

TEST(the_state_of_linear_attention_does_not_grow_with_max_length)
{
    check_size(linear);
}

TEST(the_kv_cache_of_a_window_does_not_grow_with_max_length)
{
    check_size((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .softmax = { 3, .sinks = 1 } });
}

/* Bytes that a state of one sequence adds. */
static size_t state_memory(GenerationConfig config)
{
    const size_t before = device_memory(device).current;
    TransformerState *state = nn_transformer_state(&transformer, config);
    const size_t added = device_memory(device).current - before;
    nn_transformer_state_free(state);
    return added;
}

TEST(the_kv_cache_of_a_longer_window_is_that_of_max_length)
{
    static const int64_t windows[] = { 97, 100, INT64_MAX };
    size_t bytes[3];
    for (int i = 0; i < 3; i++) {
        begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX,
                            .softmax = { windows[i], .sinks = 3 } });
        bytes[i] = state_memory((GenerationConfig){ .max_length = 100 });
        end();
    }
    ck_assert_uint_eq(bytes[1], bytes[0]);
    ck_assert_uint_eq(bytes[2], bytes[0]);
}

TEST(in_bf16_the_kv_cache_takes_half_the_memory)
{
    for (int j = 0; j < 2 && stored_on(test_device()) == 3; j++) {
        begin(kinds[j]);
        const GenerationConfig in_bf16 = { .max_length = 100000, .precision = PRECISION_BF16 };
        nn_transformer_state_free(nn_transformer_state(&transformer, in_bf16)); /* bf16 weights */
        const size_t real = state_memory((GenerationConfig){ .max_length = 100000 });
        const double share = (double)state_memory(in_bf16) / (double)real;
        ck_assert_msg(j == 0 ? share == 1 : share > 0.49 && share < 0.52, "%g", share);
        end();
    }
}

/* From the current position of the sequences: prefill of 3 positions at position 0, then decode
 * steps up to position 5. Returns the last result. */
static const Real *prompt_and_steps(TransformerState *state, Sequences s)
{
    int32_t n[2];
    tensor_read_i32(nn_transformer_state_positions(state), n);
    ck_assert_int_eq(n[0], n[1]);
    if (n[0] == 0) {
        nn_transformer_prefill(tape, state, prompt(cut(s, s.x, 0, 3), s.B, 3), NULL);
        n[0] = 3;
    }
    ck_assert_int_ge(n[0], 3);
    Tensor *out = NULL;
    for (; n[0] < 5; n[0]++)
        out = nn_transformer_step(state, rows(cut(s, s.x, n[0], 1), s.B));
    const Real *result = test_values(out);
    tape_reset(tape);
    return result;
}

/* Makes the n-th allocation fail; the failure changes nothing, and generation
 * continues from there. */
static bool fails_and_recovers(Sequences s, int n, const Real *expected)
{
    static TransformerState *state;
    state = NULL;
    volatile bool raised = false;
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        device_fail_allocation(n);
        state = new_state(s.B, LENGTH);
        prompt_and_steps(state, s);
    } else {
        raised = true;
    }
    tapegrad_on_error(NULL, NULL);
    const bool happened = device_fail_allocation(0);
    ck_assert_int_eq(raised, happened);
    if (raised) {
        assert_exhausted();
        tape_reset(tape);
        state = state ? state : new_state(s.B, LENGTH);
        ck_assert_mem_eq(prompt_and_steps(state, s), expected,
                         (size_t)(s.B * width) * sizeof(Real));
    }
    nn_transformer_state_free(state);
    return happened;
}

TEST(exhausted_memory_changes_nothing)
{
    for (int j = 0; j < 2 * stored_on(test_device()); j++) {
        begin(kinds[j % 2]);
        stored = all_stored[j / 2];
        Sequences s = sequences_new(2, LENGTH);
        TransformerState *state = new_state(2, LENGTH);
        const Real *expected = prompt_and_steps(state, s);
        nn_transformer_state_free(state);
        int n = 1;
        while (fails_and_recovers(s, n, expected))
            n++;
        ck_assert_int_gt(n, 8);
        end();
    }
}

TEST(exhausted_memory_spoils_no_file)
{
    begin(linear);
    TransformerState *state = new_state(2, LENGTH);
    ck_assert(nn_transformer_state_save(state, file_path()));
    for (int loading = 0; loading < 2; loading++)
        for (int n = 1;; n++) {
            device_fail_allocation(n);
            const bool ok = loading ? nn_transformer_state_load(state, path)
                                    : nn_transformer_state_save(state, path);
            const bool happened = device_fail_allocation(0);
            ck_assert_int_eq(ok, !happened);
            if (!happened)
                break;
            assert_exhausted();
        }
    unlink(path);
    nn_transformer_state_free(state);
    end();
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("generation_state", NULL, NULL);
}
