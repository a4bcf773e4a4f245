/* The weights as a table: names, shapes and numbers of elements. */
#include "nn/internal.h"

#include <string.h>

void params_print(const Params *params, FILE *file)
{
    if (!params || !file)
        error_raise("params_print: %s is NULL", params ? "the file" : "params");
    const int count = params_count(params);
    int names = (int)strlen("weight"), shapes = (int)strlen("shape");
    for (int i = 0; i < count; i++) {
        const Tensor *weight = params_at(params, i);
        const int name = (int)strlen(weight->name);
        const int shape = (int)strlen(shape_text(weight->shape).text);
        names = name > names ? name : names;
        shapes = shape > shapes ? shape : shapes;
    }
    fprintf(file, "%-*s  %-*s  %12s\n", names, "weight", shapes, "shape", "elements");
    for (int i = 0; i < count; i++) {
        const Tensor *weight = params_at(params, i);
        fprintf(file, "%-*s  %-*s  %12lld%s\n", names, weight->name, shapes,
                shape_text(weight->shape).text, (long long)tensor_count(weight),
                weight->requires_grad ? "" : "  frozen");
    }
    fprintf(file, "%-*s  %-*s  %12lld\n", names, "total", shapes, "",
            (long long)params_elements(params));
}
