/* CUDA kernels of layernorm and residual_layernorm; ops/rows/layernorm.c has the derivation.
 *
 * The kernels are templates over the source of the values to normalize, a struct Rows with
 *   fits<W>()             on the host: whether loads of W elements are aligned
 *   read<W>(i, kept)      returns the elements i, ..., i + W - 1, i a multiple of W, and stores in
 *                         W bits of *kept which of them dropout keeps
 *   add_gradient<W>(i, kept, dx)  contributes to their gradients
 * and over a Plan: LANES threads, a warp or a block, share a row. A thread holds HELD elements of
 * the row in registers, in packs of W, so a row of at most WHOLE elements is read once. A longer
 * row is processed in pieces of WHOLE elements and read again in each pass. */
#ifndef TAPEGRAD_OPS_ROWS_LAYERNORM_CUH
#define TAPEGRAD_OPS_ROWS_LAYERNORM_CUH

#include "ops/kernels.h"
#include "ops/cuda/shared/rows.cuh"
#include "ops/cuda/shared/columns.cuh"
#include "ops/cuda/shared/map.cuh"
#include "tensor/internal.h"

template <int W_, int LANES_, int HELD> struct Plan {
    static constexpr int W = W_, LANES = LANES_, PACKS = HELD / W_, WHOLE = LANES_ * HELD;
};

/* Calls f with the plan for rows of C elements; packs: whether loads of four elements, the unit of
 * dropout's draws, are aligned. One warp processes a short row and holds no more than the row has:
 * fewer registers per thread raise the occupancy, so more loads are in flight. */
template <typename F> static void with_plan(bool packs, int64_t C, F f)
{
    if (packs && C <= 8 * WARP)
        f(Plan<4, WARP, 8>());
    else if (packs && C <= 16 * WARP)
        f(Plan<4, WARP, 16>());
    else if (packs && C <= 32 * WARP)
        f(Plan<4, WARP, 32>());
    else if (packs)
        f(Plan<4, THREADS, 8>());
    else if (C <= 8 * WARP)
        f(Plan<1, WARP, 8>());
    else
        f(Plan<1, THREADS, 8>());
}

/* Loops over the pieces of a row, `piece` the first column; over the thread's packs p of a piece, c
 * the first column; over the elements k of a pack. */
#define PIECE_FOR(piece, C) for (int64_t piece = 0; piece < (C); piece += Plan::WHOLE)
#define PACK_FOR(p, c, piece, C)                                                                   \
    _Pragma("unroll") for (int p = 0; p < Plan::PACKS;                                             \
                           p++) if (const int64_t c = (piece) + pack_column<Plan>(p); c < (C))
#define EACH_LANE(k) _Pragma("unroll") for (int k = 0; k < Plan::W; k++)

template <typename Plan> __device__ static inline int pack_column(int p)
{
    return (p * Plan::LANES + (int)threadIdx.x % Plan::LANES) * Plan::W;
}

/* The elements of a piece that one thread holds in registers. */
template <typename Plan> struct Share {
    Real at[Plan::PACKS][Plan::W];
    unsigned kept; /* one bit per element: dropout keeps it */

    template <typename Rows>
    __device__ void read(const Rows &rows, int64_t row, int64_t piece, int64_t C)
    {
        kept = 0;
        PACK_FOR(p, c, piece, C) {
            unsigned bits = 0;
            const Reals<Plan::W> pack = rows.template read<Plan::W>(row * C + c, &bits);
            kept |= bits << p * Plan::W;
            EACH_LANE(k)
                at[p][k] = pack.value[k];
        }
    }

    /* For a later pass: a row of one piece is still in registers. */
    template <typename Rows>
    __device__ void read_again(const Rows &rows, int64_t row, int64_t piece, int64_t C)
    {
        if (C > Plan::WHOLE)
            read(rows, row, piece, C);
    }
};

/* x [R, C], stored in T */
template <typename T> struct PlainRows {
    const T *x;
    T *dx; /* or NULL */
    bool accumulate;

    template <int W> bool fits() const
    {
        return packs_fit<W>(x) && packs_fit<W>(dx);
    }
    template <int W> __device__ Reals<W> read(int64_t i, unsigned *) const
    {
        return load_pack<W>(&x[i]);
    }
    template <int W> __device__ void add_gradient(int64_t i, unsigned, Reals<W> value) const
    {
        if (dx)
            contribute_pack<W>(&dx[i], accumulate, value);
    }
};

/* -------------------------------------------------------------------------------------- forward */

/* out [R, C], statistics [R], in [R, C], weight [C], bias [C] */
template <typename T, typename Rows, typename Plan>
__global__ void layernorm_forward_kernel(T *out, Statistics *statistics, Rows in,
                                         const Real *weight, const Real *bias, Real eps, int64_t R,
                                         int64_t C)
{
    ROW_FOR(row, R, Plan::LANES) {
        Share<Plan> s;
        Real sum = 0, deviations = 0, squares = 0;
        PIECE_FOR(piece, C) {
            s.read(in, row, piece, C);
            PACK_FOR(p, c, piece, C)
                EACH_LANE(k)
                    sum += s.at[p][k];
        }
        const Real m = row_sum<Plan::LANES>(sum) / (Real)C;
        PIECE_FOR(piece, C) {
            s.read_again(in, row, piece, C);
            PACK_FOR(p, c, piece, C)
                EACH_LANE(k) {
                    const Real deviation = s.at[p][k] - m;
                    deviations += deviation;
                    squares += deviation * deviation;
                }
        }
        /* d corrects the rounding error of the first mean, m. */
        const Real d = row_sum<Plan::LANES>(deviations) / (Real)C, mean = m + d;
        const Real variance = row_sum<Plan::LANES>(squares) / (Real)C - d * d;
        const Real r = inverse_deviation(variance < 0 ? 0 : variance, eps);
        PIECE_FOR(piece, C) {
            s.read_again(in, row, piece, C);
            PACK_FOR(p, c, piece, C) {
                Reals<Plan::W> w = load_pack<Plan::W>(&weight[c]),
                               value = load_pack<Plan::W>(&bias[c]);
                EACH_LANE(k)
                    value.value[k] += (s.at[p][k] - mean) * r * w.value[k];
                contribute_pack<Plan::W>(&out[row * C + c], false, value);
            }
        }
        if (threadIdx.x % Plan::LANES == 0)
            statistics[row] = { mean, r };
    }
}

template <typename T, typename Rows>
static void layernorm_forward(T *out, Statistics *statistics, Rows in, const Real *weight,
                              const Real *bias, Real eps, int64_t R, int64_t C)
{
    const bool packs = C % 4 == 0 && packs_fit<4>(out) && in.template fits<4>() &&
                       packs_fit<4>(weight) && packs_fit<4>(bias);
    with_plan(packs, C, [&](auto plan) {
        typedef decltype(plan) Plan;
        LAUNCH((layernorm_forward_kernel<T, Rows, Plan>), blocks_for(R, THREADS / Plan::LANES),
               THREADS, 0, out, statistics, in, weight, bias, eps, R, C);
    });
}

/* ------------------------------------------------------------------------------------- backward */

/* One thread's partial sums of dweight and dbias, over its rows, in the columns of its Share. */
template <typename Plan> struct WeightShare {
    Reals<Plan::W> dweight[Plan::PACKS], dbias[Plan::PACKS];

    /* to_weight, to_bias [C] <- the sums, in the columns from `piece` on */
    __device__ void store_sums(Real *to_weight, Real *to_bias, bool accumulate, int64_t piece,
                               int64_t C)
    {
        PACK_FOR(p, c, piece, C) {
            contribute_pack<Plan::W>(&to_weight[c], accumulate, dweight[p]);
            contribute_pack<Plan::W>(&to_bias[c], accumulate, dbias[p]);
        }
    }
    /* to_weight, to_bias [C] <- the sums over all threads of the block that hold these columns.
     * They add to shared memory in turn, so the order is fixed. */
    __device__ void store_block(Real *to_weight, Real *to_bias, int64_t C)
    {
        __shared__ __align__(16) Real sums[2][Plan::WHOLE];
        for (int turn = 0; turn < THREADS / Plan::LANES; turn++) {
            if ((int)threadIdx.x / Plan::LANES == turn)
                store_sums(sums[0], sums[1], turn > 0, 0, C);
            __syncthreads();
        }
        for (int64_t c = threadIdx.x; c < C; c += THREADS) {
            to_weight[c] = sums[0][c];
            to_bias[c] = sums[1][c];
        }
    }
};

/* dweight, dbias [gridDim.x, C]: partial sums over each block's rows, or both NULL;
 * in, dout [R, C], weight [C], statistics [R] */
template <typename T, typename Rows, typename Plan>
__global__ void layernorm_backward_kernel(Rows in, Real *dweight, Real *dbias, PlainRows<T> dout,
                                          const Real *weight, const Statistics *statistics,
                                          int64_t R, int64_t C)
{
    if (dweight) {
        dweight += blockIdx.x * C;
        dbias += blockIdx.x * C;
    }
    WeightShare<Plan> sums = {};
    ROW_FOR(row, R, Plan::LANES) {
        const Real mean = statistics[row].mean, r = statistics[row].r;
        Share<Plan> s, g;
        Real sum_h = 0, sum_hn = 0;
        PIECE_FOR(piece, C) {
            s.read(in, row, piece, C);
            g.read(dout, row, piece, C);
            PACK_FOR(p, c, piece, C) {
                const Reals<Plan::W> w = load_pack<Plan::W>(&weight[c]);
                EACH_LANE(k) {
                    const Real h = g.at[p][k] * w.value[k];
                    sum_h += h;
                    sum_hn += h * (s.at[p][k] - mean) * r;
                }
            }
        }
        const Real mean_h = row_sum<Plan::LANES>(sum_h) / (Real)C;
        const Real mean_hn = row_sum<Plan::LANES>(sum_hn) / (Real)C;
        PIECE_FOR(piece, C) {
            s.read_again(in, row, piece, C);
            g.read_again(dout, row, piece, C);
            PACK_FOR(p, c, piece, C) {
                Reals<Plan::W> w = load_pack<Plan::W>(&weight[c]), dx;
                EACH_LANE(k) {
                    const Real n = (s.at[p][k] - mean) * r;
                    dx.value[k] = r * (g.at[p][k] * w.value[k] - mean_h - n * mean_hn);
                    sums.dweight[p].value[k] += g.at[p][k] * n;
                    sums.dbias[p].value[k] += g.at[p][k];
                }
                in.template add_gradient<Plan::W>(row * C + c, s.kept >> p * Plan::W, dx);
            }
            if (dweight && C > Plan::WHOLE) {
                sums.store_sums(dweight, dbias, row > blockIdx.x, piece, C);
                sums = {};
            }
        }
    }
    if (dweight && C <= Plan::WHOLE)
        sums.store_block(dweight, dbias, C);
}

/* One part of the rows per block: enough blocks to fill a GPU, but about 8 rows or more per block,
 * so that writing the partial sums costs little compared with reading the rows. */
static inline int64_t layernorm_parts(int64_t R)
{
    const int64_t most = 256, parts = (R + 7) / 8;
    return parts < most ? parts : most;
}

template <typename T, typename Rows>
static void layernorm_backward(Rows in, Gradient dweight, Gradient dbias, const T *dout,
                               const NormArguments &norm)
{
    const int64_t R = norm.R, C = norm.C, parts = layernorm_parts(R);
    const bool summed = dweight.data || dbias.data;
    Real *partial = summed ? device_workspace(2 * parts * C) : NULL; /* of dweight, of dbias */
    Real *of_bias = summed ? partial + parts * C : NULL;
    const PlainRows<T> upstream = { dout, NULL, false };
    const bool packs = C % 4 == 0 && in.template fits<4>() && upstream.template fits<4>() &&
                       packs_fit<4>(partial) && packs_fit<4>(of_bias) && packs_fit<4>(norm.weight);
    with_plan(packs, C, [&](auto plan) {
        typedef decltype(plan) Plan;
        LAUNCH((layernorm_backward_kernel<T, Rows, Plan>), (unsigned)parts, THREADS, 0, in, partial,
               of_bias, upstream, norm.weight, norm.statistics, R, C);
    });
    if (!summed)
        return;
    if (dweight.data == dbias.data) { /* one gradient tensor: add in two passes */
        add_part_pairs(dweight, { NULL, false }, partial, parts, C);
        dweight.data = NULL;
    }
    add_part_pairs(dweight, dbias, partial, parts, C);
    device_workspace_free(partial);
}

#endif
