/* Internals of optim/. */
#ifndef TAPEGRAD_OPTIM_INTERNAL_H
#define TAPEGRAD_OPTIM_INTERNAL_H

#include "nn/internal.h"
#include "optim/extend.h"

typedef struct Groups Groups;

/* Raises, as function, if optimizer is NULL or not divided as its params are. */
void optim_need(const char *function, const Optimizer *optimizer);

/* Divides the optimizer's work as its params' shards say. */
void optim_set_range(const char *function, Optimizer *optimizer, FlatRange range);

/* Before a step: uploads the table of groups if groups or frozen weights have changed. Raises when
 * memory is exhausted. */
void groups_update(Optimizer *optimizer);
/* With groups: uploads the scalars of each group, and completes all, those of group 0. */
void groups_set_scalars(const Optimizer *optimizer, double learning_rate, StepScalars *all);
void groups_free(Optimizer *optimizer);

/* Raises, as function, when a field of the schedule is out of range. */
void schedule_check(const char *function, const Schedule *schedule);

/* The factor of the learning rate in step t. */
double schedule_factor(const Schedule *schedule, const Plateau *plateau, int64_t t);

#endif
