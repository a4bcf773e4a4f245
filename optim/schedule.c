/* Learning-rate schedules: factor(t), which multiplies the optimizer's learning rate. The formulas
 * are in optim/optim.h. */
#include "optim/internal.h"

/* ---------------------------------------------------------------------------------------- kinds */
static void check_drops(const char *function, const Schedule *schedule)
{
    if (schedule->drop_count < 0 || schedule->drop_count > SCHEDULE_MAX_DROPS)
        error_raise("%s: there are %d drops, expected 0 to %d", function, schedule->drop_count,
                    SCHEDULE_MAX_DROPS);
    for (int i = 0; i < schedule->drop_count; i++) {
        const int64_t before = i ? schedule->drop_at[i - 1] : 0;
        if (schedule->drop_at[i] <= before)
            error_raise("%s: drop %d is at step %lld, expected after step %lld", function, i,
                        (long long)schedule->drop_at[i], (long long)before);
    }
}

void schedule_check(const char *function, const Schedule *schedule)
{
    const ScheduleKind kind = schedule->kind;
    const bool cosine = kind == SCHEDULE_COSINE, plateau = kind == SCHEDULE_PLATEAU;
    if ((unsigned)kind > SCHEDULE_PLATEAU)
        error_raise("%s: the schedule's kind is %d, expected a ScheduleKind", function, (int)kind);
    if ((kind == SCHEDULE_DROPS || plateau) && !(schedule->factor > 0 && schedule->factor <= 1))
        error_raise("%s: the factor is %g, expected more than 0 and at most 1", function,
                    schedule->factor);
    if (kind == SCHEDULE_DROPS)
        check_drops(function, schedule);
    if (cosine && (schedule->warm_up < 0 || schedule->warm_up >= schedule->total))
        error_raise("%s: warm_up is %lld and total %lld, expected 0 <= warm_up < total", function,
                    (long long)schedule->warm_up, (long long)schedule->total);
    if (plateau && schedule->patience < 0)
        error_raise("%s: the patience is %lld, expected 0 or more", function,
                    (long long)schedule->patience);
    if ((cosine || plateau) && !(schedule->last >= 0 && schedule->last <= 1))
        error_raise("%s: last is %g, expected 0 to 1", function, schedule->last);
}

static Schedule checked(const char *function, Schedule schedule)
{
    schedule_check(function, &schedule);
    return schedule;
}

Schedule optim_constant(void)
{
    return (Schedule){ .kind = SCHEDULE_CONSTANT };
}

Schedule optim_drops(double factor, int count, const int64_t *at)
{
    Schedule schedule = { .kind = SCHEDULE_DROPS, .factor = factor, .drop_count = count };
    if (!at && count > 0)
        error_raise("optim_drops: at is NULL, expected %d steps", count);
    for (int i = 0; i < count && i < SCHEDULE_MAX_DROPS; i++)
        schedule.drop_at[i] = at[i];
    return checked("optim_drops", schedule);
}

Schedule optim_cosine(int64_t warm_up, int64_t total, double last)
{
    return checked(
        "optim_cosine",
        (Schedule){ .kind = SCHEDULE_COSINE, .warm_up = warm_up, .total = total, .last = last });
}

Schedule optim_warm_up(int64_t steps)
{
    if (steps < 0 || steps == INT64_MAX)
        error_raise("optim_warm_up: steps is %lld, expected 0 or more", (long long)steps);
    return optim_cosine(steps, steps + 1, 1);
}

Schedule optim_plateau(double factor, int64_t patience, double last)
{
    return checked("optim_plateau", (Schedule){ .kind = SCHEDULE_PLATEAU,
                                                .factor = factor,
                                                .patience = patience,
                                                .last = last });
}

/* -------------------------------------------------------------------------------------- factors */
static double drops_factor(const Schedule *schedule, int64_t t)
{
    int drops = 0;
    while (drops < schedule->drop_count && schedule->drop_at[drops] <= t)
        drops++;
    return pow(schedule->factor, drops);
}

static double cosine_factor(const Schedule *schedule, int64_t t)
{
    const double pi = 3.14159265358979323846, last = schedule->last;
    const int64_t warm_up = schedule->warm_up, total = schedule->total;
    if (t < warm_up)
        return (double)t / (double)warm_up;
    if (t >= total)
        return last;
    const double way = (double)(t - warm_up) / (double)(total - warm_up);
    return last + (1 - last) * (1 + cos(pi * way)) / 2;
}

double schedule_factor(const Schedule *schedule, const Plateau *plateau, int64_t t)
{
    switch (schedule->kind) {
    case SCHEDULE_CONSTANT:
        break;
    case SCHEDULE_DROPS:
        return drops_factor(schedule, t);
    case SCHEDULE_COSINE:
        return cosine_factor(schedule, t);
    case SCHEDULE_PLATEAU:
        return plateau->factor;
    }
    return 1;
}

/* value < best - 1e-4 |best|; false for NaN. An infinite best has no margin. */
static bool better(double value, double best)
{
    return isinf(best) ? value < best : value < best - 1e-4 * fabs(best);
}

void optim_observe(Optimizer *optimizer, double value)
{
    optim_need("optim_observe", optimizer);
    const Schedule *schedule = &optimizer->schedule;
    Plateau *plateau = &optimizer->plateau;
    if (schedule->kind != SCHEDULE_PLATEAU)
        return;
    if (better(value, plateau->best)) {
        plateau->best = value;
        plateau->bad = 0;
    } else if (++plateau->bad > schedule->patience) {
        plateau->factor = fmax(plateau->factor * schedule->factor, schedule->last);
        plateau->bad = 0;
    }
}
