/* optim/: optimisers and learning-rate schedules over a Params. */
#ifndef TAPEGRAD_OPTIM_H
#define TAPEGRAD_OPTIM_H

#include "nn/nn.h"

#pragma GCC visibility push(default)

/* ------------------------------------------------------------------------------------- schedules
 * The learning rate of step t (1, 2, ...) is the optimiser's own times a factor. */
typedef enum { SCHEDULE_CONSTANT, SCHEDULE_DROPS, SCHEDULE_COSINE, SCHEDULE_PLATEAU } ScheduleKind;

enum { SCHEDULE_MAX_DROPS = 8 };

/* Made by the functions below, which raise when an argument makes no sense. */
typedef struct Schedule {
    ScheduleKind kind;
    int drop_count;
    int64_t drop_at[SCHEDULE_MAX_DROPS];
    Real factor;
    int64_t warm_up, total;
    Real last;
    int64_t patience;
} Schedule;

/* Factor 1. */
Schedule optim_constant(void);
/* Factor f^n, n the number of the `count` steps at `at` that are <= t (they increase from 1 on; at most
 * 8); 0 < f <= 1. */
Schedule optim_drops(Real factor, int count, const int64_t *at);
/* t / warm_up for t < warm_up, then last + (1 - last) (1 + cos(pi (t - warm_up) / (total - warm_up)))
 * / 2 until t = total, then last (Loshchilov and Hutter 2017, equation 5, without restarts);
 * 0 <= warm_up < total, 0 <= last <= 1. */
Schedule optim_cosine(int64_t warm_up, int64_t total, Real last);
/* Starts at 1 and is multiplied by factor, down to last, each time optim_observe has seen more than
 * patience values in a row that were no better (better: below best - 1e-4 |best|); 0 < factor <= 1,
 * patience >= 0, 0 <= last <= 1. */
Schedule optim_plateau(Real factor, int64_t patience, Real last);

/* ------------------------------------------------------------------------------------ optimisers
 * A config's field left 0 means its default in the comment. m and v are running means of the
 * gradient g and of g^2, from 0 on; weights are written p; the learning rate is lr; t counts the steps
 * from 1 on. Of Adam and its kin
 *   m = beta1 m + (1 - beta1) g     m_hat = m / (1 - beta1^t)
 *   v = beta2 v + (1 - beta2) g^2   v_hat = v / (1 - beta2^t) */
typedef struct Optimizer Optimizer;

/* The functions that make one come after all weights are registered (they lay out the storage), and
 * raise when there are none or when a number makes no sense. Its owner gives it to optim_free. */

typedef struct SGDConfig {
    Real learning_rate; /* 1e-2 */
    Real momentum;      /* 0 */
    Real weight_decay;  /* 0; added to the gradient */
    Schedule schedule;  /* constant */
} SGDConfig;

/* g = g + weight_decay p;  m = momentum m + g;  p = p - lr m. */
Optimizer *optim_sgd(Params *params, SGDConfig config);

typedef struct AdamConfig {
    Real learning_rate; /* 1e-3 */
    Real beta1, beta2;  /* 0.9, 0.999 */
    Real eps;           /* 1e-8 */
    Real weight_decay;  /* 0 */
    Schedule schedule;  /* constant */
} AdamConfig;

/* p = p - lr m_hat / (sqrt(v_hat) + eps) (Kingma and Ba 2015, algorithm 1); weight decay is added to
 * the gradient, g = g + weight_decay p first. */
Optimizer *optim_adam(Params *params, AdamConfig config);
/* The same with decoupled weight decay, p = p - lr weight_decay p first (Loshchilov and Hutter
 * 2019, algorithm 2). */
Optimizer *optim_adamw(Params *params, AdamConfig config);

typedef AdamConfig RAdamConfig;

/* Liu et al. 2019, algorithm 2. With rho_inf = 2 / (1 - beta2) - 1 and rho_t = rho_inf - 2 t beta2^t /
 * (1 - beta2^t), while rho_t <= 5 (5 is their program's; the paper says 4): p = p - lr m_hat. Then
 *   p = p - lr r m_hat sqrt(1 - beta2^t) / (sqrt(v) + eps)
 *   r = sqrt((rho_t - 4) (rho_t - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho_t))
 * Weight decay is decoupled and applied first, as in optim_adamw. */
Optimizer *optim_radam(Params *params, RAdamConfig config);

/* Before or after params_free, which ends its other uses; NULL is fine. */
void optim_free(Optimizer *optimizer);

/* One step from the accumulated gradients, which are empty afterwards; an empty one counts as 0.
 * In tape_replay: once a step. */
void optim_step(Optimizer *optimizer);

/* Steps taken so far; the learning rate that the next step will use; and a new base for it, 0 or
 * more, which the schedule's factor multiplies. */
int64_t optim_steps(const Optimizer *optimizer);
Real optim_learning_rate(const Optimizer *optimizer);
void optim_set_learning_rate(Optimizer *optimizer, Real learning_rate);

/* Tells the plateau schedule a value that should fall, a validation loss say; NaN is never better.
 * The other schedules do not listen. */
void optim_observe(Optimizer *optimizer, Real value);

/* ----------------------------------------------------------------------------------- checkpoints
 * One safetensors file: the weights under their path names; m and v under "optimizer.m." and
 * "optimizer.v." and those names; and as metadata, under keys that start with "tapegrad.", the
 * optimiser's kind, numbers, steps and schedule, and the tape's random generator. The program's own
 * texts stand beside them (another start for their keys; tensor_file_metadata reads them back).
 * Numbers are exact: a run that loads it continues bitwise as if it had not stopped. Gradients are
 * not saved: save after optim_step. tape may be NULL, for a program without random numbers. */
bool optim_save(Optimizer *optimizer, Tape *tape, const FileMetadata *texts, int text_count,
                const char *path);

/* Into an optimiser of the same kind over weights of the same names and shapes. It restores the
 * weights, m and v, the steps, the learning rate's base, what the plateau schedule has seen, and the
 * tape's generator; gradients are then empty. The other numbers and the schedule stay as the program
 * made them. Checks everything before it changes anything. params_load takes the weights alone. */
bool optim_load(Optimizer *optimizer, Tape *tape, const char *path);

#pragma GCC visibility pop
#endif
