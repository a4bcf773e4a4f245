/* Exercise 12.1: one step of training, on a large batch in several passes. */
#include <tapegrad.h>

typedef struct Model {
    Params *params;
    Optimizer *optimizer;
    Tape *tape;
    double max_norm; /* of the gradients */
    int batches;     /* small ones, which make the large one */
} Model;

/* Records the mean loss of small batch number i, from 0 on. The model has dropout. */
Tensor *loss_of(Model *model, int i);

double training_step(Model *model);
