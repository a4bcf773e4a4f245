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
 * A head's rows lie H D numbers apart in memory. A thread therefore takes a group of neighbouring
 * heads, CHUNK positions of each in turn: it packs the chunk's rows side by side, padded with zeros
 * to whole vectors, asks for the rows of the next chunk meanwhile, and unpacks the results. The
 * reverse scans pack the rows last to first. With more threads than heads, threads share a head:
 * each computes some of the columns of o. */
#include "ops/causal_linear_attention.h"

#include <omp.h>

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, ROWS = 8 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32, ROWS = 4 };
#else
enum { VECTOR_BYTES = 16, ROWS = 4 };
#endif
enum {
    LANES = VECTOR_BYTES / sizeof(Real),
    UNIT = ROWS > LANES ? ROWS : LANES, /* rows are padded to a multiple of it */
    LINE = 64 / sizeof(Real),           /* numbers in a cache line */
    CHUNK = 16,                         /* positions */
    GROUP = 8,                          /* heads that a thread takes at once, at most */
};

typedef Real Vector __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef Real UnalignedVector
    __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(sizeof(Real))));
#ifdef TAPEGRAD_DOUBLE
typedef int64_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#else
typedef int32_t Mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

ALWAYS_INLINE Vector *at_vector(Real *data)
{
    return (Vector *)(void *)data;
}

ALWAYS_INLINE Vector vector(const Real *data)
{
    return *(const Vector *)(const void *)data;
}

/* mask ? x : y */
ALWAYS_INLINE Vector choose(Mask mask, Vector x, Vector y)
{
    return (Vector)((mask & (Mask)x) | (~mask & (Mask)y));
}

/* ---------------------------------------------------------------------------------- feature map */
#ifdef TAPEGRAD_DOUBLE
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = exp(x[i]);
    return x;
}
#else
/* e^x for x <= 0, as real_exp of ops/math.h, but on a vector at a time while it is being packed:
 * e^x = 2^k e^r with k the integer next to x / ln 2, and e^r = 1 + r + r^2 P(r).
 * Below -87 it is e^-87 = 1.6e-38, lest sums hold denormal numbers. Not-a-number stays. */
ALWAYS_INLINE Vector exp_vector(Vector x)
{
    const Vector lowest = (Vector){ 0 } - 87;
    x = choose(x < lowest, lowest, x);
    Vector shifted = x * 1.44269504f + 0x3p22f;
    Vector k = shifted - 0x3p22f;
    Vector r = x - k * 0.693359375f - k * -2.12194440e-4f;
    Vector p = 0.00138683163f * r + 0.00836642366f;
    p = p * r + 0.0416674651f;
    p = p * r + 0.16666545f;
    p = p * r + 0.49999997f;
    p = p * r + 1;
    p = p * r + 1;
    return p * (Vector)(((Mask)shifted + 127) << 23);
}
#endif

/* phi(x) = e^min(x, 0) + max(x, 0) */
ALWAYS_INLINE Vector phi(Vector x)
{
    const Vector zero = { 0 };
    return exp_vector(choose(x > 0, zero, x)) + choose(x > 0, x, zero);
}

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

typedef struct Columns {
    int64_t first, end;
} Columns;

/* For each position in turn T <- T + y w^T, o <- o + T^T x, in some columns of T and o. */
static void scan(const Real *x, /* [count, Y] */
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

/* -------------------------------------------------------------------------- packing and unpacking */

/* Packs rows [count, columns], which are stride apart, to [count, padded], mapped by phi or not;
 * meanwhile asks for the rows of the next chunk. */
ALWAYS_INLINE void pack_rows(bool map, Real *to, const Real *from, int64_t stride, int64_t count,
                             int64_t columns, int64_t padded)
{
    for (int64_t i = 0; i < count; i++, from += stride, to += padded) {
        for (int64_t c = 0; c < columns; c += LINE)
            __builtin_prefetch(from + CHUNK * stride + c);
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) {
            Vector x = *(const UnalignedVector *)(const void *)(from + c);
            *at_vector(to + c) = map ? phi(x) : x;
        }
        for (; c < columns; c++)
            to[c] = map ? phi((Vector){ from[c] })[0] : from[c];
        for (; c < padded; c++)
            to[c] = 0;
    }
}

static void pack(Real *to, const Real *from, int64_t stride, int64_t count, int64_t columns,
                 int64_t padded)
{
    pack_rows(false, to, from, stride, count, columns, padded);
}

static void pack_mapped(Real *to, const Real *from, int64_t stride, int64_t count, int64_t columns,
                        int64_t padded)
{
    pack_rows(true, to, from, stride, count, columns, padded);
}

/* The way back, of some of the columns: stores them, or adds them to what is there. */
static void unpack(Gradient to, const Real *from, int64_t stride, int64_t count, Columns columns,
                   int64_t padded)
{
    Real *row = to.data;
    for (int64_t i = 0; i < count; i++, row += stride, from += padded) {
        for (int64_t c = columns.first; c < columns.end; c += LINE)
            __builtin_prefetch(row + CHUNK * stride + c, 1);
        int64_t c = columns.first;
        for (; c + LANES <= columns.end; c += LANES) {
            UnalignedVector *target = (UnalignedVector *)(void *)(row + c);
            Vector x = vector(from + c);
            if (to.accumulate)
                x += *target;
            *target = x;
        }
        for (; c < columns.end; c++)
            contribute(row + c, to.accumulate, from[c]);
    }
}

static Real dot(const Real *x, const Real *y, int64_t n)
{
    Vector products = { 0 };
    for (int64_t c = 0; c < n; c += LANES)
        products += vector(x + c) * vector(y + c);
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < LANES; i++)
        sum += products[i];
    return sum;
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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static Plan make_plan(const Attention *x)
{
    Plan p = { .threads = device_threads() };
    int64_t heads = x->B * x->H;
    p.D = (x->D + UNIT - 1) / UNIT * UNIT;
    p.M = (x->M + UNIT - 1) / UNIT * UNIT;
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
            memset(states, 0, (size_t)(p->group * p->state) * sizeof(Real));
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

static void multiply_row(Real *row, Real factor, int64_t n)
{
    for (int64_t c = 0; c < n; c += LANES)
        *at_vector(row + c) *= factor;
}

/* z_i = z_{i-1} + b_i     den_i = a_i.z_i + eps     out_i = num_i / den_i */
static void forward_step(const Pass *pass, const Chunk *c)
{
    const Attention *x = pass->x;
    const int64_t D = pass->plan.D, M = pass->plan.M;
    pack_inputs(pass, c);
    Real den[CHUNK];
    for (int64_t i = 0; i < c->count; i++) {
        for (int64_t d = 0; d < D; d += LANES)
            *at_vector(c->z + d) += vector(c->b + i * D + d);
        den[i] = dot(c->a + i * D, c->z, D) + pass->eps;
        if (c->split == 0)
            pass->new_den[(c->row + i) * x->H + c->head] = den[i];
    }
    memset(c->o, 0, (size_t)(c->count * M) * sizeof(Real));
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

/* dx = dphi min(1, phi(x)), over dphi */
static void through_map(Real *dphi, const Real *phi_x, int64_t n)
{
    const Vector one = (Vector){ 0 } + 1;
    for (int64_t i = 0; i < n; i += LANES) {
        Vector slope = vector(phi_x + i);
        *at_vector(dphi + i) *= choose(slope > 1, one, slope);
    }
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
        memset(c->o, 0, (size_t)(c->count * M) * sizeof(Real));
        scan(c->b, c->a, c->g, c->o, c->R, c->count, D, M, share_of(&pass->plan, c->split, M));
        unpack_results(pass, c, pass->d.value, c->o, x->value_stride, x->M, M);
    }
}

int64_t causal_linear_attention_scratch_cpu(const Attention *x, bool backward)
{
    Plan p = make_plan(x);
    return p.threads * p.work + (backward ? x->B * x->N * x->H : 0);
}

void causal_linear_attention_forward_cpu(Real *out, Real *den, Real *scratch, const Attention *x,
                                         Real eps)
{
    Pass pass = {
        .x = x,
        .plan = make_plan(x),
        .eps = eps,
        .new_out = out,
        .new_den = den,
        .scratch = scratch,
    };
    run(&pass, forward_step, 1);
}

void causal_linear_attention_backward_cpu(AttentionGradient d, const Real *dout, const Real *out,
                                          const Real *den, Real *scratch, const Attention *x)
{
    Pass pass = {
        .x = x,
        .plan = make_plan(x),
        .out = out,
        .den = den,
        .dout = dout,
        .d = d,
        .scratch = scratch,
    };
    pass.delta = scratch + pass.plan.threads * pass.plan.work;
    run(&pass, dquery_step, 1);
    if (d.key.data || d.value.data)
        run(&pass, dkey_dvalue_step, -1);
}
