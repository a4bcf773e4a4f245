/* Misuse of generation raises: transformers without a state, configs, inputs that do not fit. */
#include "ext/decode/tests/generation.h"

/* The error sentences' beginnings. */
#define STATE "nn_transformer_state: "
#define STEP "nn_transformer_step: "
#define PREFILL "nn_transformer_prefill: "
#define COPY "nn_transformer_state_copy: "

TEST(states_are_of_causal_linear_or_softmax_attention)
{
    static const struct {
        TestKind kind;
        const char *sentence;
    } cases[] = {
#define REFUSED(kind, name)                                                                        \
    { kind, "nn_transformer_state: the transformer's attention is " name                           \
            ", expected causal linear, gated linear, causal softmax or the delta rule" }
        REFUSED(KIND_LINEAR, "linear"),
        REFUSED(KIND_SOFTMAX, "softmax"),
        REFUSED(KIND_CAUSAL_LSH, "causal LSH"),
        REFUSED(KIND_LSH, "LSH"),
    };
    for (int i = 0; i < 4; i++) {
        begin((TestConfig){ .attention = cases[i].kind });
        assert_raises(cases[i].sentence, new_state(1, LENGTH));
        end();
    }
    begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .softmax = { .prefix = 2 } });
    assert_raises(STATE "the transformer's attention is prefix softmax, expected causal linear, "
                        "gated linear, causal softmax or the delta rule",
                  new_state(1, LENGTH));
    end();
    begin((TestConfig){ .attention = KIND_CAUSAL_SOFTMAX, .decay = DECAY_CONSTANT });
    assert_raises(STATE "layer 0 is softmax attention with a decay, which has no KV cache",
                  new_state(1, LENGTH));
    transformer.layers = 0;
    assert_raises(STATE "the transformer has no layers; see nn_transformer", new_state(1, LENGTH));
    end();
}

TEST(the_debug_mode_reports_freed_weights)
{
    setenv("TAPEGRAD_DEBUG", "1", 1);
    begin(softmax);
    TransformerState *state = new_state(1, LENGTH);
    Tensor *x = tape_input(tape, test_normal(1, width), shape(1, width));
    params_free(params);
    assert_raises(STEP "the weights cannot be used after params_free",
                  nn_transformer_step(state, x));
    nn_transformer_state_free(state);
    tape_free(tape);
}

TEST(gates_decode_in_float32)
{
    if (!has_cpu_engine(test_device()))
        return;
    begin((TestConfig){ .attention = KIND_DELTA_RULE });
    for (int i = 1; i < STORED; i++) {
        stored = all_stored[i];
        assert_raises(i == 1 ? STATE "int8_weights are not available for layers that differ, or "
                                     "have a window, a learned sink, gates other than a decay, or "
                                     "rotary positions"
                             : STATE "bf16 is not available for layers that differ, or have a "
                                     "window, a learned sink, gates other than a decay, or rotary "
                                     "positions",
                      new_state(1, LENGTH));
    }
    end();
}

TEST(a_config_must_make_sense)
{
    const GenerationConfig in_bf16 = { .precision = PRECISION_BF16 };
    const GenerationConfig in_tf32 = { .precision = PRECISION_TF32 };
    begin(linear);
    assert_raises(STATE "sequences is -1, expected 1 to 2147483646, or 0 for the default",
                  new_state(-1, LENGTH));
    assert_raises(STATE "max_length is 2147483647, expected 1 to 2147483646, or 0 for the default",
                  new_state(1, INT32_MAX));
    const GenerationConfig in_nothing = { .precision = (Precision)3 };
    const GenerationConfig in_int8 = { .int8_weights = true };
    assert_raises(STATE "there is no precision 3", nn_transformer_state(&transformer, in_nothing));
#ifdef TAPEGRAD_DOUBLE
    assert_raises(STATE "tf32 is not available in a double-precision build",
                  nn_transformer_state(&transformer, in_tf32));
    assert_raises(STATE "bf16 is not available in a double-precision build",
                  nn_transformer_state(&transformer, in_bf16));
#else
    char sentence[100];
    snprintf(sentence, sizeof sentence, STATE "bf16 is on the CPU only, the transformer is on %s",
             device_name(device));
    if (!has_cpu_engine(device))
        assert_raises(sentence, nn_transformer_state(&transformer, in_bf16));
    Transformer foreign = transformer;
    foreign.layer[1].ff2.weight = tape_persistent(tape, foreign.layer[1].ff2.weight->shape);
    if (has_cpu_engine(device))
        assert_raises(STATE
                      "bf16 needs weights of a Params, this one is [15,37] and belongs to none",
                      nn_transformer_state(&foreign, in_bf16));
    if (has_cpu_engine(device))
        assert_raises(STATE "tf32 needs a CUDA device, the transformer is on cpu",
                      nn_transformer_state(&transformer, in_tf32));
#endif
    char int8_sentence[100];
    snprintf(int8_sentence, sizeof int8_sentence,
             STATE "int8_weights are on the CPU only, the transformer is on %s",
             device_name(device));
    if (!has_cpu_engine(device))
        assert_raises(int8_sentence, nn_transformer_state(&transformer, in_int8));
    assert_raises("nn_transformer_step: the state is NULL", nn_transformer_step(NULL, NULL));
    assert_raises("nn_transformer_prefill: the state is NULL",
                  nn_transformer_prefill(tape, NULL, NULL, NULL));
    assert_raises("nn_transformer_state_reset: the state is NULL",
                  nn_transformer_state_reset(NULL, 0));
    assert_raises(STATE "the transformer is NULL",
                  nn_transformer_state(NULL, (GenerationConfig){ 0 }));
    TransformerState *state = nn_transformer_state(&transformer, (GenerationConfig){ 0 });
    ck_assert_int_eq((int)tensor_count(nn_transformer_state_positions(state)), 1);
    nn_transformer_state_free(state);
    nn_transformer_state_free(NULL);
    end();
}

TEST(a_steps_x_must_fit)
{
    const Setup u = begin_with(linear, 2, 1);
    assert_raises(STEP "x is NULL", nn_transformer_step(u.state, NULL));
    assert_raises(STEP "x is [3,15], expected [2,15]: [sequences, width]",
                  nn_transformer_step(u.state, rows(u.s.x, 3)));
    assert_raises(STEP "x requires a gradient, and none passes through a step; call "
                       "tape_set_recording(tape, false) before x is made",
                  nn_transformer_step(u.state, tape_variable(tape, u.s.x, shape(2, width))));
    assert_raises(STEP "x has dtype int32, expected Real",
                  nn_transformer_step(u.state, nn_transformer_state_positions(u.state)));
    Tensor *x = rows(u.s.x, 2);
    nn_transformer_step(u.state, x);
    assert_raises(STEP "sequence 0 already has max_length (1) positions",
                  nn_transformer_step(u.state, x));
    nn_transformer_state_reset(u.state, 0);
    assert_raises(STEP "sequence 1 already has max_length (1) positions",
                  nn_transformer_step(u.state, x));
    assert_positions(u.state, (int32_t[]){ 0, 0 });
    end_with(u);
}

static Tensor *lengths(int64_t B, int32_t b0, int32_t b1)
{
    return tape_input_i32(tape, (int32_t[]){ b0, b1, 1 }, shape(B));
}

TEST(a_prompt_must_fit)
{
    const Setup u = begin_with(softmax, 2, 3);
    TransformerState *state = u.state;
    Tensor *x = prompt(u.s.x, 2, 3);
    tape_set_recording(tape, true);
    assert_raises(PREFILL "the tape is recording, and no gradient passes into a state; call "
                          "tape_set_recording(tape, false) first",
                  nn_transformer_prefill(tape, state, x, NULL));
    tape_set_recording(tape, false);
    tape_set_training(tape, true);
    nn_transformer_prefill(tape, state, x, NULL); /* no dropout: training changes nothing */
    nn_transformer_state_reset(state, NN_ALL_SEQUENCES);
    transformer.layer[1].dropout = nn_dropout((Real)0.5);
    TransformerState *with_dropout = new_state(2, 3);
    assert_raises(PREFILL "the tape is training, and decode steps have no dropout; call "
                          "tape_set_training(tape, false) first",
                  nn_transformer_prefill(tape, with_dropout, x, NULL));
    tape_set_training(tape, false);
    nn_transformer_prefill(tape, with_dropout, x, NULL);
    nn_transformer_state_free(with_dropout);
    assert_raises(PREFILL "x is [2,15], expected [2, N, 15]: [sequences, N, width]",
                  nn_transformer_prefill(tape, state, rows(u.s.x, 2), NULL));
    assert_raises(PREFILL "sequence 0 would have 4 positions, max_length is 3",
                  nn_transformer_prefill(tape, state, prompt(u.s.x, 2, 4), NULL));
    assert_raises(PREFILL "lengths is [3], expected [2]: one per sequence",
                  nn_transformer_prefill(tape, state, x, lengths(3, 1, 1)));
    assert_raises(PREFILL "lengths[1] is 4, expected 1 to 3, the number of positions",
                  nn_transformer_prefill(tape, state, x, lengths(2, 1, 4)));
    nn_transformer_prefill(tape, state, x, lengths(2, 1, 2));
    nn_transformer_state_reset(state, 0);
    assert_raises(PREFILL "sequence 1 already has 2 positions; softmax attention prefills empty "
                          "sequences only",
                  nn_transformer_prefill(tape, state, x, NULL));
    end_with(u);
}

TEST(copies_and_resets_must_fit)
{
    const Setup u = begin_with(linear, 2, 3);
    TransformerState *state = u.state, *shorter = new_state(1, 1);
    assert_raises("nn_transformer_state_reset: there is no sequence 2, the state has 2",
                  nn_transformer_state_reset(state, 2));
    assert_raises(COPY "there is no sequence -1, the state has 2",
                  nn_transformer_state_copy(state, -1, state, 0));
    assert_raises(COPY "there is no sequence 1, the state has 1",
                  nn_transformer_state_copy(state, 0, shorter, 1));
    Tensor *x = rows(u.s.x, 2);
    nn_transformer_step(state, x);
    nn_transformer_state_copy(shorter, 0, state, 0);
    nn_transformer_step(state, x);
    assert_raises(COPY "sequence 0 has 2 positions, max_length of the destination is 1",
                  nn_transformer_state_copy(shorter, 0, state, 0));
    Params *others = params_new(device, 1);
    transformer = nn_transformer(others, "", test_config(others, linear));
    TransformerState *other = new_state(1, 3);
    assert_raises(COPY "the states belong to different transformers",
                  nn_transformer_state_copy(state, 0, other, 0));
    nn_transformer_state_free(other);
    nn_transformer_state_free(shorter);
    params_free(others);
    end_with(u);
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("generation_misuse", NULL, NULL);
}
