/* The loop over time on the CPU, for a cell of G gates. A step is a product of all sequences'
 * hidden states and W_hh, [B, H] [H, G H], and the cell's elementwise functions.
 *
 * A thread computes the same hidden units in all steps, so its part of W_hh, packed into panels for
 * the product's register tiles, remains in its L2. One barrier per step separates the writing of h,
 * backward of dgates, from their reading by all threads; two buffers alternate. A small W_hh and
 * a large batch: the threads divide the batch instead. */
#ifndef TAPEGRAD_OPS_RECURRENT_RECURRENCE_CPU_H
#define TAPEGRAD_OPS_RECURRENT_RECURRENCE_CPU_H

#include "ext/recurrent/kernels.h"
#include "ops/cpu/shared/tiles.h"

/* Below, threads is device_threads(), read once per pass: the workspace is sized by it. */

/* Units per block: two vectors of columns of a tile. */
enum { UNITS = 2 * LANES };

/* Multiply-adds of a step below which a second thread costs more than it saves, and the steps below
 * which packing W_hh does. */
enum { STEP_MINIMUM = 1 << 18, PACKED_STEPS = 4 };

/* The units [first, first + count) */
typedef struct UnitBlock {
    int64_t index, first, count;
} UnitBlock;

/* One sequence's cell at one step. */
typedef struct CellStep {
    int64_t b, step, position;
} CellStep;

/* Forward: from and to [count] are h before and after, sums the products of gate g at g stride. */
typedef void CellForward(const Recurrence *r, CellStep at, UnitBlock units, const Real *sums,
                         int64_t stride, const Real *from, Real *to);
/* Backward: dh [count] is dL/dh of this step without dout; it becomes dL/dh of the step before
 * without the product's part. dgates: gate g at g H. */
typedef void CellBackward(const Recurrence *r, CellStep at, UnitBlock units, Real *dh,
                          Real *dgates);

static inline int64_t unit_block_count(const Recurrence *r)
{
    return (r->H + UNITS - 1) / UNITS;
}

static inline UnitBlock block_at(const Recurrence *r, int64_t index)
{
    return (UnitBlock){ index, index * UNITS, minimum(UNITS, r->H - index * UNITS) };
}

/* The distance of rows in the buffers of h and dgates: an odd number of cache lines, so that rows
 * do not meet in one set of L1. */
static inline int64_t row_stride(int64_t columns)
{
    return (round_up(columns, LINE) / LINE | 1) * LINE;
}

/* Of `available`, the threads of a pass: one on a busy machine, where a barrier takes as long as
 * waking the team; on an idle one it takes about a tenth of that. */
static inline int threads_of_pass(const Recurrence *r, int64_t available)
{
    const bool small = r->B * r->G * r->H * r->H < STEP_MINIMUM;
    const int threads = small ? 1 : (int)minimum(available, unit_block_count(r));
    const double step = 0.015 * (double)(r->B * r->G * r->H * r->H); /* nanoseconds */
    return threads > 1 && device_threads_for(12, step) > 1 ? threads : 1;
}

/* ------------------------------------------------------------------------------ parts of the batch
 * Sequences are independent: where W_hh fits in every thread's L2, a thread computes all units of
 * its sequences, without barriers. Results are bitwise the same, divided or not. */
enum { SHARED_WEIGHTS = 1 << 18 }; /* bytes */

static inline int64_t batch_parts(const Recurrence *r, int64_t threads)
{
    const int64_t bytes = r->G * r->H * r->H * (int64_t)sizeof(Real);
    return r->N >= PACKED_STEPS && r->B >= threads * ROWS && bytes <= SHARED_WEIGHTS ? threads : 1;
}

/* Nanoseconds of a part. */
static inline double cost_of_part(const Recurrence *r, int64_t parts)
{
    return (0.015 * (double)(r->G * r->H) + 1) * (double)(r->B * r->N * r->H / parts);
}

/* The sequences of a part. */
static inline Recurrence batch_part(const Recurrence *r, int64_t part, int64_t parts)
{
    const int64_t first = r->B * part / parts, units = first * r->H, all = r->N * units;
    Recurrence own = *r;
    own.B = r->B * (part + 1) / parts - first;
    own.lengths = r->lengths ? r->lengths + first : NULL;
    own.gates += all * r->G;
    own.saved += all;
    own.out += all;
    own.hidden = r->hidden ? r->hidden + units : NULL;
    own.cell = r->cell ? r->cell + units : NULL;
    own.dout = r->dout ? r->dout + all : NULL;
    own.previous = r->previous ? r->previous + all : NULL;
    own.dhidden = r->dhidden ? r->dhidden + units : NULL;
    own.dcell = r->dcell ? r->dcell + units : NULL;
    own.initial_cell = r->initial_cell ? r->initial_cell + units : NULL;
    return own;
}

typedef struct ForwardParts {
    Real *panels;    /* [blocks, G, H, UNITS] */
    Real *hidden[2]; /* [B, row_stride(H)] */
    Real *sums;      /* [threads, B, G, UNITS], or [B, G H] if W_hh is not packed */
} ForwardParts;

typedef struct BackwardParts {
    Real *panels;    /* [blocks, G H, UNITS] */
    Real *dgates[2]; /* [B, row_stride(G H)] */
    Real *dhidden;   /* [blocks, B, UNITS] */
} BackwardParts;

static inline ForwardParts forward_parts(const Recurrence *r, int64_t threads, Real *workspace,
                                         int64_t *used)
{
    const int64_t rows = round_up(r->B, ROWS), blocks = unit_block_count(r);
    ForwardParts parts = { .panels = NULL };
    *used = 0;
    if (r->N < PACKED_STEPS || r->B == 1) {
        parts.sums = allocate(workspace, used, r->B * r->G * r->H);
        return parts;
    }
    parts.panels = allocate(workspace, used, blocks * r->G * r->H * UNITS);
    for (int i = 0; i < 2; i++)
        parts.hidden[i] = allocate(workspace, used, rows * row_stride(r->H));
    parts.sums = allocate(workspace, used, threads * rows * r->G * UNITS);
    return parts;
}

static inline BackwardParts backward_parts(const Recurrence *r, Real *workspace, int64_t *used)
{
    const int64_t rows = round_up(r->B, ROWS), blocks = unit_block_count(r);
    BackwardParts parts;
    *used = 0;
    parts.panels = allocate(workspace, used, blocks * r->G * r->H * UNITS);
    for (int i = 0; i < 2; i++)
        parts.dgates[i] = allocate(workspace, used, rows * row_stride(r->G * r->H));
    parts.dhidden = allocate(workspace, used, blocks * rows * UNITS);
    return parts;
}

/* The workspace of the largest part, in elements. */
static inline int64_t workspace_of_part(const Recurrence *r, int64_t parts, int64_t threads,
                                        bool backward)
{
    Recurrence largest = *r;
    int64_t used;
    largest.B = (r->B + parts - 1) / parts;
    if (backward)
        backward_parts(&largest, NULL, &used);
    else
        forward_parts(&largest, threads, NULL, &used);
    return used;
}

/* C [rows, UNITS] = or += A [rows, inner] panel [inner, UNITS]; of C only whole vectors that
 * contain one of `count` columns. The rows of C are `columns` apart, of A row_stride(inner). */
WHOLE_VECTORS static inline void multiply_weight_panel(bool add, Real *c, int64_t columns,
                                                       const Real *a, const Real *panel,
                                                       int64_t rows, int64_t inner, int64_t count)
{
    const int64_t a_row = row_stride(inner);
    const MatrixView weight = { panel, UNITS, 1 };
    for (int64_t i = 0; i < rows; i += ROWS, a += ROWS * a_row, c += ROWS * columns) {
        const MatrixView a_i = { a, a_row, 1 };
        if (add && count > LANES)
            product_tile(true, false, 2, c, a_i, weight, inner, columns);
        else if (add)
            product_tile(true, false, 1, c, a_i, weight, inner, columns);
        else if (count > LANES)
            product_tile(false, false, 2, c, a_i, weight, inner, columns);
        else
            product_tile(false, false, 1, c, a_i, weight, inner, columns);
    }
}

/* A sequence's rows of two steps are in different pages, which the hardware prefetcher does not
 * follow: prefetches the next step's elements. forward is the order of the steps. */
ALWAYS_INLINE void prefetch_next_step(const Recurrence *r, CellStep at, UnitBlock units,
                                      bool forward)
{
    const int64_t row = at.b * r->N + at.position + (forward != r->reverse ? 1 : -1);
    for (int64_t c = units.first; c < units.first + units.count; c += LINE) {
        for (int64_t g = 0; g < r->G; g++)
            __builtin_prefetch(r->gates + (row * r->G + g) * r->H + c, 1);
        __builtin_prefetch(r->saved + row * r->H + c, 1);
        if (forward)
            __builtin_prefetch(r->out + row * r->H + c, 1);
        else if (r->dout)
            __builtin_prefetch(r->dout + row * r->H + c);
    }
}

/* h of all sequences before and after a step: sequence b at b row. */
typedef struct HiddenStep {
    const Real *from;
    Real *to;
    int64_t row;
} HiddenStep;

/* The step of a block of units for all sequences; gate g of sequence b of sums at (b G + g) stride.
 * An ended sequence keeps its state, and its output is 0. */
static inline void step_cells(const Recurrence *r, CellForward *cell, int64_t step, UnitBlock units,
                              const Real *sums, int64_t stride, HiddenStep h)
{
    const size_t bytes = (size_t)units.count * sizeof(Real);
    for (int64_t b = 0; b < r->B; b++) {
        const CellStep at = { b, step, position_of(r, b, step) };
        const Real *from_b = h.from + b * h.row + units.first;
        Real *to_b = h.to + b * h.row + units.first;
        if (at.position >= 0) {
            prefetch_next_step(r, at, units, true);
            cell(r, at, units, sums + b * r->G * stride, stride, from_b, to_b);
        } else {
            memmove(to_b, from_b, bytes);
            memset(r->out + (b * r->N + step) * r->H + units.first, 0, bytes);
        }
    }
}

/* For few steps, or one sequence, which would waste most of a register tile: h W_hh^T by the
 * product of the library. */
static inline void forward_unpacked(const Recurrence *r, CellForward *cell, ForwardParts parts)
{
    const int64_t H = r->H;
    const Product size = { .n = r->B, .k = H, .m = r->G * H, .transpose_b = true, .count = 1 };
    const Operand hidden = { r->hidden, TENSOR_REAL }, weight = { r->weight, TENSOR_REAL };
    for (int64_t step = 0; step < r->N; step++) {
        product_cpu(PRECISION_FLOAT32, (Result){ parts.sums, TENSOR_REAL, false }, hidden, weight,
                    size);
        for (int64_t i = 0; i < unit_block_count(r); i++) {
            const UnitBlock units = block_at(r, i);
            step_cells(r, cell, step, units, parts.sums + units.first, H,
                       (HiddenStep){ r->hidden, r->hidden, H });
        }
    }
}

/* One thread's part of all steps. */
static inline void forward_blocks(const Recurrence *r, CellForward *cell, ForwardParts parts,
                                  int64_t thread, int64_t threads)
{
    const int64_t H = r->H, rows = round_up(r->B, ROWS);
    const int64_t begin = unit_block_count(r) * thread / threads;
    const int64_t end = unit_block_count(r) * (thread + 1) / threads;
    Real *sums = parts.sums + thread * rows * r->G * UNITS;
    for (int64_t i = begin; i < end; i++) {
        const UnitBlock units = block_at(r, i);
        for (int64_t g = 0; g < r->G; g++)
            transpose(parts.panels + (i * r->G + g) * H * UNITS,
                      r->weight + (g * H + units.first) * H, H, units.count, H, UNITS);
    }
    for (int64_t step = 0; step < r->N; step++) {
        const HiddenStep h = { parts.hidden[step % 2], parts.hidden[(step + 1) % 2],
                               row_stride(H) };
        for (int64_t i = begin; i < end; i++) {
            const UnitBlock units = block_at(r, i);
            for (int64_t g = 0; g < r->G; g++)
                multiply_weight_panel(false, sums + g * UNITS, r->G * UNITS, h.from,
                                      parts.panels + (i * r->G + g) * H * UNITS, rows, H,
                                      units.count);
            step_cells(r, cell, step, units, sums, UNITS, h);
        }
#pragma omp barrier
    }
}

static inline void forward_part(Recurrence r, CellForward *cell, int64_t threads, Real *workspace)
{
    int64_t used;
    const ForwardParts parts = forward_parts(&r, threads, workspace, &used);
    if (!parts.panels) {
        forward_unpacked(&r, cell, parts);
        return;
    }
    const int64_t rows = round_up(r.B, ROWS), row = row_stride(r.H);
    for (int64_t i = 0; i < 2; i++)
        memset(parts.hidden[i], 0, (size_t)(rows * row) * sizeof(Real));
    for (int64_t b = 0; b < r.B; b++)
        memcpy(parts.hidden[0] + b * row, r.hidden + b * r.H, (size_t)r.H * sizeof(Real));
#pragma omp parallel num_threads(threads_of_pass(&r, threads))
    forward_blocks(&r, cell, parts, omp_get_thread_num(), omp_get_num_threads());
    for (int64_t b = 0; b < r.B; b++)
        memcpy(r.hidden + b * r.H, parts.hidden[r.N % 2] + b * row, (size_t)r.H * sizeof(Real));
}

static inline void recurrence_forward(Recurrence r, CellForward *cell)
{
    const int64_t threads = device_threads(), parts = batch_parts(&r, threads);
    const int64_t size = workspace_of_part(&r, parts, threads, false);
    Real *workspace = device_workspace(parts * size);
    if (parts == 1)
        forward_part(r, cell, threads, workspace);
    else
#pragma omp parallel for schedule(static)                                                          \
    num_threads(device_threads_for(parts, cost_of_part(&r, parts)))
        for (int64_t part = 0; part < parts; part++)
            forward_part(batch_part(&r, part, parts), cell, threads, workspace + part * size);
    device_workspace_free(workspace);
}

/* The step of a block of units for all sequences. */
static inline void step_cells_backward(const Recurrence *r, CellBackward *cell, int64_t step,
                                       UnitBlock units, Real *dhidden, Real *dgates, int64_t row)
{
    for (int64_t b = 0; b < r->B; b++) {
        const CellStep at = { b, step, position_of(r, b, step) };
        Real *dgates_b = dgates + b * row + units.first;
        if (at.position >= 0) {
            prefetch_next_step(r, at, units, false);
            cell(r, at, units, dhidden + b * UNITS, dgates_b);
            continue;
        }
        const size_t bytes = (size_t)units.count * sizeof(Real);
        for (int64_t g = 0; g < r->G; g++) {
            memset(dgates_b + g * r->H, 0, bytes);
            memset(r->gates + ((b * r->N + step) * r->G + g) * r->H + units.first, 0, bytes);
        }
        memset(r->saved + (b * r->N + step) * r->H + units.first, 0, bytes);
    }
}

/* dhidden [B, UNITS] of a block is dL/dfinal, or the reverse copy. */
static inline void copy_dhidden(const Recurrence *r, UnitBlock units, Real *dhidden, bool in)
{
    for (int64_t b = 0; b < r->B; b++) {
        Real *tensor = r->dhidden + b * r->H + units.first, *part = dhidden + b * UNITS;
        memcpy(in ? part : tensor, in ? tensor : part, (size_t)units.count * sizeof(Real));
    }
}

static inline void backward_blocks(const Recurrence *r, CellBackward *cell, BackwardParts parts,
                                   int64_t thread, int64_t threads)
{
    const int64_t inner = r->G * r->H, rows = round_up(r->B, ROWS), row = row_stride(inner);
    const int64_t begin = unit_block_count(r) * thread / threads;
    const int64_t end = unit_block_count(r) * (thread + 1) / threads;
    for (int64_t i = begin; i < end; i++) {
        const UnitBlock units = block_at(r, i);
        const Rows weight = { TENSOR_REAL, r->weight + units.first, r->H, inner, units.count };
        pack(parts.panels + i * inner * UNITS, &weight, UNITS, 1, 0);
        memset(parts.dhidden + i * rows * UNITS, 0, (size_t)(rows * UNITS) * sizeof(Real));
        copy_dhidden(r, units, parts.dhidden + i * rows * UNITS, true);
    }
    for (int64_t step = r->N - 1; step >= 0; step--) {
        Real *dgates = parts.dgates[step % 2];
        for (int64_t i = begin; i < end; i++)
            step_cells_backward(r, cell, step, block_at(r, i), parts.dhidden + i * rows * UNITS,
                                dgates, row);
#pragma omp barrier
        for (int64_t i = begin; i < end; i++)
            multiply_weight_panel(true, parts.dhidden + i * rows * UNITS, UNITS, dgates,
                                  parts.panels + i * inner * UNITS, rows, inner,
                                  block_at(r, i).count);
    }
    for (int64_t i = begin; i < end; i++)
        copy_dhidden(r, block_at(r, i), parts.dhidden + i * rows * UNITS, false);
}

static inline void backward_part(Recurrence r, CellBackward *cell, int64_t threads, Real *workspace)
{
    int64_t used;
    const BackwardParts parts = backward_parts(&r, workspace, &used);
    const int64_t rows = round_up(r.B, ROWS), row = row_stride(r.G * r.H);
    for (int64_t i = 0; i < 2; i++)
        memset(parts.dgates[i], 0, (size_t)(rows * row) * sizeof(Real));
#pragma omp parallel num_threads(threads_of_pass(&r, threads))
    backward_blocks(&r, cell, parts, omp_get_thread_num(), omp_get_num_threads());
}

static inline void recurrence_backward(Recurrence r, CellBackward *cell)
{
    const int64_t threads = device_threads(), parts = batch_parts(&r, threads);
    const int64_t size = workspace_of_part(&r, parts, threads, true);
    Real *workspace = device_workspace(parts * size);
    if (parts == 1)
        backward_part(r, cell, threads, workspace);
    else
#pragma omp parallel for schedule(static)                                                          \
    num_threads(device_threads_for(parts, cost_of_part(&r, parts)))
        for (int64_t part = 0; part < parts; part++)
            backward_part(batch_part(&r, part, parts), cell, threads, workspace + part * size);
    device_workspace_free(workspace);
}

#endif
