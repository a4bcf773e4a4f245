/* The arguments of the scans in tiles (scan_tiles.cuh), and a chunk of them: its span of positions,
 * its decay, its last column. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_ARGUMENTS_CUH
#define TAPEGRAD_OPS_ATTENTION_LINEAR_SCAN_ARGUMENTS_CUH

#include "ops/cuda/shared/feature_map.cuh"
#include "ops/cuda/attention/linear/heads.cuh"
#include "ops/cuda/shared/tile_rows.cuh"

/* Rows of which load_tile loads phi(x), and 0 from position lengths[b] on, [B] unless NULL */
template <typename T> struct MappedRows : Rows<T> {
    FeatureMap map;
    const int32_t *lengths;
};

template <typename T> __device__ static inline Real mapped(const MappedRows<T> &rows, Real x)
{
    return phi(rows.map, x);
}

/* The rows of a span whose positions are below lengths[b]; with step -1 they are the last rows. */
template <typename T>
__device__ static inline RowRange unmasked_rows(const MappedRows<T> &rows, const Span &span)
{
    if (!rows.lengths)
        return { 0, span.count };
    const int64_t before = rows.lengths[span.b] - span.first; /* unmasked, from the first row on */
    if (span.step > 0)
        return { 0, before < 0 ? 0 : before < span.count ? (int)before : span.count };
    return { before > 0                ? 0
             : 1 - before < span.count ? (int)(1 - before)
                                       : span.count,
             span.count };
}

/* Rows, and whether they have one more column: `last` [B, positions, H], or NULL: 1 */
template <typename T> struct Augmented : MappedRows<T> {
    bool augmented;
    const Real *last;
};

/* S~ or R~ [D, M + 1] after every piece of the line, in scan order: sums of y_j w~_j^T */
template <typename T> struct StateSums {
    MappedRows<T> y;
    Augmented<T> w;
    bool reverse;
    const Real *initial; /* [B, H, D, M + 1]: S~_0, or F~; NULL: 0 */
    Real *final;         /* likewise: S~_N, or dL/dS~_0; NULL: not needed */
    Real *states;        /* NULL: not needed */
    float2 *decays;      /* one per piece: e^(its log decay) as a sum; NULL without a decay */
};

template <typename T> struct Scan {
    Augmented<T> x, y; /* augmented by alpha and beta, where T is transposed */
    MappedRows<T> w;
    bool reverse, transposed;
    GradientRows<T> o;
    MappedRows<T> map; /* o is multiplied by phi' of these, 0 where masked, unless data is NULL */
    Real *dots;        /* [column_tiles, B, N, H], or NULL: phi of these . o over j < i */
};

/* The scans of one launch: num; or da, db and dv, as far as they are needed. */
template <typename T> struct Scans {
    Scan<T> scan[3];
    StateSums<T> sums[2]; /* S~ for the scans, R~ for the reverse ones */
    int count, sums_count;
    bool reads_all_states; /* also those of a head's only chunk */
    Line line, sums_line;  /* the pieces of x, and of y and w: the same ones when causal */
    int64_t D, M, W;       /* W: columns of a state, M + 1 or M */
    int64_t column_tiles;  /* of o, at most */
    int resident_rows;     /* rows of T that stay in shared memory; 0: one tile of T at a time */
    Real *den;             /* [B, N, H]: written by the forward pass */
    Real eps;
    const Real *log_decay; /* [B, N, H], or NULL; masked positions do not decay */
    const int32_t *lengths;
    int64_t rows; /* B N H */
};

/* e^MIN_LOG_DECAY is 0. Differences of sums with -infinity would be NaN. */
enum { MIN_LOG_DECAY = -1000 };

/* L [CHUNK + 1]: the log decays from the chunk's start to each row, and to its end. In double, as
 * their differences are small beside them. */
template <typename T>
__device__ static inline void load_decay(double *L, const Scans<T> &all, const Span &span,
                                         int64_t positions)
{
    const int row = (int)threadIdx.x, rows = min(row + (span.step > 0), span.count);
    if (!all.log_decay || row > CHUNK)
        return;
    const Real *l = all.log_decay + span_row(span, positions);
    double sum = 0;
    for (int r = 0; r < rows; r++) {
        const int64_t offset = span_offset(span, r);
        const Real l_r = l[offset * span.H];
        if (!all.lengths || span_first(span) + offset < all.lengths[span.b])
            sum += l_r > 0 ? (Real)NAN : l_r < MIN_LOG_DECAY ? (Real)MIN_LOG_DECAY : l_r;
    }
    L[row] = sum;
}

/* Up to CHUNK positions of a head from `start` in scan order, before `limit`; in reverse the chunks
 * are the same, and the first of them may have fewer positions. */
__device__ static inline Span chunk_span(const Line &line, const Head &head, bool reverse,
                                         int64_t start, int64_t limit)
{
    const int64_t first = reverse ? (head.positions - 1) / CHUNK * CHUNK - start : start;
    const int64_t left = reverse ? head.positions - first : limit - start;
    const int64_t begin = line.offsets ? head.row : 0;
    const int count = start >= limit ? 0 : left < CHUNK ? (int)left : CHUNK;
    return {
        line.offsets ? 0 : head.b, head.h, line.H, begin + (reverse ? first + count - 1 : first),
        reverse ? -1 : 1,          count
    };
}

/* The last column of augmented rows; zeros of others */
template <typename T>
__device__ static inline void load_last(Real *to, const Augmented<T> &rows, const Span &span)
{
    if (rows.augmented && rows.last)
        load_vector(to, rows.last, rows.positions, span);
    else if (threadIdx.x < CHUNK)
        to[threadIdx.x] = rows.augmented ? (Real)1 : (Real)0;
}

#endif
