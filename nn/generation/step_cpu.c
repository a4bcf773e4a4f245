/* A decode step on the CPU; the mathematics is in step.c.
 *
 * A team of threads takes a group of sequences through all layers:
 *   - a small batch is one group, and all threads are its team. They share the rows of each weight,
 *     the heads or the sequences; barriers separate these. The products are bound by reading the
 *     weights, which are read once.
 *   - a large batch is divided into groups, and each thread is a team of its own: a group's
 *     intermediates stay in its thread's cache.
 * A result's bits do not depend on the number of threads. They depend on the batch size only
 * through LARGE_BATCH. */
#include "nn/generation/product_cpu.h"
#include "nn/generation/step.h"
#include "ops/elementwise/activation.h"
#include "ops/attention/linear/feature_map_cpu.h"
#include "ops/rows/layernorm.h"
#include "ops/attention/features/polynomial.h"
#include "ops/rows/rows.h"
#include "ops/shared/tiles_cpu.h"

#include <omp.h>

enum {
    LARGE_BATCH = 8,        /* sequences from which on products use blocks of sequences */
    GROUP = 32,             /* sequences per thread of a large batch */
    WORTH_A_TEAM = 1 << 17, /* multiplications per layer; with fewer, barriers cost more */
};

/* One thread's view of its team. */
typedef struct Team {
    const TransformerStep *step;
    int64_t part, parts; /* this thread's index in the team, the team's size */
    int64_t first, B;    /* the group: B sequences from first on */
    Real *x;             /* [B, width]: the residual stream */
    Real *normed;        /* [B, width] */
    Real *packed;        /* [B, 3 width]: queries, keys, values */
    Real *attended;      /* [B, width] */
    Real *inner;         /* [B, inner] */
    Real *work;          /* private to the thread: features, or softmax scores */
    Real *buffer;        /* private: step_product's buffer; NULL for a small batch */
} Team;

/* Rounds up to whole cache lines, to avoid false sharing. */
static int64_t lines(int64_t count)
{
    return round_up(count, LINE);
}

static void wait_for_team(const Team *team)
{
    if (team->parts > 1) {
#pragma omp barrier
    }
}

/* This thread's share of `size` items, in units of `multiple`. */
typedef struct Range {
    int64_t begin, end;
} Range;

static Range share(const Team *team, int64_t size, int64_t multiple)
{
    const int64_t pieces = (size + multiple - 1) / multiple;
    return (Range){ minimum(pieces * team->part / team->parts * multiple, size),
                    minimum(pieces * (team->part + 1) / team->parts * multiple, size) };
}

/* ------------------------------------------------------------------------------------- products */

/* out [B, rows] = x [B, n] weight^T + bias, or out += that, for this thread's rows, which it
 * returns. */
static Range linear(const Team *team, Real *out, bool add, const Real *x, StepLinear linear,
                    int64_t n, int64_t rows)
{
    const StepProduct p = { .out = out,
                            .x = x,
                            .weight = linear.weight,
                            .bias = linear.bias,
                            .B = team->B,
                            .n = n,
                            .out_stride = rows,
                            .x_stride = n,
                            .add = add,
                            .buffer = team->buffer };
    const Range range = share(team, rows, LINE);
    step_product(&p, range.begin, range.end);
    return range;
}

/* --------------------------------------------------------------------------------- feature maps */

/* out [D] = phi(x) for an elementwise map. */
ALWAYS_INLINE void map_elements(FeatureMap features, Real *out, const Real *x, int64_t D)
{
    int64_t d = 0;
    for (; d + LANES <= D; d += LANES)
        store(out + d, phi(features, load(x + d)));
    for (; d < D; d++)
        out[d] = phi(features, (Vector){ x[d] })[0];
}

static void map_squared_relu(Real *out, const Real *x, int64_t D)
{
    for (int64_t d = 0; d < D; d++)
        out[d] = relu(x[d]) * relu(x[d]);
}

/* Keys: as op_random_features. Queries: softmax, as in nn/attention.c. */
static void map_random(Real *out, const Real *x, const Real *projection, bool query, int64_t F,
                       int64_t D)
{
    step_product(&(StepProduct){ .out = out, .x = x, .weight = projection, .B = 1, .n = D }, 0, F);
    Real shift = 0, sum = 0;
    for (int64_t d = 0; d < D; d++)
        shift += x[d] * x[d] / 2;
    if (query)
        shift = row_max(out, F);
    for (int64_t f = 0; f < F; f++) {
        out[f] = real_exp(out[f] - shift);
        sum += out[f];
    }
    const Real scale = query ? 1 / sum : (Real)(1 / sqrt((double)F));
    for (int64_t f = 0; f < F; f++)
        out[f] *= scale;
}

/* out [F] = phi(x [D]), as in nn/attention.c; buffer [D] */
WHOLE_VECTORS static void map(const TransformerStep *step, const StepLayer *layer, Real *out,
                              const Real *x, bool query, Real *buffer)
{
    const int64_t D = step->D;
    if (step->features > FEATURES_SQUARED_RELU) {
        const Real scale = (Real)pow((double)D, -0.25);
        for (int64_t d = 0; d < D; d++)
            buffer[d] = scale * x[d];
    }
    switch (step->features) {
    case FEATURES_ELU_PLUS_ONE:
        map_elements(FEATURE_MAP_ELU_PLUS_ONE, out, x, D);
        return;
    case FEATURES_RELU:
        map_elements(FEATURE_MAP_RELU, out, x, D);
        return;
    case FEATURES_SOFTPLUS:
        memcpy(out, x, (size_t)D * sizeof *x);
        softplus_row(out, D);
        return;
    case FEATURE_MAP_IDENTITY:
        memcpy(out, x, (size_t)D * sizeof *x);
        return;
    case FEATURES_SQUARED_RELU:
        map_squared_relu(out, x, D);
        return;
    case FEATURES_POLYNOMIAL:
        polynomial_row(out, buffer, D);
        return;
    case FEATURES_RANDOM:
        map_random(out, buffer, layer->projection, query, step->F, D);
        return;
    }
}

/* --------------------------------------------------------------------------------------
 * attention */

/* S <- S + b v^T, out = S^T a for `vectors` vectors of columns, a compile-time constant. */
ALWAYS_INLINE void advance_columns(int vectors, Real *out, Real *S, const Real *a, const Real *b,
                                   const Real *v, int64_t F, int64_t stride)
{
    Vector value[2], sum[2] = { { 0 } };
    for (int i = 0; i < vectors; i++)
        value[i] = load(v + i * LANES);
    for (int64_t f = 0; f < F; f++, S += stride)
        for (int i = 0; i < vectors; i++) {
            const Vector s = load(S + i * LANES) + b[f] * value[i];
            store(S + i * LANES, s);
            sum[i] += a[f] * s;
        }
    for (int i = 0; i < vectors; i++)
        store(out + i * LANES, sum[i]);
}

/* One column: S <- S + b value; returns S^T a. */
static Real advance_column(Real *S, const Real *a, const Real *b, Real value, int64_t F,
                           int64_t stride)
{
    Real sum = 0;
    for (int64_t f = 0; f < F; f++, S += stride) {
        *S += b[f] * value;
        sum += a[f] * *S;
    }
    return sum;
}

/* Equations 18 to 20: out [D]; S [F, D + 1] has z as its last column. */
WHOLE_VECTORS static void advance(Real *out, Real *S, const Real *a, const Real *b, const Real *v,
                                  Real eps, int64_t F, int64_t D)
{
    int64_t d = 0;
    for (; d + 2 * LANES <= D; d += 2 * LANES)
        advance_columns(2, out + d, S + d, a, b, v + d, F, D + 1);
    for (; d + LANES <= D; d += LANES)
        advance_columns(1, out + d, S + d, a, b, v + d, F, D + 1);
    for (; d < D; d++)
        out[d] = advance_column(S + d, a, b, v[d], F, D + 1);
    const Real den = advance_column(S + D, a, b, 1, F, D + 1) + eps;
    for (d = 0; d < D; d++)
        out[d] /= den;
}

/* out [D] of head h of the group's sequence s; k is stored at q + H D, v at q + 2 H D. */
static void attend_linear(const Team *team, const StepLayer *layer, Real *out, const Real *q,
                          int64_t s, int64_t h)
{
    const TransformerStep *step = team->step;
    const int64_t F = step->F, D = step->D;
    Real *a = team->work, *b = a + lines(F), *buffer = b + lines(F);
    map(step, layer, a, q, true, buffer);
    map(step, layer, b, q + step->width, false, buffer);
    advance(out, layer->sums + ((team->first + s) * step->H + h) * F * (D + 1), a, b,
            q + 2 * step->width, step->eps, F, D);
}

/* out [D] = sum_j p_j v_j over the rows of v [n, D] */
WHOLE_VECTORS static void accumulate_values(Real *out, const Real *p, const Real *v, int64_t n,
                                            int64_t D)
{
    int64_t d = 0;
    for (; d + LANES <= D; d += LANES) {
        Vector sum = { 0 };
        for (int64_t j = 0; j < n; j++)
            sum += p[j] * load(v + j * D + d);
        store(out + d, sum);
    }
    for (; d < D; d++) {
        out[d] = 0;
        for (int64_t j = 0; j < n; j++)
            out[d] += p[j] * v[j * D + d];
    }
}

/* p [n] = softmax(p / sqrt D) */
static void softmax(Real *p, int64_t n, int64_t D)
{
    const Real scale = (Real)(1 / sqrt((double)D)), largest = row_max(p, n);
    Real sum = 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = real_exp(scale * (p[j] - largest));
        sum += p[j];
    }
    for (int64_t j = 0; j < n; j++)
        p[j] /= sum;
}

/* The same for softmax attention; a full KV cache stays unchanged. */
static void attend_softmax(const Team *team, const StepLayer *layer, Real *out, const Real *q,
                           int64_t s, int64_t h)
{
    const TransformerStep *step = team->step;
    const int64_t D = step->D, head = ((team->first + s) * step->H + h) * step->max_length * D;
    Real *keys = layer->keys + head, *values = layer->values + head, *p = team->work;
    int64_t n = step->counts[team->first + s];
    if (n < step->max_length) {
        memcpy(keys + n * D, q + step->width, (size_t)D * sizeof *q);
        memcpy(values + n * D, q + 2 * step->width, (size_t)D * sizeof *q);
        n++;
    }
    step_product(&(StepProduct){ .out = p, .x = q, .weight = keys, .B = 1, .n = D }, 0, n);
    softmax(p, n, D);
    accumulate_values(out, p, values, n, D);
}

static void attend(const Team *team, const StepLayer *layer)
{
    const TransformerStep *step = team->step;
    const Range range = share(team, team->B * step->H, 1);
    for (int64_t i = range.begin; i < range.end; i++) {
        const int64_t s = i / step->H, h = i % step->H;
        Real *out = team->attended + s * step->width + h * step->D;
        const Real *q = team->packed + s * 3 * step->width + h * step->D;
        if (step->softmax)
            attend_softmax(team, layer, out, q, s, h);
        else
            attend_linear(team, layer, out, q, s, h);
    }
}

/* ------------------------------------------------------------------------------------- the
 * layers */

/* out = norm(x): each thread processes its sequences, then the team synchronizes. */
static void normalize(const Team *team, Real *out, const Real *x, StepNorm norm)
{
    const int64_t width = team->step->width;
    const Range range = share(team, team->B, 1);
    for (int64_t s = range.begin; s < range.end; s++)
        layernorm_row(out + s * width, x + s * width, norm.weight, norm.bias, norm.eps, width);
    wait_for_team(team);
}

/* x <- x + attention(from) */
static void add_attention(const Team *team, const StepLayer *layer, const Real *from)
{
    const int64_t width = team->step->width;
    linear(team, team->packed, false, from, layer->input, width, 3 * width);
    wait_for_team(team);
    attend(team, layer);
    wait_for_team(team);
    linear(team, team->x, true, team->attended, layer->output, width, width);
    wait_for_team(team);
}

/* A loop per activation, with f a compile-time constant. */
ALWAYS_INLINE void activate_by(Activation f, Real *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = activation_of(f, y[i]);
}

static void activate(Real *y, int64_t n, Activation activation)
{
    if (activation == ACTIVATION_RELU)
        activate_by(ACTIVATION_RELU, y, n);
    else if (activation == ACTIVATION_GELU)
        activate_by(ACTIVATION_GELU, y, n);
    else
        activate_by(ACTIVATION_GELU_TANH, y, n);
}

/* x <- x + ff2(f(ff1(from))) */
static void add_feed_forward(const Team *team, const StepLayer *layer, const Real *from)
{
    const int64_t width = team->step->width, inner = team->step->inner;
    const Range mine = linear(team, team->inner, false, from, layer->ff1, width, inner);
    for (int64_t s = 0; s < team->B; s++)
        activate(team->inner + s * inner + mine.begin, mine.end - mine.begin,
                 team->step->activation);
    wait_for_team(team);
    linear(team, team->x, true, team->inner, layer->ff2, inner, width);
    wait_for_team(team);
}

static void run_layer(const Team *team, const StepLayer *layer)
{
    const bool pre_norm = team->step->pre_norm;
    const Real *from = pre_norm ? team->normed : team->x;
    if (pre_norm)
        normalize(team, team->normed, team->x, layer->norm1);
    add_attention(team, layer, from);
    normalize(team, pre_norm ? team->normed : team->x, team->x,
              pre_norm ? layer->norm2 : layer->norm1);
    add_feed_forward(team, layer, from);
    if (!pre_norm)
        normalize(team, team->x, team->x, layer->norm2);
}

/* Counts the position; when the sequence was full already, its result becomes NaN. */
static void count_position(const TransformerStep *step, Real *out, int64_t sequence)
{
    const int64_t count = step->counts[sequence];
    for (int64_t i = 0; count >= step->max_length && i < step->width; i++)
        out[i] = NAN;
    step->counts[sequence] = (int32_t)minimum(count + 1, step->max_length);
    step->positions[sequence] = (int32_t)minimum(count + 1, step->max_length - 1);
}

static void run(const Team *team, const Real *x)
{
    const TransformerStep *step = team->step;
    const int64_t width = step->width;
    const Range mine = share(team, team->B, 1);
    const size_t bytes = (size_t)((mine.end - mine.begin) * width) * sizeof *x;
    memmove(team->x + mine.begin * width, x + (team->first + mine.begin) * width, bytes);
    wait_for_team(team);
    for (int64_t i = 0; i < step->layers; i++)
        run_layer(team, &step->layer[i]);
    if (step->norm.weight)
        normalize(team, team->x, team->x, step->norm);
    for (int64_t s = mine.begin; s < mine.end; s++)
        count_position(step, team->x + s * width, team->first + s);
}

/* -----------------------------------------------------------------------------------------
 * teams */
typedef struct Plan {
    int64_t threads, group, groups;
    int64_t row;          /* elements per sequence of a team's memory */
    int64_t work, buffer; /* elements private to each thread */
} Plan;

/* Multiplications in the products of one layer, for all sequences. */
static int64_t work_of_layer(const TransformerStep *step)
{
    return step->B * step->width * (4 * step->width + 2 * step->inner);
}

static Plan plan_of(const TransformerStep *step)
{
    const bool alone = work_of_layer(step) < WORTH_A_TEAM;
    Plan plan = { .threads = alone ? 1 : omp_get_max_threads(), .group = step->B };
    if (step->B >= plan.threads * GROUP)
        plan.group = GROUP;
    plan.groups = (step->B + plan.group - 1) / plan.group;
    plan.row = 5 * lines(step->width) + lines(step->inner);
    plan.work = step->softmax ? lines(step->max_length) : 2 * lines(step->F) + lines(step->D);
    if (step->B >= LARGE_BATCH)
        plan.buffer = step_product_buffer(lines(maximum(step->inner, step->width)));
    return plan;
}

/* Elements of all teams' memory, which the threads' private memory follows. */
static int64_t team_memory(const Plan *plan)
{
    const int64_t teams = plan->groups > 1 ? plan->threads : 1;
    return teams * plan->group * plan->row;
}

int64_t transformer_step_scratch_cpu(const TransformerStep *step)
{
    const Plan plan = plan_of(step);
    return team_memory(&plan) + plan.threads * (plan.work + plan.buffer);
}

/* This thread's view of the team that processes a group. */
static Team team_of(const TransformerStep *step, const Plan *plan, Real *out, int64_t group)
{
    const int64_t thread = omp_get_thread_num(), first = group * plan->group;
    Team team = { .step = step,
                  .parts = plan->groups > 1 ? 1 : omp_get_num_threads(),
                  .part = plan->groups > 1 ? 0 : thread,
                  .first = first,
                  .B = minimum(plan->group, step->B - first),
                  .x = out + first * step->width };
    team.normed = step->scratch + (plan->groups > 1 ? thread : 0) * plan->group * plan->row;
    team.attended = team.normed + plan->group * lines(step->width);
    team.packed = team.attended + plan->group * lines(step->width);
    team.inner = team.packed + plan->group * 3 * lines(step->width);
    team.work = step->scratch + team_memory(plan) + thread * (plan->work + plan->buffer);
    team.buffer = plan->buffer ? team.work + plan->work : NULL;
    return team;
}

void transformer_step_cpu(Real *out, const Real *x, const TransformerStep *step)
{
    const Plan plan = plan_of(step);
#pragma omp parallel num_threads((int)plan.threads)
    if (plan.groups > 1) {
#pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < plan.groups; group++) {
            const Team team = team_of(step, &plan, out, group);
            run(&team, x);
        }
    } else {
        const Team team = team_of(step, &plan, out, 0);
        run(&team, x);
    }
}
