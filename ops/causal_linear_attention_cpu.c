/* Causal linear attention on the CPU: the scans of causal_linear_attention.c, written as one
 * primitive and called four times,
 *
 *     scan(x, y, w, o, T):  for each position in turn  T <- T + y w^T,  o <- o + T^T x
 *
 *     num = scan(a, b, v)             da = scan(ghat, v, b)         positions first to last
 *     db  = scan_back(v, ghat, a)     dv = scan_back(b, a, ghat)    the same, last to first
 *
 * A tile of T stays in vector registers while the positions of a chunk stream past it, so that T
 * costs no memory traffic and every instruction of the inner loop is a fused multiply-add.
 *
 * The normaliser (v~'s last column, all 1; in da and db g~'s last, delta) needs no scan: its part
 * of T is the one vector z_i = sum_{j<=i} b_j, or r_j = sum_{i>=j} delta_i a_i, kept beside T.
 *
 * A thread takes a group of neighbouring heads, whose rows touch in memory, CHUNK positions of each
 * in turn: it packs the chunk's rows (last to first for the scans back), scans them, and unpacks the
 * results. With more threads than heads, threads share a head: each computes some of the columns
 * of o. */
#include "ops/attention_cpu.h"
#include "ops/causal_linear_attention.h"

#include <omp.h>

/* Heads that a thread takes at once, at most. */
enum { GROUP = 8 };

/* -------------------------------------------------------------------------------------- the scan */

/* A tile of a scan: ROWS rows of T and some vectors (1 or 2, known when compiling) of its columns. */
ALWAYS_INLINE void scan_tile(int vectors,
                             const Real *x, /* [count, Y], from the tile's first row on */
                             const Real *y, /* [count, Y], likewise */
                             const Real *w, /* [count, W], from the tile's first column on */
                             Real *o,       /* [count, W], likewise */
                             Real *T,       /* [Y, W], from the tile's corner on */
                             int64_t count, int64_t Y, int64_t W)
{
    Vector tile[ROWS][2];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            tile[r][c] = vector(T + r * W + c * LANES);
    for (int64_t i = 0; i < count; i++, x += Y, y += Y, w += W, o += W) {
        Vector o_i[2];
        for (int c = 0; c < vectors; c++)
            o_i[c] = vector(o + c * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < vectors; c++) {
                tile[r][c] += y[r] * vector(w + c * LANES);
                o_i[c] += x[r] * tile[r][c];
            }
        for (int c = 0; c < vectors; c++)
            *at_vector(o + c * LANES) = o_i[c];
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < vectors; c++)
            *at_vector(T + r * W + c * LANES) = tile[r][c];
}

/* For each position in turn T <- T + y w^T, o <- o + T^T x, in some columns of T and o. */
WHOLE_VECTORS static void scan(const Real *x, /* [count, Y] */
                               const Real *y, /* [count, Y] */
                               const Real *w, /* [count, W] */
                               Real *o,       /* [count, W] */
                               Real *T,       /* [Y, W] */
                               int64_t count, int64_t Y, int64_t W, Columns columns)
{
    for (int64_t r = 0; r < Y; r += ROWS) {
        int64_t c = columns.first;
        for (; c + 2 * LANES <= columns.end; c += 2 * LANES)
            scan_tile(2, x + r, y + r, w + c, o + c, T + r * W + c, count, Y, W);
        if (c < columns.end)
            scan_tile(1, x + r, y + r, w + c, o + c, T + r * W + c, count, Y, W);
    }
}

/* ------------------------------------------------------------------------------- sharing the work */
typedef struct Plan {
    int threads;
    int64_t group;       /* heads of an item of work, */
    int64_t groups;      /* items that make a sequence's heads, */
    int64_t splits;      /* threads that share each item */
    int64_t D, M;        /* padded */
    int64_t state, work; /* numbers of memory a head and a thread */
} Plan;

static Plan make_plan(const Attention *x)
{
    Plan p = { .threads = device_threads() };
    int64_t heads = x->B * x->H;
    p.D = padded_size(x->D);
    p.M = padded_size(x->M);
    p.group = heads < p.threads ? 1 : smaller(smaller(heads / p.threads, x->H), GROUP);
    p.groups = (x->H + p.group - 1) / p.group;
    p.splits = heads < p.threads ? smaller(p.threads / heads, smaller(p.D, p.M) / LANES) : 1;
    p.state = 2 * p.D * p.M + p.D;
    p.work = 3 * CHUNK * (p.D + p.M) + p.group * p.state;
    return p;
}

/* What a pass over all positions works on: tensors [B, N, H, M], and numbers [B, N, H]. */
typedef struct Pass {
    const Attention *x;
    Plan plan;
    Real eps;
    Real *new_out, *new_den;      /* results of the forward pass, */
    const Real *out, *den, *dout; /* which the backward pass reads */
    Real *delta;
    AttentionGradient d;
    Real *scratch;
} Pass;

/* Some positions of one head, the first of them in row b N + n of the tensors, the next one in row
 * + step (1, or -1 when the pass runs back), and a thread's memory for them. */
typedef struct Chunk {
    int64_t row, step, count, head;
    int64_t split;    /* which of the threads that share the head this is */
    Real *a, *b, *da; /* [CHUNK, D]: phi(q), phi(k), da or db */
    Real *v, *g, *o;  /* [CHUNK, M]: v, ghat, num or dv */
    Real *z;          /* [D]: z or r at the chunk's begin, then at its end; likewise */
    Real *S, *R;      /* [D, M] or [M, D]: the states T of one scan, or two */
} Chunk;

static void take_memory(Chunk *chunk, const Plan *p, Real *memory)
{
    chunk->a = memory;
    chunk->b = chunk->a + CHUNK * p->D;
    chunk->da = chunk->b + CHUNK * p->D;
    chunk->v = chunk->da + CHUNK * p->D;
    chunk->g = chunk->v + CHUNK * p->M;
    chunk->o = chunk->g + CHUNK * p->M;
}

static void take_state(Chunk *chunk, const Plan *p, Real *state)
{
    chunk->z = state;
    chunk->S = chunk->z + p->D;
    chunk->R = chunk->S + p->D * p->M;
}

/* A split's share of the columns of a padded row. */
static Columns share_of(const Plan *p, int64_t split, int64_t padded)
{
    int64_t vectors = padded / LANES;
    return (Columns){ vectors * split / p->splits * LANES,
                      vectors * (split + 1) / p->splits * LANES };
}

/* Takes a step with every chunk of every head, first to last (direction 1) or last to first (-1). */
static void run(const Pass *pass, void (*step)(const Pass *, const Chunk *), int64_t direction)
{
    const Attention *x = pass->x;
    const Plan *p = &pass->plan;
    int64_t items = x->B * p->groups * p->splits;
#pragma omp parallel num_threads(p->threads)
    {
        Real *memory = pass->scratch + omp_get_thread_num() * p->work;
        Chunk chunk = { .step = direction };
        take_memory(&chunk, p, memory);
        Real *states = chunk.o + CHUNK * p->M;
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; item++) {
            int64_t sequence = item / (p->groups * p->splits);
            int64_t first = item / p->splits % p->groups * p->group;
            int64_t end = smaller(first + p->group, x->H);
            chunk.split = item % p->splits;
            zero_rows(states, p->group, p->state);
            for (int64_t n = 0; n < x->N; n += CHUNK) {
                chunk.row = sequence * x->N + (direction > 0 ? n : x->N - 1 - n);
                chunk.count = smaller(CHUNK, x->N - n);
                for (chunk.head = first; chunk.head < end; chunk.head++) {
                    take_state(&chunk, p, states + (chunk.head - first) * p->state);
                    step(pass, &chunk);
                }
            }
        }
    }
}

/* ------------------------------------------------------------------------------------- the passes */

/* Where the chunk's rows begin among rows that are stride apart, with columns numbers a head. */
static int64_t place(const Chunk *c, int64_t stride, int64_t columns)
{
    return c->row * stride + c->head * columns;
}

/* a = phi(q), b = phi(k), v */
static void pack_inputs(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const Plan *p = &pass->plan;
    pack_mapped(c->a, x->query + place(c, x->query_stride, x->D), c->step * x->query_stride,
                c->count, x->D, p->D);
    pack_mapped(c->b, x->key + place(c, x->key_stride, x->D), c->step * x->key_stride, c->count,
                x->D, p->D);
    pack(c->v, x->value + place(c, x->value_stride, x->M), c->step * x->value_stride, c->count,
         x->M, p->M);
}

/* Results [count, columns] into rows that are stride apart: the split's columns of them. */
static void unpack_results(const Pass *pass, const Chunk *c, Gradient to, const Real *from,
                           int64_t stride, int64_t columns, int64_t padded)
{
    Columns share = share_of(&pass->plan, c->split, padded);
    share.end = smaller(share.end, columns);
    to.data += place(c, stride, columns);
    unpack(to, from, c->step * stride, c->count, share, padded);
}

/* z_i = z_{i-1} + b_i     den_i = a_i.z_i + eps     out_i = num_i / den_i */
static void forward_step(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_inputs(pass, c);
    Real den[CHUNK];
    for (int64_t i = 0; i < c->count; i++) {
        add_multiple(c->z, 1, c->b + i * D, D);
        den[i] = dot(c->a + i * D, c->z, D) + pass->eps;
        if (c->split == 0)
            pass->new_den[(c->row + i) * x->H + c->head] = den[i];
    }
    zero_rows(c->o, c->count, M);
    scan(c->a, c->b, c->v, c->o, c->S, c->count, D, M, share_of(&pass->plan, c->split, M));
    for (int64_t i = 0; i < c->count; i++)
        multiply_row(c->o + i * M, 1 / den[i], M);
    unpack_results(pass, c, (Gradient){ pass->new_out, false }, c->o, x->H * x->M, x->M, M);
}

/* ghat_i = g_i / den_i */
static void pack_upstream(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t M = pass->plan.M, stride = x->H * x->M;
    pack(c->g, pass->dout + place(c, stride, x->M), c->step * stride, c->count, x->M, M);
    for (int64_t i = 0; i < c->count; i++)
        multiply_row(c->g + i * M, 1 / pass->den[(c->row + i * c->step) * x->H + c->head], M);
}

/* delta_i = -ghat_i.out_i     da_i = delta_i z_i + S_i ghat_i */
static void dquery_step(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M, stride = x->H * x->M;
    pack_inputs(pass, c);
    pack_upstream(pass, c);
    Real *out = c->o;
    pack(out, pass->out + place(c, stride, x->M), stride, c->count, x->M, M);
    for (int64_t i = 0; i < c->count; i++) {
        Real delta = -dot(c->g + i * M, out + i * M, M);
        if (c->split == 0)
            pass->delta[(c->row + i) * x->H + c->head] = delta;
        for (int64_t d = 0; d < D; d += LANES) {
            *at_vector(c->z + d) += vector(c->b + i * D + d);
            *at_vector(c->da + i * D + d) = delta * vector(c->z + d);
        }
    }
    if (!pass->d.query.data)
        return;
    scan(c->g, c->v, c->b, c->da, c->S, c->count, M, D, share_of(&pass->plan, c->split, D));
    through_map(c->da, c->a, c->count * D);
    unpack_results(pass, c, pass->d.query, c->da, x->query_stride, x->D, D);
}

/* db_j = r_j + R_j v_j     dv_j = R_j^T b_j     where r_j = sum_{i>=j} delta_i a_i */
static void dkey_dvalue_step(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_inputs(pass, c);
    pack_upstream(pass, c);
    Real *db = c->da;
    for (int64_t i = 0; i < c->count; i++) {
        Real delta = pass->delta[(c->row - i) * x->H + c->head];
        for (int64_t d = 0; d < D; d += LANES) {
            *at_vector(c->z + d) += delta * vector(c->a + i * D + d);
            *at_vector(db + i * D + d) = vector(c->z + d);
        }
    }
    if (pass->d.key.data) {
        scan(c->v, c->g, c->a, db, c->S, c->count, M, D, share_of(&pass->plan, c->split, D));
        through_map(db, c->b, c->count * D);
        unpack_results(pass, c, pass->d.key, db, x->key_stride, x->D, D);
    }
    if (pass->d.value.data) {
        zero_rows(c->o, c->count, M);
        scan(c->b, c->a, c->g, c->o, c->R, c->count, D, M, share_of(&pass->plan, c->split, M));
        unpack_results(pass, c, pass->d.value, c->o, x->value_stride, x->M, M);
    }
}

int64_t causal_linear_attention_scratch_cpu(const LinearScan *scan, bool backward)
{
    const Attention *x = &scan->x;
    Plan p = make_plan(x);
    return p.threads * p.work + (backward ? x->B * x->N * x->H : 0);
}

void causal_linear_attention_forward_cpu(Real *out, Real *den, Real *final_state, Real *scratch,
                                         const LinearScan *scan)
{
    (void)final_state;
    Pass pass = {
        .x = &scan->x,
        .plan = make_plan(&scan->x),
        .eps = scan->eps,
        .new_out = out,
        .new_den = den,
        .scratch = scratch,
    };
    run(&pass, forward_step, 1);
}

void causal_linear_attention_backward_cpu(LinearScanGradient d, const Real *dout,
                                          const Real *dfinal_state, const Real *out,
                                          const Real *den, Real *scratch, const LinearScan *scan)
{
    (void)dfinal_state;
    Pass pass = {
        .x = &scan->x,
        .plan = make_plan(&scan->x),
        .out = out,
        .den = den,
        .dout = dout,
        .d = d.x,
        .scratch = scratch,
    };
    pass.delta = scratch + pass.plan.threads * pass.plan.work;
    run(&pass, dquery_step, 1);
    if (d.x.key.data || d.x.value.data)
        run(&pass, dkey_dvalue_step, -1);
}
