/* The weights as a table. Names, which may be long, come last. */
#include "nn/internal.h"

void params_print(const Params *params, FILE *file)
{
    if (!params || !file)
        error_raise("params_print: %s is NULL", params ? "the file" : "params");
    fprintf(file, "%12s  %-20s  %s\n", "elements", "shape", "weight");
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        fprintf(file, "%12lld  %-20s  %s%s\n", (long long)tensor_count(weight),
                shape_text(weight->shape).text, weight->name,
                weight->requires_grad ? "" : " (frozen)");
    }
    fprintf(file, "%12lld  in total\n", (long long)params_elements(params));
}
