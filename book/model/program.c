/* The numbers of chapter 12 on the weights: where they are, the loss before the first step, and the
 * norms of weights and gradients while the model learns. */
#include "gpt.h"

enum { COLUMNS = 4, MAX_WEIGHTS = 32 };

static void print_first_values(const char *text, uint64_t seed, bool is_second)
{
    Params *others = params_new(device_open("plain"), seed);
    if (is_second)
        nn_embedding(others, "first", 5, WIDTH);
    Real values[SYMBOLS * WIDTH];
    tensor_read(nn_embedding(others, "symbols", SYMBOLS, WIDTH).weight, values);
    printf("%-17s", text);
    for (int i = 0; i < 3; i++)
        printf(" %6.3f", (double)values[i]);
    printf("\n");
    params_free(others);
}

static void print_places(void)
{
    const Tensor *flat = params_flat_values(params);
    printf("[weights]\n  at shape   name\n");
    for (int k = 0; k < params_count(params); k++) {
        const Tensor *weight = params_at(params, k);
        printf("%4d %-7s %s\n", (int)(weight->data - flat->data), shape_text(weight->shape).text,
               weight->name);
    }
    printf("%d weights, in a buffer of %d\n", (int)params_elements(params),
           (int)tensor_count(flat));
}

/* The logits before the first step have a variance near s^2. */
static bool print_start(void)
{
    const double s2 = WIDTH * 0.08 * 0.08 + 1.0 / (3 * WIDTH), L = log(SYMBOLS) + s2 / 2;
    printf("[start_loss]\nln 27              %.3f\nln 27 + s^2 / 2    %.3f\n", log(SYMBOLS), L);
    printf("measured           %.3f\n", test_loss());
    return fabs(test_loss() - L) < 0.05;
}

/* Of the symbols' gradient: a symbol that the batch lacks has a row of zeros. */
static void print_rows(void)
{
    int rows = 0;
    compute_test_gradients();
    const Real *g = tensor_gradient(symbols.weight)->data;
    for (int v = 0; v < SYMBOLS; v++) {
        bool is_zero = true;
        for (int d = 0; d < WIDTH; d++)
            is_zero &= g[v * WIDTH + d] == 0;
        rows += !is_zero;
    }
    printf("[rows]\nrows that are not 0: %d of %d\n", rows, SYMBOLS);
}

static double norm(const Tensor *tensor)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(tensor); i++)
        sum += (double)tensor->data[i] * (double)tensor->data[i];
    return sqrt(sum);
}

static void print_norms(const char *section, double table[MAX_WEIGHTS][COLUMNS])
{
    printf("[%s]\n", section);
    for (int k = 0; k < params_count(params); k++) {
        printf("%-16s", short_name(params_at(params, k)));
        for (int c = 0; c < COLUMNS; c++)
            printf(" %6.3f", table[k][c]);
        printf("\n");
    }
}

int main(void)
{
    printf("[seed]\n");
    print_first_values("seed 1", 1, false);
    print_first_values("seed 1, as second", 1, true);
    print_first_values("seed 2", 2, false);
    begin(/*layers*/ 1);
    print_places();
    const bool right = print_start();
    print_rows();

    static double values[MAX_WEIGHTS][COLUMNS], gradients[MAX_WEIGHTS][COLUMNS];
    static const int steps[COLUMNS] = { 0, 10, 100, 500 };
    printf("[losses]\n");
    for (int c = 0; c < COLUMNS; c++) {
        params_zero_gradients(params);
        while (optim_steps(optimizer) < steps[c])
            train_step();
        printf("step %3d  loss %.3f\n", steps[c], test_loss());
        compute_test_gradients();
        for (int k = 0; k < params_count(params); k++) {
            values[k][c] = norm(params_at(params, k));
            gradients[k][c] = norm(tensor_gradient(params_at(params, k)));
        }
    }
    print_norms("values", values);
    print_norms("gradients", gradients);
    end();
    return !right;
}
