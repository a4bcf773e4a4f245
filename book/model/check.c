/* The numbers of chapter 12 on the gradients of all weights, beside differences along random
 * directions. */
#include "gpt.h"

/* weight += h direction */
static void move(Tensor *weight, const Real *direction, double h)
{
    for (int64_t i = 0; i < tensor_count(weight); i++)
        weight->data[i] += (Real)h * direction[i];
}

static double dot(const Real *a, const Real *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

int main(void)
{
    static const char shown[] = "symbols.weight positions.weight query.weight norm1.weight "
                                "ff1.weight head.bias";
    const double h = 2e-3;
    double max_error = 0;
    Random random = random_new(/*seed*/ 1, random_stream("directions"));
    begin(/*layers*/ 1);
    for (int step = 0; step < 200; step++)
        train_step();
    compute_test_gradients();
    printf("[check]\n                    tape  difference\n");
    for (int k = 0; k < params_count(params); k++) {
        static Real r[4 * WIDTH * WIDTH];
        Tensor *weight = params_at(params, k);
        random_normal(&random, r, tensor_count(weight));
        const double along = dot(tensor_gradient(weight)->data, r, tensor_count(weight));
        move(weight, r, h);
        const double up = test_loss();
        move(weight, r, -2 * h);
        const double difference = (up - test_loss()) / (2 * h);
        move(weight, r, h);
        max_error = fmax(max_error, fabs(along - difference));
        if (strstr(shown, short_name(weight)))
            printf("%-16s %7.4f  %7.4f\n", short_name(weight), along, difference);
    }
    printf("largest difference of all %d: %.4f\n", params_count(params), max_error);
    end();
    return !(max_error < 2e-3);
}
