/* optim/: optimizers, learning-rate schedules and checkpoints of a Params. A function raises an
 * error (tapegrad_on_error) when an argument violates its comment or memory is exhausted; one that
 * returns bool reports a failure instead. */
#ifndef TAPEGRAD_OPTIM_H
#define TAPEGRAD_OPTIM_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- schedules
 * lr_t = learning_rate * factor(t) in step t = 1, 2, ..., with the optimizer's learning_rate. */
typedef enum { SCHEDULE_CONSTANT, SCHEDULE_DROPS, SCHEDULE_COSINE, SCHEDULE_PLATEAU } ScheduleKind;

enum { SCHEDULE_MAX_DROPS = 8 };

/* Made by the functions below. Zero-initialized: constant. */
typedef struct Schedule {
    ScheduleKind kind;
    int drop_count;
    int64_t drop_at[SCHEDULE_MAX_DROPS];
    double factor;
    int64_t warm_up, total;
    double last;
    int64_t patience;
} Schedule;

/* factor(t) = 1. */
Schedule optim_constant(void);
/* Step decay: factor(t) = factor^n, n the number of steps at[i] <= t. 0 < factor <= 1; at holds
 * count increasing steps, 0 <= count <= SCHEDULE_MAX_DROPS, the first at least 1; it is copied. */
Schedule optim_drops(double factor, int count, const int64_t *at);
/* Linear warm-up and cosine decay (Loshchilov and Hutter 2017, equation 5, without restarts):
 *   factor(t) = t / warm_up                                                      for t < warm_up,
 *   last + (1 - last) (1 + cos(pi (t - warm_up) / (total - warm_up))) / 2        for t < total,
 *   last                                                                         from then on.
 * warm_up and total in steps, 0 <= warm_up < total; 0 <= last <= 1, a factor. */
Schedule optim_cosine(int64_t warm_up, int64_t total, double last);
/* Linear warm-up, without decay: factor(t) = min(1, t / steps). steps >= 0. */
Schedule optim_warm_up(int64_t steps);
/* Reduce on plateau: the factor starts at 1; after more than patience consecutive values of
 * optim_observe without improvement it becomes max(factor * current, last). A value improves when
 * it is below best - 1e-4 |best|. 0 < factor <= 1, patience >= 0 in values, 0 <= last <= 1. */
Schedule optim_plateau(double factor, int64_t patience, double last);

/* ------------------------------------------------------------------------------------ optimizers
 * p is a weight, g its gradient, lr the learning rate of step t = 1, 2, ...; m and v are running
 * means of g and g^2 that start at 0. In Adam and its variants
 *   m = beta1 m + (1 - beta1) g     m_hat = m / (1 - beta1^t)
 *   v = beta2 v + (1 - beta2) g^2   v_hat = v / (1 - beta2^t)
 * Make an optimizer after all weights are registered: it allocates the flat buffers. The caller
 * owns it and frees it with optim_free. The functions that make one raise when there are no weights
 * and when a field of the config is out of range. A config comes from optim_sgd_config or
 * optim_adam_config, which fill in the defaults below; then every field means its value, 0
 * included:
 *     AdamConfig config = optim_adam_config(1e-3);
 *     config.weight_decay = 0.01;
 *     Optimizer *optimizer = optim_adamw(params, config); */
typedef struct Optimizer Optimizer;

typedef struct SGDConfig {
    double learning_rate; /* 0 or more */
    double momentum;      /* default 0; in [0, 1) */
    double weight_decay;  /* default 0; 0 or more; added to the gradient */
    Schedule schedule;    /* default constant */
    bool nesterov;        /* default false; true needs momentum above 0 */
} SGDConfig;
SGDConfig optim_sgd_config(double learning_rate);

/* g = g + weight_decay p;  m = momentum m + g;  p = p - lr m (momentum: Polyak 1964), or, with
 * nesterov, p = p - lr (g + momentum m), as in PyTorch (Nesterov 1983; Sutskever et al. 2013). */
Optimizer *optim_sgd(Params *params, SGDConfig config);

typedef struct AdamConfig {
    double learning_rate; /* 0 or more */
    double beta1, beta2;  /* default 0.9, 0.999; in [0, 1) */
    double eps;           /* default 1e-8; 0 or more; raised to 1.1e-19 (in double 1.5e-154), since
                           * the g^2 of a smaller g underflows */
    double weight_decay;  /* default 0; 0 or more */
    Schedule schedule;    /* default constant */
} AdamConfig;
AdamConfig optim_adam_config(double learning_rate);

/* g = g + weight_decay p;  p = p - lr m_hat / (sqrt(v_hat) + eps) (Kingma and Ba 2015, algorithm
 * 1). */
Optimizer *optim_adam(Params *params, AdamConfig config);
/* p = p - lr weight_decay p;  p = p - lr m_hat / (sqrt(v_hat) + eps): decoupled weight decay
 * (Loshchilov and Hutter 2019, algorithm 2). */
Optimizer *optim_adamw(Params *params, AdamConfig config);

/* Rectified Adam (Liu et al. 2019, algorithm 2), with decoupled weight decay as in optim_adamw:
 *   rho_inf = 2 / (1 - beta2) - 1,    rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
 *   while rho_t <= 5:  p = p - lr m_hat    (the paper's bound is 4)
 *   afterwards:        p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t)) */
Optimizer *optim_radam(Params *params, AdamConfig config);

/* Some optimizers train with other weights than they evaluate with. true sets the weights of
 * training; false sets the weights of evaluation, to evaluate or to save them by params_save.
 * Returns the old setting; a new optimizer has true. Both are exact: evaluating changes no later
 * step. Other optimizers keep their weights. optim_step raises after false. optim_save writes the
 * weights of evaluation, and optim_load restores the weights of the present setting. Raises inside
 * a replayed step. */
bool optim_set_training(Optimizer *optimizer, bool on);

/* Frees the optimizer, not the weights; also after params_free. NULL is ignored. */
void optim_free(Optimizer *optimizer);

/* One step of the update above, for all weights that require a gradient, from the accumulated
 * gradients, which are empty afterwards; an empty gradient counts as 0. A replayed step may contain
 * one step per optimizer. It writes the weights: operations that used them and still wait for their
 * backward pass, as on another tape, would read the new values in it, and nothing detects this.
 * Raises, and changes nothing, when weights require a gradient and none has one, as without a
 * tape_backward since the last step. Raises likewise when the gradients were clipped and their norm
 * is NaN or infinite. To skip such a step, read params_gradient_norm and call params_zero_gradients
 * in its place. On CUDA optim_step waits for the norm; a captured step does not check it. Gradients
 * that were not clipped are not checked, since this would take a pass over them. A NaN then spreads
 * to the weights, and optim_save and params_save write it. */
void optim_step(Optimizer *optimizer);

/* The number of steps taken, and the next step's learning_rate * factor(steps + 1). */
int64_t optim_steps(const Optimizer *optimizer);
double optim_learning_rate(const Optimizer *optimizer);
/* Replaces learning_rate, which the schedule's factor multiplies. Raises unless it is finite and 0
 * or more; with 0 the weights stay as they are. */
void optim_set_learning_rate(Optimizer *optimizer, double learning_rate);

/* Parameter groups: weights whose path names match the pattern ("*.bias", "*norm*": see
 * params_set_requires_grad) get learning_rate_factor * lr and weight_decay_factor * weight_decay,
 * from the next step on. The factors are 1 at first, and a later call replaces them. A factor 0 is
 * exact, but does not freeze as params_set_requires_grad does: the gradients are still computed,
 * move m and v, and count in params_clip_gradients. The factors are not saved in checkpoints.
 * Raises when no name matches, a factor is negative or not finite, inside a replayed step, and when
 * 255 pairs of factors are in use. */
void optim_set_group(Optimizer *optimizer, const char *pattern, double learning_rate_factor,
                     double weight_decay_factor);

/* Reports a value that should fall, such as the validation loss, to the plateau schedule; NaN is
 * never an improvement. Other schedules ignore it. */
void optim_observe(Optimizer *optimizer, double value);

/* ----------------------------------------------------------------------------------- checkpoints
 * One safetensors file: weights and random projections under their path names; m and v under
 * "optimizer.m." and "optimizer.v." plus the path name; and metadata under keys that start with
 * "tapegrad.": the optimizer's kind, steps, schedule and hyperparameters, and the tape's random
 * generator. optim_load reads the kind, the steps, the learning rate, the plateau's progress and
 * the generator; the rest stays as the program set it. All values are exact: a run that loads the
 * file continues bitwise as if it had never stopped. Gradients are not saved, so save after
 * optim_step. */

/* Writes a checkpoint. texts are text_count metadata entries of the program, whose keys must not
 * start with "tapegrad."; tensor_file_metadata reads them. tape may be NULL if the program draws no
 * random numbers. Returns false on failure, and tapegrad_error() has the sentence. */
TAPEGRAD_MUST_CHECK
bool optim_save(Optimizer *optimizer, Tape *tape, const FileMetadata *texts, int text_count,
                const char *path);

/* Reads a checkpoint into an optimizer of the same kind over weights of the same names and shapes.
 * It restores the weights, m, v, the steps, the learning rate, the plateau schedule's progress and,
 * unless tape is NULL, the tape's generator; gradients become empty. The other hyperparameters, the
 * kind of schedule and the groups stay as the program set them. Returns false and changes nothing
 * on failure. With dist_optimizer, when one rank fails, others may have read their weights already.
 * params_load reads the weights alone. */
TAPEGRAD_MUST_CHECK
bool optim_load(Optimizer *optimizer, Tape *tape, const char *path);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
