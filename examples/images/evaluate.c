#include "examples/images/data.h"
#include "examples/images/model.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Bits per dimension of the first `count` test images, in batches of at most `at_once`; *lower: of
 * the lower halves given the upper ones. */
static double bits_per_dimension(const ImagesOptions *options, const Model *model, Device *device,
                                 const Images *test, int64_t count, double *lower)
{
    const int64_t given = images_upper_half(options);
    double nats = 0, rest = 0, part;
    for (int64_t first = 0; first < count; first += options->at_once) {
        const int64_t size = min_count(count - first, options->at_once);
        Generator *generator = generator_new(model, device, generator_config(options, size));
        nats += (double)size *
                generator_score(generator, test->bytes + first * model->pixels, given, &part);
        rest += (double)size * part;
        generator_free(generator);
    }
    *lower = rest / log(2) / (double)(count * (model->pixels - given));
    return nats / log(2) / (double)(count * images_length(options));
}

int images_evaluate(int argc, char **argv)
{
    ImagesOptions options;
    const Given given = options_parse(&images_evaluate_command, argc, argv, &options);
    if (!options.common.load)
        fail(BAD_USE, "evaluate: expected --load FILE, a checkpoint of images train");
    images_check_data(&options);
    images_check_steps(&options);
    Device *device = training_device(&options.common);
    Params *params = params_new(device, (uint64_t)options.common.seed);
    Model model = model_load(params, &options);
    Images test = images_read(&given, &options, false);
    const int64_t count = min_count(test.count, options.test_images);
    const double start = now();
    double lower;
    const double bits = bits_per_dimension(&options, &model, device, &test, count, &lower);
    printf("evaluation test_bits=%.6g lower_half_bits=%.6g test_images=%lld seconds=%.2f\n", bits,
           lower, (long long)count, now() - start);
    images_free(&test);
    params_free(params);
    return EXIT_SUCCESS;
}
