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
#include "ops/attention/features/polynomial.h"
#include "ops/attention/linear/feature_map_cpu.h"
#include "ops/rows/layernorm.h"
#include "ops/rows/rows.h"

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
    int64_t first;       /* the group's first sequence */
    StepBuffers buffers; /* of the group; with post-norm, normed is x */
    Real *work;          /* private to the thread: features, or softmax scores */
    Real *block;         /* private: step_product's buffer; NULL for a small batch */
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

/* --------------------------------------------------------------------------------- feature maps */

/* y [n] <- e^(y - shift); returns their sum. */
static Real exponentiate_row(Real *y, Real shift, int64_t n)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        y[i] = real_exp(y[i] - shift);
        sum += y[i];
    }
    return sum;
}

/* out [n] = rows [n, D] x [D] */
static void multiply_row(Real *out, const Real *x, const Real *rows, int64_t n, int64_t D)
{
    const StepProduct p = {
        .out = out, .in.x = x, .linear.weight = rows, .B = 1, .I = (int)D, .O = (int)n
    };
    step_product(&p, NULL, 0, n);
}

/* Keys: as op_random_features. Queries: softmax, as in nn/attention.c. */
static void map_random(Real *out, const Real *x, const Real *projection, bool query, int64_t F,
                       int64_t D)
{
    multiply_row(out, x, projection, F, D);
    const Real sum = exponentiate_row(out, query ? row_max(out, F) : dot(x, x, D) / 2, F);
    const Real scale = query ? 1 / sum : (Real)(1 / sqrt((double)F));
    for (int64_t f = 0; f < F; f++)
        out[f] *= scale;
}

/* out [F] = phi(x [D]), as in nn/attention.c; out is aligned and padded to whole cache lines.
 * buffer [D] */
static void map(const TransformerStep *step, const StepLayer *layer, Real *out, const Real *x,
                bool query, Real *buffer)
{
    const int64_t D = step->D;
    if (step->features <= FEATURES_IDENTITY) {
        const Rows row = { x, D, 1, D };
        pack_mapped((FeatureMap)step->features, out, &row, round_up(D, LANES));
        return;
    }
    const Real scale = (Real)pow((double)D, -0.25);
    for (int64_t d = 0; d < D; d++)
        buffer[d] = scale * x[d];
    if (step->features == FEATURES_RANDOM)
        map_random(out, buffer, layer->projection, query, step->F, D);
    else if (step->features == FEATURES_POLYNOMIAL)
        polynomial_row(out, buffer, D);
    else
        for (int64_t d = 0; d < D; d++)
            out[d] = squared_relu(x[d]);
}

/* ------------------------------------------------------------------------------------ attention */

/* S <- S + b v^T, y = S^T a for `vectors` vectors of columns, a compile-time constant. */
ALWAYS_INLINE void advance_columns(int vectors, Real *y, Real *S, const Real *a, const Real *b,
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
        store(y + i * LANES, sum[i]);
}

/* Equations 18 and 19 as S [F, C] <- S + b v^T, and y [C] = S^T a. */
WHOLE_VECTORS static void advance(Real *y, Real *S, const Real *a, const Real *b, const Real *v,
                                  int64_t F, int64_t C)
{
    int64_t c = 0;
    for (; c + 2 * LANES <= C; c += 2 * LANES)
        advance_columns(2, y + c, S + c, a, b, v + c, F, C);
    for (; c + LANES <= C; c += LANES)
        advance_columns(1, y + c, S + c, a, b, v + c, F, C);
    for (; c < C; c++) {
        y[c] = 0;
        for (int64_t f = 0; f < F; f++) {
            S[f * C + c] += b[f] * v[c];
            y[c] += a[f] * S[f * C + c];
        }
    }
}

/* out [D] of head `head` of all sequences' heads; k is stored at q + width, v at q + 2 width. */
static void attend_linear(const Team *team, const StepLayer *layer, Real *out, const Real *q,
                          int64_t head)
{
    const TransformerStep *step = team->step;
    const int64_t F = step->F, D = step->D;
    Real *a = team->work, *b = a + lines(F), *v = b + lines(F), *y = v + lines(D + 1);
    map(step, layer, a, q, true, v);
    map(step, layer, b, q + step->width, false, v);
    memcpy(v, q + 2 * step->width, (size_t)D * sizeof *v);
    v[D] = 1; /* S's last column is z, and y's last element z.a */
    advance(y, layer->sums + head * F * (D + 1), a, b, v, F, D + 1);
    for (int64_t d = 0; d < D; d++)
        out[d] = y[d] / (y[D] + step->eps);
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

/* The same for softmax attention, which scales q; a full KV cache stays unchanged. */
static void attend_softmax(const Team *team, const StepLayer *layer, Real *out, Real *q,
                           int64_t head)
{
    const TransformerStep *step = team->step;
    const int64_t D = step->D, offset = head * step->max_length * D;
    Real *keys = layer->keys + offset, *values = layer->values + offset, *p = team->work;
    int64_t n = step->counts[head / step->H];
    if (n < step->max_length) {
        memcpy(keys + n * D, q + step->width, (size_t)D * sizeof *q);
        memcpy(values + n * D, q + 2 * step->width, (size_t)D * sizeof *q);
        n++;
    }
    const Real scale = (Real)(1 / sqrt((double)D));
    for (int64_t d = 0; d < D; d++)
        q[d] *= scale;
    multiply_row(p, q, keys, n, D);
    const Real sum = exponentiate_row(p, row_max(p, n), n);
    accumulate_values(out, p, values, n, D);
    for (int64_t d = 0; d < D; d++)
        out[d] /= sum;
}

static void attend(const Team *team, const StepLayer *layer)
{
    const TransformerStep *step = team->step;
    const StepBuffers *buffers = &team->buffers;
    const Range range = share(team, buffers->B * step->H, 1);
    for (int64_t i = range.begin; i < range.end; i++) {
        Real *out = buffers->attended + i * step->D;
        Real *q = buffers->packed + i / step->H * 3 * step->width + i % step->H * step->D;
        if (step->softmax)
            attend_softmax(team, layer, out, q, team->first * step->H + i);
        else
            attend_linear(team, layer, out, q, team->first * step->H + i);
    }
    wait_for_team(team);
}

/* ------------------------------------------------------------------------------------ the layers
 * Each thread computes its share; then the team synchronizes. */

/* out = norm(x); out may be x. */
static void normalize(const Team *team, Real *out, const Real *x, StepNorm norm)
{
    const int64_t width = team->step->width;
    const Range range = share(team, team->buffers.B, 1);
    for (int64_t s = range.begin; s < range.end; s++)
        layernorm_row(out + s * width, x + s * width, norm.weight, norm.bias, norm.eps, width);
    wait_for_team(team);
}

/* A loop per activation, with f a compile-time constant. */
ALWAYS_INLINE void activate_by(Activation f, Real *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = activation_of(f, y[i]);
}

static void activate(Activation activation, Real *y, int64_t n)
{
    if (activation == ACTIVATION_RELU)
        activate_by(ACTIVATION_RELU, y, n);
    else if (activation == ACTIVATION_GELU)
        activate_by(ACTIVATION_GELU, y, n);
    else if (activation == ACTIVATION_GELU_TANH)
        activate_by(ACTIVATION_GELU_TANH, y, n);
}

static void multiply(const Team *team, StepProduct p)
{
    if (p.in.norm.weight) {
        normalize(team, p.in.normed, p.in.x, p.in.norm);
        p.in.x = p.in.normed;
    }
    const Range mine = share(team, p.O, LINE);
    step_product(&p, team->block, mine.begin, mine.end);
    for (int64_t s = 0; s < p.B; s++)
        activate(p.activation, p.out + s * p.O + mine.begin, mine.end - mine.begin);
    wait_for_team(team);
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

static void run(const Team *team, const Real *input)
{
    const TransformerStep *step = team->step;
    const int64_t width = step->width;
    Real *x = team->buffers.x;
    const Range mine = share(team, team->buffers.B, 1);
    const size_t bytes = (size_t)((mine.end - mine.begin) * width) * sizeof *x;
    memmove(x + mine.begin * width, input + (team->first + mine.begin) * width, bytes);
    wait_for_team(team);
    for (const StepLayer *layer = step->layer; layer < step->layer + step->layers; layer++) {
        const LayerProducts products = layer_products(step, layer, x, &team->buffers);
        multiply(team, products.input);
        attend(team, layer);
        multiply(team, products.output);
        multiply(team, products.ff1);
        multiply(team, products.ff2);
    }
    if (step->last_norm.weight)
        normalize(team, x, x, step->last_norm);
    if (step->norm.weight)
        normalize(team, x, x, step->norm);
    for (int64_t s = mine.begin; s < mine.end; s++)
        count_position(step, x + s * width, team->first + s);
}

/* ---------------------------------------------------------------------------------------- teams */
typedef struct Plan {
    int64_t threads, group, groups, teams;
    int64_t row;         /* elements per sequence of a team's memory */
    int64_t work, block; /* elements private to each thread */
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
    plan.teams = plan.groups > 1 ? plan.threads : 1;
    plan.row = 5 * lines(step->width) + lines(step->inner);
    plan.work =
        step->softmax ? lines(step->max_length) : 2 * lines(step->F) + 2 * lines(step->D + 1);
    if (step->B >= LARGE_BATCH)
        plan.block = step_product_buffer(lines(maximum(step->inner, step->width)));
    return plan;
}

/* All teams' memory, then the threads' private memory. */
int64_t transformer_step_scratch_cpu(const TransformerStep *step)
{
    const Plan plan = plan_of(step);
    return plan.teams * plan.group * plan.row + plan.threads * (plan.work + plan.block);
}

/* This thread's view of the team that processes a group. */
static Team team_of(const TransformerStep *step, const Plan *plan, Real *out, int64_t group)
{
    const int64_t thread = omp_get_thread_num(), first = group * plan->group;
    const bool alone = plan->groups > 1;
    const int64_t rows = plan->group * lines(step->width);
    Real *memory = step->scratch + (alone ? thread : 0) * plan->group * plan->row;
    Real *work =
        step->scratch + plan->teams * plan->group * plan->row + thread * (plan->work + plan->block);
    Real *x = out + first * step->width;
    return (Team){ .step = step,
                   .parts = alone ? 1 : omp_get_num_threads(),
                   .part = alone ? 0 : thread,
                   .first = first,
                   .buffers = { .B = minimum(plan->group, step->B - first),
                                .x = x,
                                .normed = step->pre_norm ? memory : x,
                                .attended = memory + rows,
                                .packed = memory + 2 * rows,
                                .hidden = memory + 5 * rows },
                   .work = work,
                   .block = plan->block ? work + plan->work : NULL };
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
