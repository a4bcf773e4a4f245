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
#include "ext/decode/cpu/product.h"
#include "ext/features/kernels.h"
#include "ops/cpu/shared/feature_map.h"
#include "ops/cpu/shared/layernorm.h"
#include "ops/cpu/shared/storage.h"

enum {
    LARGE_BATCH = 8,        /* sequences from which on products use blocks of sequences */
    THREAD_SEQUENCES = 32,  /* sequences per thread of a large batch */
    WORTH_A_TEAM = 1 << 17, /* multiplications per layer; with fewer, barriers cost more */
};

/* One thread's view of its team. */
typedef struct Team {
    const TransformerState *state;
    int64_t part, parts;     /* this thread's index in the team, the team's size */
    int64_t first;           /* the group's first sequence */
    int64_t B;               /* sequences of the group, to which these buffers belong */
    Real *x;                 /* [B, width]: the residual stream, in out */
    Real *normed, *attended; /* [B, width] */
    Real *packed;            /* [B, 3 width]: queries, keys, values */
    Real *hidden;            /* [B, inner] */
    Real *work;              /* private to the thread: features, or softmax scores */
    Real *block;             /* private: step_product's buffer; NULL for a small batch */
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
    const int64_t units = (size + multiple - 1) / multiple;
    return (Range){ minimum(units * team->part / team->parts * multiple, size),
                    minimum(units * (team->part + 1) / team->parts * multiple, size) };
}

/* --------------------------------------------------------------------------------- feature maps */

static Real max_of_row(const Real *x, int64_t n)
{
    Real max = x[0];
#pragma omp simd reduction(max : max)
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

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
static void multiply_vector(Real *out, const Real *x, WeightType type, const Real *rows, int64_t n,
                            int64_t D)
{
    const StepProduct p = {
        .out = out, .x = x, .linear = { rows, NULL, type, NULL }, .B = 1, .I = D, .O = n
    };
    step_product(&p, NULL, 0, n);
}

/* Keys: as op_random_features. Queries: softmax, as in ext/features/. */
static void map_random(Real *out, const Real *x, const Real *projection, bool query, int64_t F,
                       int64_t D)
{
    multiply_vector(out, x, WEIGHT_REAL, projection, F, D);
    const Real sum = exponentiate_row(out, query ? max_of_row(out, F) : dot(x, x, D) / 2, F);
    const Real scale = query ? 1 / sum : (Real)(1 / sqrt((double)F));
    for (int64_t f = 0; f < F; f++)
        out[f] *= scale;
}

/* out [F] = phi(x [D]), as in ext/features/; out is aligned and padded to whole cache lines.
 * buffer [D] */
static void map_head(const EngineAttention *attention, Real *out, const Real *x, bool query,
                     int64_t F, int64_t D, Real *buffer)
{
    const int features = attention->features;
    if (features <= FEATURE_MAP_IDENTITY) {
        const Rows row = { TENSOR_REAL, x, D, 1, D };
        pack_mapped((FeatureMap)features, out, &row, round_up(D, LANES));
        return;
    }
    const Real scale = (Real)pow((double)D, -0.25);
    for (int64_t d = 0; d < D; d++)
        buffer[d] = scale * x[d];
    if (features == FEATURES_RANDOM)
        map_random(out, buffer, attention->projection->data, query, F, D);
    else if (features == FEATURES_POLYNOMIAL)
        polynomial_row(out, buffer, D);
    else
        for (int64_t d = 0; d < D; d++)
            out[d] = squared_relu(x[d]);
}

/* ------------------------------------------------------------------------------------ attention */

/* e^l of a head, of whose layer x [width] is the input: l = -log(1 + e^z), z = w.x + b + constant,
 * or the constant alone, or 0: log_decay_of in ext/gates/ */
static Real decay_of(const EngineAttention *attention, const Real *x, int64_t head, int64_t width)
{
    const Linear *linear = &attention->decay;
    if (!attention->decay_constant)
        return 1;
    const Real constant = attention->decay_constant->data[head];
    if (!linear->weight)
        return flush_factor(real_exp(constant));
    const Real z = dot(linear->weight->data + head * width, x, width) + linear->bias->data[head];
    return flush_factor(1 / (1 + real_exp(z + constant)));
}

/* Equations 18 and 19 as S [F, C] <- decay S + b v^T, and y [C] = S^T a. Four rows of S at a time
 * load and store y a quarter as often. */
static void advance(Real *restrict y, Real *restrict S, Real decay, const Real *a, const Real *b,
                    const Real *restrict v, int64_t F, int64_t C)
{
    int64_t f = 0;
    memset(y, 0, (size_t)C * sizeof *y);
    for (; f + 4 <= F; f += 4, S += 4 * C) {
#pragma omp simd
        for (int64_t c = 0; c < C; c++) {
            S[c] = decay * S[c] + b[f] * v[c];
            S[c + C] = decay * S[c + C] + b[f + 1] * v[c];
            S[c + 2 * C] = decay * S[c + 2 * C] + b[f + 2] * v[c];
            S[c + 3 * C] = decay * S[c + 3 * C] + b[f + 3] * v[c];
            y[c] += a[f] * S[c] + a[f + 1] * S[c + C] + a[f + 2] * S[c + 2 * C] +
                    a[f + 3] * S[c + 3 * C];
        }
    }
    for (; f < F; f++, S += C) {
#pragma omp simd
        for (int64_t c = 0; c < C; c++) {
            S[c] = decay * S[c] + b[f] * v[c];
            y[c] += a[f] * S[c];
        }
    }
}

/* out [D] of head `head` of all sequences' heads, from the layer's input x [width]; k is stored at
 * q + width, v at q + 2 width. */
static void attend_linear_head(const Team *team, int64_t layer, Real *out, const Real *x,
                               const Real *q, int64_t head)
{
    const TransformerState *state = team->state;
    const int64_t F = state->F, D = state->D;
    Real *a = team->work, *b = a + lines(F), *v = b + lines(F), *y = v + lines(D + 1);
    const EngineAttention *attention = &state->engine[layer];
    map_head(attention, a, q, true, F, D, v);
    map_head(attention, b, q + state->width, false, F, D, v);
    memcpy(v, q + 2 * state->width, (size_t)D * sizeof *v);
    v[D] = 1; /* S's last column is z, and y's last element z.a */
    advance(y, state->layer[layer].states[0].data + head * F * (D + 1),
            decay_of(attention, x, head % state->H, state->width), a, b, v, F, D + 1);
    for (int64_t d = 0; d < D; d++)
        out[d] = y[d] / (y[D] + (Real)ATTENTION_EPS);
}

/* out [D] = sum_j p_j v_j over the rows of v [n, D] of dtype T, four at a time. */
ALWAYS_INLINE void accumulate_values(int T, Real *restrict out, const Real *p,
                                     const Real *restrict v, int64_t n, int64_t D)
{
    int64_t j = 0;
    memset(out, 0, (size_t)D * sizeof *out);
    for (; j + 4 <= n; j += 4, v = elements_at(T, v, 4 * D)) {
#pragma omp simd
        for (int64_t d = 0; d < D; d++)
            out[d] += p[j] * load(T, v, d) + p[j + 1] * load(T, v, d + D) +
                      p[j + 2] * load(T, v, d + 2 * D) + p[j + 3] * load(T, v, d + 3 * D);
    }
    for (; j < n; j++, v = elements_at(T, v, D))
        for (int64_t d = 0; d < D; d++)
            out[d] += p[j] * load(T, v, d);
}

/* The same for softmax attention, which scales q; a full KV cache stays unchanged. */
static void attend_softmax_head(const Team *team, int64_t layer, Real *out, Real *q, int64_t head)
{
    const TransformerState *state = team->state;
    const LayerState *cache = &state->layer[layer];
    const int64_t D = state->D, offset = head * state->max_length * D;
    const int type = (int)cache->keys.type;
    Real *keys = elements_at(type, cache->keys.data, offset);
    Real *values = elements_at(type, cache->values.data, offset), *p = team->work;
    int64_t n = state->device_counts[head / state->H];
    if (n < state->max_length) {
        convert_elements(type, elements_at(type, keys, n * D), TENSOR_REAL, q + state->width, D);
        convert_elements(type, elements_at(type, values, n * D), TENSOR_REAL, q + 2 * state->width,
                         D);
        n++;
    }
    const Real scale = (Real)(1 / sqrt((double)D));
    for (int64_t d = 0; d < D; d++)
        q[d] *= scale;
    multiply_vector(p, q, (WeightType)type, keys, n, D);
    const Real sum = exponentiate_row(p, max_of_row(p, n), n);
    BY_STORAGE(type, T, accumulate_values(T, out, p, values, n, D));
    for (int64_t d = 0; d < D; d++)
        out[d] /= sum;
}

/* x [B, width]: the layer's input */
static void attend_heads(const Team *team, int64_t layer, const Real *x)
{
    const TransformerState *state = team->state;
    const Range range = share(team, team->B * state->H, 1);
    for (int64_t i = range.begin; i < range.end; i++) {
        Real *out = team->attended + i * state->D;
        Real *q = team->packed + i / state->H * 3 * state->width + i % state->H * state->D;
        if (state->softmax)
            attend_softmax_head(team, layer, out, q, team->first * state->H + i);
        else
            attend_linear_head(team, layer, out, x + i / state->H * state->width, q,
                               team->first * state->H + i);
    }
    wait_for_team(team);
}

/* ------------------------------------------------------------------------------------ the layers
 * Each thread computes its share; then the team synchronizes. */

/* out = norm(x); out may be x. */
static void normalize(const Team *team, Real *out, const Real *x, const LayerNorm *norm)
{
    const int64_t width = team->state->width;
    const Range range = share(team, team->B, 1);
    for (int64_t s = range.begin; s < range.end; s++)
        layernorm_row(TENSOR_REAL, out + s * width, TENSOR_REAL, x + s * width, norm->weight->data,
                      norm->bias->data, (Real)norm->eps, width);
    wait_for_team(team);
}

ALWAYS_INLINE void activate(Activation f, Real *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = activation_of(f, y[i]);
}

/* out [B, O] (+)= f(in [B, I] weight^T + bias) */
static void multiply_shared(const Team *team, Real *out, bool accumulate, const Real *in,
                            const StepLinear *linear, Activation f, int64_t I, int64_t O)
{
    const StepProduct p = { out, accumulate, in, *linear, team->B, I, O };
    const Range mine = share(team, O, LINE);
    step_product(&p, team->block, mine.begin, mine.end);
    for (int64_t s = 0; f != ACTIVATION_NONE && s < p.B; s++)
        BY_ACTIVATION(f, activate, out + s * O + mine.begin, mine.end - mine.begin)
    wait_for_team(team);
}

/* Counts the position. The sequence was not full: the CPU records no step, so nn_transformer_step
 * has looked at its count. */
static void count_position(const TransformerState *state, int64_t sequence)
{
    const int64_t count = state->device_counts[sequence] + 1;
    state->device_counts[sequence] = (int32_t)count;
    state->positions.integers[sequence] = (int32_t)minimum(count, state->max_length - 1);
}

static void run_layer(const Team *team, int64_t i)
{
    const TransformerState *state = team->state;
    const TransformerLayer *layer = &state->transformer.layer[i];
    const StepLayer *weights = &step_layers(state)[i];
    const int64_t width = state->width, inner = state->inner;
    const Activation none = ACTIVATION_NONE;
    Real *x = team->x, *in = layer->pre_norm ? team->normed : x;
    if (layer->pre_norm)
        normalize(team, in, x, &layer->norm1);
    multiply_shared(team, team->packed, false, in, &weights->input, none, width, 3 * width);
    attend_heads(team, i, in);
    multiply_shared(team, x, true, team->attended, &weights->output, none, width, width);
    normalize(team, in, x, layer->pre_norm ? &layer->norm2 : &layer->norm1);
    multiply_shared(team, team->hidden, false, in, &weights->ff1, layer->activation, width, inner);
    multiply_shared(team, x, true, team->hidden, &weights->ff2, none, inner, width);
    if (!layer->pre_norm)
        normalize(team, x, x, &layer->norm2);
}

static void run(const Team *team, const Real *input)
{
    const TransformerState *state = team->state;
    const Transformer *transformer = &state->transformer;
    const int64_t width = state->width;
    Real *x = team->x;
    const Range mine = share(team, team->B, 1);
    const size_t bytes = (size_t)((mine.end - mine.begin) * width) * sizeof *x;
    memmove(x + mine.begin * width, input + (team->first + mine.begin) * width, bytes);
    wait_for_team(team);
    for (int64_t i = 0; i < transformer->layers; i++)
        run_layer(team, i);
    if (transformer->has_norm)
        normalize(team, x, x, &transformer->norm);
    for (int64_t s = mine.begin; s < mine.end; s++)
        count_position(state, team->first + s);
}

/* ---------------------------------------------------------------------------------------- teams */
typedef struct StepPlan {
    int64_t threads, group, groups, teams;
    int64_t row;         /* elements per sequence of a team's memory */
    int64_t work, block; /* elements private to each thread */
} StepPlan;

/* Multiplications per layer. */
static int64_t work_of(const TransformerState *state)
{
    return state->B * state->width * (4 * state->width + 2 * state->inner);
}

static StepPlan plan_of(const TransformerState *state)
{
    const int64_t B = state->B, width = state->width, inner = state->inner;
    const bool alone = work_of(state) < WORTH_A_TEAM;
    StepPlan plan = { .threads = alone ? 1 : device_threads() };
    plan.group = B < plan.threads * THREAD_SEQUENCES ? B : THREAD_SEQUENCES;
    plan.groups = (B + plan.group - 1) / plan.group;
    plan.teams = plan.groups > 1 ? plan.threads : 1;
    plan.row = 5 * lines(width) + lines(inner);
    plan.work =
        state->softmax ? lines(state->max_length) : 2 * lines(state->F) + 2 * lines(state->D + 1);
    plan.block = B < LARGE_BATCH ? 0 : step_product_buffer(lines(maximum(inner, width)));
    return plan;
}

/* This thread's view of the team that processes a group. workspace: all teams' memory, then the
 * threads' private memory. */
static Team team_of(const TransformerState *state, const StepPlan *plan, Real *workspace, Real *out,
                    int64_t group)
{
    const int64_t thread = omp_get_thread_num(), first = group * plan->group;
    const bool alone = plan->groups > 1;
    const int64_t rows = plan->group * lines(state->width);
    Real *memory = workspace + (alone ? thread : 0) * plan->group * plan->row;
    Real *work =
        workspace + plan->teams * plan->group * plan->row + thread * (plan->work + plan->block);
    return (Team){ .state = state,
                   .parts = alone ? 1 : omp_get_num_threads(),
                   .part = alone ? 0 : thread,
                   .first = first,
                   .B = minimum(plan->group, state->B - first),
                   .x = out + first * state->width,
                   .normed = memory,
                   .attended = memory + rows,
                   .packed = memory + 2 * rows,
                   .hidden = memory + 5 * rows,
                   .work = work,
                   .block = plan->block ? work + plan->work : NULL };
}

static void transformer_step_cpu(Real *out, const Real *x, const TransformerState *state)
{
    const StepPlan plan = plan_of(state);
    Real *workspace = device_workspace(plan.teams * plan.group * plan.row +
                                       plan.threads * (plan.work + plan.block));
    const int threads =
        plan.threads > 1 ? device_threads_for(state->transformer.layers * work_of(state), 0.2) : 1;
#pragma omp parallel num_threads(threads)
    if (plan.groups > 1) {
#pragma omp for schedule(dynamic)
        for (int64_t group = 0; group < plan.groups; group++) {
            const Team team = team_of(state, &plan, workspace, out, group);
            run(&team, x);
        }
    } else {
        const Team team = team_of(state, &plan, workspace, out, 0);
        run(&team, x);
    }
    device_workspace_free(workspace);
}

const DecodeKernels decode_cpu = { transformer_step_cpu, store_step_weights };
