/* A block per sequence: its threads share the states of a frame, frame after frame. */
#include "ext/ctc/kernels.h"
#include "ops/cuda/shared/rows.cuh"

/* The parts of a sequence's workspace: two rows of states, skip [S + 1]. */
struct CtcWorkspace {
    Real *states, *sums, *skip;
};
static int64_t workspace_size(const Ctc &ctc)
{
    return ctc.B * (2 * ctc_states(ctc.S) + ctc.S + 1);
}
__device__ static CtcWorkspace ctc_workspace(Real *workspace, int64_t b, const Ctc &ctc)
{
    const int64_t W = ctc_states(ctc.S);
    Real *start = workspace + b * (2 * W + ctc.S + 1);
    return { start, start + W, start + 2 * W };
}

__device__ static void skips(Real *skip, const int32_t *target, int64_t n)
{
    LANE_FOR(j, n + 1, THREADS)
        skip[j] = j > 0 && j < n && target[j] != target[j - 1] ? 0 : -(Real)INFINITY;
}

/* Shifts x [n] to a maximum of 0 and returns the shift; all threads have then written x. */
__device__ static Real shift_to_zero(Real *x, int64_t n)
{
    __syncthreads();
    Real m = max_of_row<THREADS>(x, n);
    m = m > -(Real)INFINITY ? m : 0;
    LANE_FOR(i, n, THREADS)
        x[i] -= m;
    __syncthreads();
    return m;
}

/* log_sums [R] = ln sum_c e^logits_rc */
template <typename T, int LANES>
__global__ void ctc_log_sums(LogSumExp *log_sums, const T *logits, int64_t R, int64_t C)
{
    ROW_FOR(r, R, LANES) {
        const LogSumExp l = log_sum_exp_of_row<LANES>(logits + r * C, C);
        if (threadIdx.x % LANES == 0)
            log_sums[r] = l;
    }
}

__global__ void ctc_alpha(Real *losses, Real *workspace, Ctc ctc)
{
    const int64_t b = blockIdx.x, n = ctc_symbols(&ctc, b), frames = ctc_frames(&ctc, b);
    const int32_t *target = ctc.targets + b * ctc.S;
    Real *skip = ctc_workspace(workspace, b, ctc).skip;
    skips(skip, target, n);
    CtcRow from = ctc_row(&ctc, b, -1);
    LANE_FOR(s, ctc_states(n), THREADS)
        from.blank[s] = s == 0 ? 0 : -(Real)INFINITY;
    __syncthreads();
    double log_p = 0;
    for (int64_t t = 0; t < frames; t++) {
        const Real *x = ctc.logits + (b * ctc.T + t) * ctc.C;
        const LogSumExp l = ctc.log_sums[b * ctc.T + t];
        const CtcRow to = ctc_row(&ctc, b, t);
        LANE_FOR(j, n + 1, THREADS) {
            to.blank[j] = log_probability(x[0], l) + log_add(from.blank[j], from.symbol[j - 1]);
            to.symbol[j] = -(Real)INFINITY;
            if (j < n)
                to.symbol[j] =
                    log_probability(x[target[j]], l) +
                    log_add_3(from.symbol[j], from.blank[j], skip[j] + from.symbol[j - 1]);
        }
        if (threadIdx.x == 0)
            to.symbol[-1] = -(Real)INFINITY;
        log_p += (double)shift_to_zero(to.blank, ctc_states(n));
        from = to;
    }
    if (threadIdx.x > 0)
        return;
    const Real loss = (Real) - (log_p + (double)log_add(from.blank[n], from.symbol[n - 1]));
    losses[b] = ctc.ignore_infeasible && loss == (Real)INFINITY ? 0 : loss;
}

/* terms [2 n + 3] = e^(alpha + beta), shifted; returns their sum, p times the same factor */
__device__ static Real state_probabilities(Real *terms, const Real *alpha, const Real *beta,
                                           int64_t n)
{
    LANE_FOR(s, ctc_states(n), THREADS)
        terms[s] = alpha[s] + beta[s];
    shift_to_zero(terms, ctc_states(n));
    Real sum = 0;
    LANE_FOR(s, ctc_states(n), THREADS)
        sum += terms[s] = exp(terms[s]);
    return row_sum<THREADS>(sum);
}

/* beta <- that of the frame before x */
__device__ static void step_back(CtcRow beta, CtcRow c, const Real *x, LogSumExp l,
                                 const int32_t *target, const Real *skip, int64_t n)
{
    LANE_FOR(j, n + 1, THREADS) {
        c.blank[j] = beta.blank[j] + log_probability(x[0], l);
        c.symbol[j] = j < n ? beta.symbol[j] + log_probability(x[target[j]], l) : -(Real)INFINITY;
    }
    if (threadIdx.x == 0)
        c.symbol[-1] = -(Real)INFINITY;
    shift_to_zero(c.blank, ctc_states(n));
    LANE_FOR(j, n + 1, THREADS) {
        beta.blank[j] = log_add(c.blank[j], c.symbol[j]);
        if (j < n)
            beta.symbol[j] = log_add_3(c.symbol[j], c.blank[j + 1], skip[j + 1] + c.symbol[j + 1]);
    }
    __syncthreads();
}

__global__ void ctc_beta(Real *dlogits, bool accumulate, const Real *dlosses, Real *workspace,
                         Ctc ctc)
{
    const int64_t b = blockIdx.x, C = ctc.C, n = ctc_symbols(&ctc, b);
    const int64_t frames = ctc_frames(&ctc, b);
    const int32_t *target = ctc.targets + b * ctc.S;
    const CtcWorkspace parts = ctc_workspace(workspace, b, ctc);
    const CtcRow beta = ctc_row_at(parts.states, n), c = ctc_row_at(parts.sums, n);
    skips(parts.skip, target, n);
    LANE_FOR(s, ctc_states(n), THREADS)
        parts.states[s] = s == n || (n > 0 && s == 2 * n + 1) ? 0 : -(Real)INFINITY;
    __syncthreads();
    for (int64_t t = ctc.T - 1; t >= 0; t--) {
        const int64_t row = b * ctc.T + t;
        const Real *x = ctc.logits + row * C;
        const LogSumExp l = ctc.log_sums[row];
        Real p = 0;
        if (t < frames)
            p = state_probabilities(parts.sums, ctc_row(&ctc, b, t).blank, parts.states, n);
        const bool ignored = dlosses[b] == 0 || t >= frames || (p == 0 && ctc.ignore_infeasible);
        __syncthreads();
        LANE_FOR(k, C, THREADS) { /* in the order of the states: repeatable */
            Real occupancy = 0;
            for (int64_t j = 0; j <= n && !ignored; j++)
                occupancy += k == 0 ? c.blank[j] : j < n && target[j] == k ? c.symbol[j] : 0;
            contribute(&dlogits[row * C + k], accumulate,
                       ignored ? 0 : dlosses[b] * (exp(log_probability(x[k], l)) - occupancy / p));
        }
        __syncthreads();
        if (t < frames)
            step_back(beta, c, x, l, target, parts.skip, n);
    }
}

static void ctc_forward_cuda(Real *losses, Ctc ctc)
{
    Real *workspace = device_workspace(workspace_size(ctc));
    LAUNCH_ROWS(ctc_log_sums, Real, ctc.B * ctc.T, ctc.C, ctc.log_sums, ctc.logits, ctc.B * ctc.T,
                ctc.C);
    LAUNCH(ctc_alpha, (unsigned)ctc.B, THREADS, 0, losses, workspace, ctc);
    device_workspace_free(workspace);
}

static void ctc_backward_cuda(Gradient dlogits, const Real *dlosses, Ctc ctc)
{
    Real *workspace = device_workspace(workspace_size(ctc));
    LAUNCH(ctc_beta, (unsigned)ctc.B, THREADS, 0, dlogits.data, dlogits.accumulate, dlosses,
           workspace, ctc);
    device_workspace_free(workspace);
}

const CtcKernels ctc_cuda = { ctc_forward_cuda, ctc_backward_cuda };
