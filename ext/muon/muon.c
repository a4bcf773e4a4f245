/* Muon (Jordan et al. 2024): momentum whose matrices are orthogonalized. For a matrix p [R, C]:
 *   m = momentum m + (1 - momentum) g        u = m, or by Nesterov (1 - momentum) g + momentum m
 *   X = u / |u|_F                            so no singular value exceeds 1
 *   X = a X + b A X + c A^2 X, A = X X^T     `iterations` times
 *   p = (1 - lr weight_decay) p - lr scale X
 * An iteration maps each singular value s of X to a s + b s^3 + c s^5 and keeps the singular
 * vectors: the Newton-Schulz iteration, with coefficients with a large derivative a at 0, so that
 * small singular values grow fast: after 5 iterations those from 0.01 on are in [0.68, 1.14]. a, b
 * and c are in muon_coefficients, and scale is 1 or as MuonScale says.
 *
 * A iterates on the smaller side: the same values are X (a I + b B + c B^2), B = X^T X, for R > C.
 * All other weights step as in AdamW: the table of groups holds which are matrices. A step first
 * computes X of every matrix, in v, which a matrix has no other use for, and then changes m and p:
 * products may exhaust memory, and a failed step must change nothing. */
#include "ext/muon/muon.h"

#include "ext/muon/kernels.h"

#include <stdlib.h>

/* -------------------------------------------------------------------------------------- kernels */
static void muon_momentum_plain(Real *u, const Real *m, const Real *gradients, Real momentum,
                                Real nesterov, int64_t n)
{
    EACH(i, n)
        u[i] = muon_direction(m[i], gradients[i], momentum, nesterov);
}

static void muon_normalize_plain(Real *x, const Clipping *squares, int64_t n)
{
    double sum = 0;
    for (int k = 0; k < CLIP_PARTS; k++)
        sum += squares->parts[k];
    const Real factor = (Real)(1 / fmax(sqrt(sum), MUON_MIN_NORM));
    EACH(i, n)
        x[i] *= factor;
}

static void muon_polynomial_plain(Real *p, const Real *gram, Real scale, int64_t n)
{
    EACH(i, n * n)
        p[i] = muon_coefficients(gram[i], p[i], i / n == i % n, scale);
}

static void muon_step_plain(Real *p, Real *m, Real *v, const Real *gradients,
                            const StepScalars *scalars, int64_t n)
{
    for (Run run = { 0 }; next_run(&run, scalars, n);) {
        const StepScalars s = *run.scalars;
        if (s.own != MUON_MATRIX) {
            optim_adam_run(p, m, v, gradients, &run);
            continue;
        }
        EACH(k, run.count) {
            const int64_t i = run.start + k;
            m[i] = s.momentum * m[i] + (1 - s.momentum) * gradients[i];
            p[i] = s.keep * p[i] - s.learning_rate * v[i];
        }
    }
}

const MuonKernels muon_plain = { muon_momentum_plain, muon_normalize_plain, muon_polynomial_plain,
                                 muon_step_plain };

/* ------------------------------------------------------------------------------------- matrices */
typedef struct MuonMatrix {
    const Tensor *weight;
    int64_t offset, rows, columns; /* in the flat buffers */
    Real scale;
} MuonMatrix;

/* The optimizer's own; its states are m and v. */
typedef struct Muon {
    double rest_rate, rest_decay; /* AdamW's: its learning rate / that of the matrices; its decay */
    Real nesterov;                /* the weight of m in u */
    int iterations, count;
    MuonMatrix *matrices;
    Block *scratch;
    Clipping *squares;            /* in scratch, as are */
    Real *other, *gram, *squared; /* the next X, A and A^2 of the largest matrix */
} Muon;

/* out [n, m] = a [n, k] b [k, m], or with transposed a or b. */
static void multiply(const Optimizer *o, Real *out, const Real *a, const Real *b, Product size)
{
    op_kernels_on(o->device, TENSOR_REAL)
        ->product(PRECISION_FLOAT32, (Result){ out, TENSOR_REAL, false },
                  (Operand){ a, TENSOR_REAL }, (Operand){ b, TENSOR_REAL }, size);
}

/* x = scale times the orthogonalized x. */
static void newton_schulz(const Optimizer *o, const MuonMatrix *matrix, Real *x)
{
    const MuonKernels *kernels = muon_kernels(o->device);
    const Muon *muon = o->own;
    const int64_t r = matrix->rows, c = matrix->columns, count = r * c;
    const bool tall = r > c;
    const int64_t n = tall ? c : r, k = tall ? r : c;
    const Product square = { n, n, n, false, false, 1, 0, 0, 0 };
    Real *now = x, *next = muon->other;
    op_kernels_on(o->device, TENSOR_REAL)->sum_squares(muon->squares, x, count);
    kernels->normalize(x, muon->squares, count);
    for (int i = 1; i <= muon->iterations; i++) {
        const Real scale = i == muon->iterations ? matrix->scale : 1;
        multiply(o, muon->gram, now, now, (Product){ n, k, n, tall, !tall, 1, 0, 0, 0 });
        multiply(o, muon->squared, muon->gram, muon->gram, square);
        kernels->polynomial(muon->squared, muon->gram, scale, n);
        if (tall)
            multiply(o, next, now, muon->squared, (Product){ r, n, n, false, false, 1, 0, 0, 0 });
        else
            multiply(o, next, muon->squared, now, (Product){ n, n, c, false, false, 1, 0, 0, 0 });
        Real *before = now;
        now = next;
        next = before;
    }
    if (now != x)
        device_copy(o->device, x, now, (size_t)count * sizeof(Real));
}

static void muon_prepare(const Optimizer *o, const Real *gradients)
{
    const MuonKernels *kernels = muon_kernels(o->device);
    const Muon *muon = o->own;
    error_name("optim_step");
    for (int i = 0; i < muon->count; i++) {
        const MuonMatrix *matrix = &muon->matrices[i];
        const int64_t start = matrix->offset - o->range.first;
        if (!matrix->weight->requires_grad || start < 0 || start >= o->range.count)
            continue;
        const Real *m = o->states[0] + start;
        Real *x = o->states[1] + start;
        kernels->momentum(x, m, gradients + start, o->momentum, muon->nesterov,
                          matrix->rows * matrix->columns);
        newton_schulz(o, matrix, x);
    }
}

static void muon_update(const Optimizer *o, Real *p, const Real *gradients)
{
    muon_kernels(o->device)->step(p, o->states[0], o->states[1], gradients, o->scalars,
                                  o->range.count);
}

/* The rest follows the matrices' learning rate in proportion. */
static StepScalars muon_scalars(const Optimizer *o, int role, double learning_rate,
                                double decay_factor)
{
    const Muon *muon = o->own;
    if (role != MUON_MATRIX)
        return optim_adamw_scalars_of(o, learning_rate * muon->rest_rate,
                                      muon->rest_decay * decay_factor);
    const double weight_decay = o->weight_decay * decay_factor;
    return (StepScalars){ .learning_rate = (Real)learning_rate,
                          .keep = (Real)(1 - learning_rate * weight_decay),
                          .momentum = o->momentum,
                          .own = MUON_MATRIX };
}

/* ------------------------------------------------------------------------------------- creation */
MuonConfig optim_muon_config(double learning_rate, double rest_learning_rate)
{
    return (MuonConfig){ .learning_rate = learning_rate,
                         .momentum = 0.95,
                         .nesterov = true,
                         .iterations = 5,
                         .rest = optim_adam_config(rest_learning_rate),
                         .rest_names = { "*embedding*", "*head*" } };
}

static bool is_matrix(const MuonConfig *config, const Tensor *weight)
{
    for (int i = 0; i < MUON_MAX_NAMES && config->rest_names[i]; i++)
        if (params_matches(config->rest_names[i], weight))
            return false;
    return weight->shape.rank >= 2;
}

static MuonMatrix matrix_of(const Optimizer *o, const MuonConfig *config, const Tensor *weight)
{
    const int64_t rows = weight->shape.size[0], columns = tensor_count(weight) / rows;
    const double r = (double)rows, c = (double)columns;
    const double scale =
        config->scale == MUON_MATCH_RMS_ADAMW ? 0.2 * sqrt(fmax(r, c)) : sqrt(fmax(1, r / c));
    return (MuonMatrix){ weight, params_offset(o->params, weight), rows, columns, (Real)scale };
}

static void check_config(Params *params, const MuonConfig *config)
{
    if (!(config->learning_rate > 0))
        error_raise("optim_muon: learning_rate is %g, expected more than 0, and finite; to train "
                    "the rest alone, freeze the matrices",
                    config->learning_rate);
    if (config->iterations < 1)
        error_raise("optim_muon: iterations is %d, expected 1 or more", config->iterations);
    if ((int)config->scale < MUON_ORIGINAL || (int)config->scale > MUON_MATCH_RMS_ADAMW)
        error_raise("optim_muon: the scale is %d, expected a MuonScale", (int)config->scale);
    if (config->rest.schedule.kind != SCHEDULE_CONSTANT)
        error_raise("optim_muon: rest.schedule is set, expected the schedule of the MuonConfig, "
                    "which all weights follow");
    optim_check_not_negative("optim_muon", "rest.learning_rate", config->rest.learning_rate);
    optim_check_not_negative("optim_muon", "rest.weight_decay", config->rest.weight_decay);
    for (int i = 0; params && i < params_count(params); i++)
        if (is_matrix(config, params_at(params, i)))
            return;
    if (params && params_count(params) > 0)
        error_raise("optim_muon: no weight is a matrix outside rest_names; use optim_adamw");
}

/* Enough for the largest matrix; false when memory is exhausted. */
static bool allocate_scratch(const Optimizer *o, Muon *muon)
{
    int64_t elements = 0, squares = 0;
    for (int i = 0; i < muon->count; i++) {
        const int64_t r = muon->matrices[i].rows, c = muon->matrices[i].columns, n = r < c ? r : c;
        elements = r * c > elements ? r * c : elements;
        squares = n * n > squares ? n * n : squares;
    }
    const size_t bytes = sizeof(Clipping) + (size_t)(elements + 2 * squares) * sizeof(Real);
    muon->scratch = device_allocate(o->device, bytes);
    if (!muon->scratch)
        return false;
    muon->squares = muon->scratch->data;
    muon->other = (Real *)(muon->squares + 1);
    muon->gram = muon->other + elements;
    muon->squared = muon->gram + squares;
    return true;
}

/* Makes matrices of the weights as the config says; false when memory is exhausted. */
static bool add_matrices(Optimizer *o, const MuonConfig *config)
{
    Muon *muon = o->own;
    const int weights = params_count(o->params);
    muon->matrices = memory_allocate((size_t)weights * sizeof(MuonMatrix));
    if (!muon->matrices)
        return false;
    for (int i = 0; i < weights; i++) {
        const Tensor *weight = params_at(o->params, i);
        if (!is_matrix(config, weight))
            continue;
        muon->matrices[muon->count++] = matrix_of(o, config, weight);
        if (!optim_set_role(o, weight, MUON_MATRIX))
            return false;
    }
    return allocate_scratch(o, muon);
}

static void muon_free(Optimizer *o)
{
    Muon *muon = o->own;
    device_free(o->device, muon->scratch);
    free(muon->matrices);
}

Optimizer *optim_muon(Params *params, MuonConfig config)
{
    static const OptimizerKind kind = { "muon",
                                        .states = { ADAM_STATES },
                                        .own_bytes = sizeof(Muon),
                                        .prepare = muon_prepare,
                                        .scalars = muon_scalars,
                                        .update = muon_update,
                                        .free = muon_free };
    check_config(params, &config);
    Optimizer from = optim_adam_template("optim_muon", &kind, params, config.rest);
    from.learning_rate = config.learning_rate;
    from.weight_decay = config.weight_decay;
    from.momentum = (Real)config.momentum;
    from.nesterov = config.nesterov;
    from.schedule = config.schedule;
    Optimizer *o = optim_new("optim_muon", from);
    *(Muon *)o->own = (Muon){ .rest_rate = config.rest.learning_rate / config.learning_rate,
                              .rest_decay = config.rest.weight_decay,
                              .nesterov = config.nesterov ? o->momentum : 1,
                              .iterations = config.iterations };
    if (add_matrices(o, &config))
        return o;
    Device *device = o->device;
    optim_free(o);
    error_raise("optim_muon: %s", device_exhausted(device, sizeof(Muon)).text);
}
