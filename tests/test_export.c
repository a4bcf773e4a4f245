/* examples/language_model: a trained model as a C file. */
#include "examples/language_model/export.h"
#include "tests/language_model.h"

/* A C file of a model, compiled for each kind that can be exported, prints the logits of tokens. */
TEST(an_exported_model_computes_the_logits)
{
    enum { CONTEXT = 9, ITEMS = 5, WIDTH = 10 };
    static const char *const positions[] = { "learned", "rotary", "none" };
    static const int32_t items[ITEMS] = { 'a', 'b', 0xe9, 0x20ac, 0x1f600 };
    static const int32_t tokens[CONTEXT] = { 3, 0, 4, 1, 1, 2, 0, 3, 2 };
    Sentence sentence = { "" };
    Vocabulary vocabulary;
    ck_assert(vocabulary_of_items(&vocabulary, TOKENS_CHARACTERS, ITEMS, items, &sentence));
    static const char printing[] =
        "#define MODEL_NO_MAIN\n#include \"exported.c\"\nint main(void)\n{\n"
        "    static ModelState state;\n    float logits[VOCABULARY];\n    int token;\n"
        "    while (scanf(\"%d\", &token) == 1) {\n"
        "        model_step(&state, token, logits);\n"
        "        for (int i = 0; i < VOCABULARY; i++)\n"
        "            printf(\"%.9g\\n\", (double)logits[i]);\n    }\n}\n";
    write_file("logits.c", printing, strlen(printing));
    for (int kind = 0; kind < 2 * 3; kind++) {
        LanguageOptions options = { .context = CONTEXT, .positions = positions[kind % 3] };
        options.common = (TrainingOptions){ .layers = 2, .heads = 1, .head_dim = WIDTH };
        options.common.attention = kind < 3 ? "linear" : "decay";
        options.common.features = "elu+1";
        Params *params = params_new(test_device(), 7);
        const Model model = model_new(params, &options, &vocabulary);
        for (int i = 0; i < params_count(params); i++) {
            Tensor *weight = params_at(params, i);
            if (weight->requires_grad)
                tensor_write(weight, test_normal((uint64_t)i, tensor_count(weight)));
        }
        FILE *file = fopen(path_of("exported.c"), "w");
        export_model(file, &model, &vocabulary);
        ck_assert_int_eq(fclose(file), 0);
        Tape *tape = tape_new(test_device());
        tape_set_training(tape, false);
        Tensor *x = tape_input_i32(tape, tokens, shape(1, CONTEXT));
        const Real *expected = test_values(model_forward(tape, &model, x));
        char command[512];
        snprintf(command, sizeof command,
                 "cd '%s' && cc -std=c11 -O1 -Wall -Wextra -Wconversion -Wshadow -Werror logits.c "
                 "-lm -o logits && echo 3 0 4 1 1 2 0 3 2 | ./logits >logits.txt",
                 directory);
        ck_assert_int_eq(system(command), 0);
        file = fopen(path_of("logits.txt"), "r");
        Real logits[CONTEXT * ITEMS];
        for (int i = 0; i < CONTEXT * ITEMS; i++) {
            double value;
            ck_assert_int_eq(fscanf(file, "%lf", &value), 1);
            logits[i] = (Real)value;
        }
        fclose(file);
        /* In float the library has an error of its own. */
        assert_close(logits, expected, CONTEXT * ITEMS,
                     sizeof(Real) == sizeof(double) ? 1e-6 : 4e-6);
        tape_free(tape);
        params_free(params);
    }
    vocabulary_free(&vocabulary);
}

TEST(an_exported_model_continues_a_prompt)
{
    assert_runs("language_model train --data @ --attention decay --steps 60 --learning-rate 1e-2 "
                "--save @/decay" TINY);
    assert_runs("language_model export --load @/decay --to @/decay.c");
    char command[512];
    snprintf(command, sizeof command,
             "cd '%s' && cc -O1 decay.c -lm -o decay.out && ./decay.out tick 40 0 >decay.txt && "
             "grep -qE '^tick (tick |tock )*t?[io]?c?k?$' decay.txt",
             directory);
    ck_assert_int_eq(system(command), 0);
}

TEST(models_that_cannot_be_exported_are_refused)
{
    assert_fails(2, "export: expected --to FILE, the C file to write\n", "export --load @/learned");
    assert_fails(2, "export: expected --load FILE, a checkpoint of language_model train\n",
                 "export --to @/model.c");
    assert_fails(2, "learned has --attention softmax, expected linear or decay\n",
                 "export --load @/learned --to @/model.c");
    assert_runs("language_model train --data @ --steps 1 --attention linear --features relu --save "
                "@/relu" TINY);
    assert_fails(2, "relu has --features relu, expected elu+1\n",
                 "export --load @/relu --to @/model.c");
    assert_runs(
        "language_model prepare --train @/words --vocabulary-size 260 --vocabulary @/pairs");
    assert_runs("language_model train --tokens pairs --vocabulary @/pairs --data @ --steps 1 "
                "--attention linear --save @/linear_pairs" TINY);
    assert_fails(2, "linear_pairs has --tokens pairs, expected bytes or characters\n",
                 "export --load @/linear_pairs --to @/model.c");
    assert_runs("language_model train --data @ --steps 1 --attention decay --save @/one" TINY);
    assert_fails(1, "/none/model.c", "export --load @/one --to @/none/model.c");
}

int main(void)
{
    return run_program_tests("export", setup);
}
