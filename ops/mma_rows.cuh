/* A chunk's rows of a tensor as an operand of mma_operands.cuh. They are copied as they lie in the
 * tensor, while the chunk before is computed, and are mapped, divided and split when their turn has
 * come: memory is far, so a whole chunk is on its way at once, without a register for it.
 *
 * What is copied takes as much memory as the operand that it becomes, and may become it in its own
 * place: eight numbers are 16 bytes in each part either way. A warp copies and maps rows of its own:
 * no barrier of the block lies between. Eight lanes at a time write, and read, 16 bytes each in all
 * 32 banks: a row's neighbouring 16 bytes go to the parts in turn, which begin half the banks apart,
 * and rows of 64 bytes are taken in pairs that do. */
#ifndef TAPEGRAD_OPS_MMA_ROWS_CUH
#define TAPEGRAD_OPS_MMA_ROWS_CUH

#include "ops/attention.cuh"
#include "ops/mma_operands.cuh"
#include "tensor/copy.cuh"

/* The lane's row among those that a warp takes at once, ACROSS lanes to a row. Where these are four a row
 * is 64 bytes, and the next four lanes take the one that is four rows below. */
template <int ACROSS> __device__ static inline int lane_down(void)
{
    const int i = (int)threadIdx.x % WARP / ACROSS;
    return ACROSS == 4 ? i % 2 * 4 + i / 2 : i;
}

/* How many of so many bytes of a row are there. */
__device__ static inline int bytes_there(const Counting &counting, int row, int bytes)
{
    return row >= counting.first && row < counting.end ? bytes : 0;
}

/* 16 bytes, of which so many are there, of any alignment */
template <typename T>
__device__ static inline void copy_piece(Bfloat16 *to, const T *from, int there)
{
    if (sizeof(T) == 4 || (uintptr_t)from % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 16; i += 4)
            copy_async<4>((char *)to + i, (const char *)from + i, max(0, min(4, there - i)));
    } else {
        for (int i = 0; i < 16 / (int)sizeof(T); i++)
            ((T *)to)[i] = i * (int)sizeof(T) < there ? from[i] : T();
    }
}

/* Begins to copy the warp's rows of a chunk, from a column on; zeros where there are none. The n-th 16
 * bytes of a row go to part n % PARTS. Where these are whole, as in rows of multiples of 8, a copy is
 * of 16 bytes or of none: other sizes would take some instructions more for each. */
template <int COLUMNS, typename T, int PARTS, int PITCH>
__device__ static inline void copy_rows(const Matrix<PARTS, CHUNK, PITCH> &m, const Rows<T> &rows,
                                        const Span &span, int64_t first_column)
{
    enum { PIECE = 16 / sizeof(T), ACROSS = COLUMNS / PIECE, DOWN = WARP / ACROSS };
    const int piece = (int)threadIdx.x % ACROSS, first = warp_row() + lane_down<ACROSS>();
    const int64_t column = first_column + piece * PIECE, apart = span.step * rows.stride;
    const int64_t left = rows.columns - column;
    Counting counting = rows_that_count(span, rows.lengths);
    if (left <= 0)
        counting.end = 0;
    const T *from = rows.data + span_begin(span, rows.positions, rows.stride, rows.columns) +
                    column + first * apart;
    Bfloat16 *const to = m.at + piece % PARTS * Matrix<PARTS, CHUNK, PITCH>::APART + first * PITCH +
                         piece / PARTS * 8;
    if (((uintptr_t)from | (uintptr_t)(apart * (int64_t)sizeof(T))) % 16 == 0 &&
        rows.columns % PIECE == 0) {
#pragma unroll
        for (int row = 0; row < WARP_ROWS; row += DOWN)
            copy_async<16>(to + row * PITCH, from + row * apart,
                           bytes_there(counting, first + row, 16));
    } else {
        const int bytes = (left < PIECE ? (int)left : (int)PIECE) * (int)sizeof(T);
#pragma unroll 1
        for (int row = 0; row < WARP_ROWS; row += DOWN)
            copy_piece(to + row * PITCH, from + row * apart,
                       bytes_there(counting, first + row, bytes));
    }
}

/* The warp's copies are there, for all its lanes. */
__device__ static inline void receive_rows(void)
{
    wait_for_copies();
    __syncwarp();
}

/* Eight neighbouring numbers of a row that has been copied to this place */
template <typename T, int PARTS>
__device__ static inline void load_eight(Real *x, const Bfloat16 *from, int apart)
{
    enum { PIECE = 16 / sizeof(T) };
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const Pack<T, PIECE> piece = *(const Pack<T, PIECE> *)(from + p * apart);
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            x[p * PIECE + i] = load(&piece.at[i]);
    }
}

/* Eight neighbouring numbers of an operand's row */
template <int PARTS>
__device__ static inline void store_eight(Bfloat16 *to, int apart, const Real *x)
{
    uint32_t pairs[PARTS][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        split<PARTS>(&pairs[0][i], 4, x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        *(uint4 *)(to + p * apart) = make_uint4(pairs[p][0], pairs[p][1], pairs[p][2], pairs[p][3]);
}

/* The warp's rows of a chunk as an operand's, from where they have been copied to: from there into m,
 * which may be the same place. Zeros where there are none: after the map, of which phi(0) may be 1.
 * divisors [CHUNK]: of the rows, unless NULL. */
template <int COLUMNS, typename T, int PARTS, int PITCH>
__device__ static inline void map_rows(const Matrix<PARTS, CHUNK, PITCH> &m,
                                       const Matrix<PARTS, CHUNK, PITCH> &copied,
                                       const Rows<T> &rows, const Span &span, int64_t first_column,
                                       const Real *divisors)
{
    enum { ACROSS = COLUMNS / 8, DOWN = WARP / ACROSS, ROUNDS = WARP_ROWS / DOWN };
    enum { BATCH = ROUNDS < 2 ? ROUNDS : 2, APART = Matrix<PARTS, CHUNK, PITCH>::APART };
    const int column = (int)threadIdx.x % ACROSS * 8;
    const int64_t columns = rows.columns - first_column - column;
    const Counting counting = rows_that_count(span, rows.lengths);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += BATCH) {
        const int first = warp_row() + lane_down<ACROSS>() + round * DOWN;
        Real x[BATCH][8];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            load_eight<T, PARTS>(x[i], copied.at + (first + i * DOWN) * PITCH + column, APART);
        map_numbers<8 * BATCH>(rows.map, x[0]);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * DOWN;
            const bool counts = row >= counting.first && row < counting.end;
            const Real factor = divisors ? 1 / divisors[row] : (Real)1;
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[i][c] = counts && c < columns ? x[i][c] * factor : (Real)0;
            store_eight<PARTS>(m.at + row * PITCH + column, APART, x[i]);
        }
    }
}

/* Begins to bring a chunk's rows, from a column on, near to where they are copied from later: the
 * warp's own, 32 bytes a lane. */
template <int COLUMNS, typename T>
__device__ static inline void prefetch_rows(const Rows<T> &rows, const Span &span,
                                            int64_t first_column)
{
    enum { PIECE = 32 / sizeof(T), ACROSS = COLUMNS / PIECE, DOWN = WARP / ACROSS };
    const int64_t column = first_column + (int)threadIdx.x % ACROSS * PIECE;
    const Counting counting = rows_that_count(span, rows.lengths);
    const T *from =
        rows.data + span_begin(span, rows.positions, rows.stride, rows.columns) + column;
    for (int i = 0; i < WARP_ROWS; i += DOWN) {
        const int row = warp_row() + (int)threadIdx.x % WARP / ACROSS + i;
        if (row >= counting.first && row < counting.end && column < rows.columns)
            prefetch(from + row * span.step * rows.stride);
    }
}

#endif
