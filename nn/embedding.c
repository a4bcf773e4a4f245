/* Embedding: a table of one vector per symbol. */
#include "nn/internal.h"

Embedding nn_embedding_with(Params *params, const char *name, int64_t count, int64_t width,
                            Initializer weight)
{
    if (count < 1 || width < 1)
        error_raise("nn_embedding: %s: count is %lld and width %lld, expected 1 or more", name,
                    (long long)count, (long long)width);
    return (
        Embedding){ params_add(params, nn_name(name, "weight").text, shape(count, width), weight) };
}

Embedding nn_embedding(Params *params, const char *name, int64_t count, int64_t width)
{
    return nn_embedding_with(params, name, count, width, (Initializer){ INITIAL_NORMAL, 1 });
}

Tensor *nn_embedding_forward(Tape *tape, const Embedding *embedding, Tensor *indices)
{
    error_need("nn_embedding_forward", "the layer", embedding);
    return op_embedding(tape, embedding->weight, indices);
}
