/* ctc: the loss of a target of n symbols that T frames say at unknown times (Graves, Fernandez,
 * Gomez and Schmidhuber 2006). Frame t says symbol k, or the blank, symbol 0, with probability
 *   y_tk = softmax(logits_t)_k
 * A path says one symbol per frame; merging equal neighbours, then dropping blanks, gives its text.
 *   p = sum over the paths whose text is the target of prod_t y_t,path_t      out = -ln p
 * (equations 3, 12). Such a path passes the states blank_0, symbol_0, blank_1, .., blank_n in this
 * order: it stays or goes to the next state, or passes over a blank between unequal symbols. Let
 *   a_t(s) = ln of the sum over beginnings of paths, frames 0 .. t, that end in state s
 *   b_t(s) = ln of the sum over their ends, frames t + 1 .. T - 1, after state s at frame t
 * With (+) for addition of what the logarithms stand for, and skip_j = 0 if target_j differs from
 * target_j-1, else minus infinity, the last step gives a (equations 6, 7), the first one b
 * (equations 10, 11, without frame t's factor):
 *   a_t(blank_j)  = ln y_t,0        + (a_t-1(blank_j) (+) a_t-1(symbol_j-1))
 *   a_t(symbol_j) = ln y_t,target_j + (a_t-1(symbol_j) (+) a_t-1(blank_j)
 *                                                      (+) skip_j + a_t-1(symbol_j-1))
 *   b_t-1(blank_j)  = c_t(blank_j) (+) c_t(symbol_j)            c_t(s) = b_t(s) + ln y_t,s
 *   b_t-1(symbol_j) = c_t(symbol_j) (+) c_t(blank_j+1) (+) skip_j+1 + c_t(symbol_j+1)
 * Before frame 0 a path is in blank_0; after the last frame, in blank_n or symbol_n-1.
 *
 * Backward, g = dL/dout. Every path is in one state at frame t, so for every t
 *   p = sum_s e^(a_t(s) + b_t(s))
 *   d ln p / d ln y_tk = o_tk = sum_{s says k} e^(a_t(s) + b_t(s)) / p
 * the probability that frame t says k given the target, and sum_k o_tk = 1. With
 * d ln y_tk / d logits_tc = [k = c] - y_tc (equation 16):
 *   dlogits_tc <- g (y_tc - o_tc)
 *
 * Each row of a and of c is shifted to a maximum of 0, so that its error does not grow with T; the
 * shifts of a are part of ln p, summed in double, and o divides by its own sum over s.
 * Saved: a, and per frame ln sum_c e^logits_tc. */
#include "ops/shared/indices.h"
#include "ops/losses/ctc.h"
#include "ops/rows/rows.h"

/* skip [n + 1] */
static void skips(Real *skip, const int32_t *target, int64_t n)
{
    for (int64_t j = 0; j <= n; j++)
        skip[j] = j > 0 && j < n && target[j] != target[j - 1] ? 0 : -(Real)INFINITY;
}

static void fill(Real *x, Real value, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

/* Shifts x [n] to a maximum of 0 and returns the shift. */
static Real shift_to_zero(Real *x, int64_t n)
{
    Real m = row_max(TENSOR_REAL, x, n);
    m = m > -(Real)INFINITY ? m : 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] -= m;
    return m;
}

/* -ln p of one sequence of `frames`, target [n]; writes alpha [frames + 1, W], whose first row is
 * that before frame 0, and log_sums [frames] */
ALWAYS_INLINE Real sequence_forward(int T, Real *alpha, LogSumExp *log_sums, const Real *logits,
                                    const int32_t *target, const Real *skip, int64_t frames,
                                    int64_t n, CtcSizes size)
{
    const int64_t W = ctc_states(size.S), C = size.C;
    double log_p = 0;
    CtcRow from = ctc_row(alpha, n);
    fill(alpha, -(Real)INFINITY, ctc_states(n));
    from.blank[0] = 0;
    for (int64_t t = 0; t < frames; t++) {
        const Real *x = elements_at(T, logits, t * C);
        const LogSumExp l = log_sums[t] = row_log_sum_exp(T, x, C);
        const Real blank = log_probability(load(T, x, 0), l);
        const CtcRow to = ctc_row(alpha + (t + 1) * W, n);
#pragma omp simd
        for (int64_t j = 0; j <= n; j++)
            to.blank[j] = blank + log_add(from.blank[j], from.symbol[j - 1]);
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            to.symbol[j] = log_probability(load(T, x, target[j]), l) +
                           log_add_3(from.symbol[j], from.blank[j], skip[j] + from.symbol[j - 1]);
        to.symbol[-1] = to.symbol[n] = -(Real)INFINITY;
        log_p += (double)shift_to_zero(to.blank, ctc_states(n));
        from = to;
    }
    return (Real) - (log_p + (double)log_add(from.blank[n], from.symbol[n - 1]));
}

/* losses [B], alpha [B, T + 1, W], log_sums [B, T]; logits [B, T, C], targets [B, S], lengths [B]
 * and target_lengths [B] or NULL */
void ctc_forward_cpu(TensorType type, Real *losses, Real *alpha, LogSumExp *log_sums,
                     Real *workspace, const Real *logits, const int32_t *targets,
                     const int32_t *lengths, const int32_t *target_lengths, bool ignore_impossible,
                     CtcSizes size)
{
    const int64_t W = ctc_states(size.S);
#pragma omp parallel for schedule(dynamic) num_threads(threads_for(size.B *size.T *W, 2))
    for (int64_t b = 0; b < size.B; b++) {
        const int64_t n = target_lengths ? target_lengths[b] : size.S;
        const int32_t *target = targets + b * size.S;
        Real *skip = ctc_workspace(workspace, b, size).skip;
        skips(skip, target, n);
        BY_STORAGE(type, T,
                   losses[b] =
                       sequence_forward(T, alpha + b * (size.T + 1) * W, log_sums + b * size.T,
                                        elements_at(T, logits, b * size.T * size.C), target, skip,
                                        lengths ? lengths[b] : size.T, n, size));
        if (ignore_impossible && losses[b] == (Real)INFINITY)
            losses[b] = 0;
    }
}

/* occupancy [C] = p o_t and returns p, both times one factor; terms [2 n + 3] is overwritten */
static Real occupancy_of_frame(Real *occupancy, Real *terms, const Real *alpha, const Real *beta,
                               const int32_t *target, int64_t n, int64_t C)
{
    const CtcRow row = ctc_row(terms, n);
    Real blanks = 0, symbols = 0;
#pragma omp simd
    for (int64_t s = 0; s < ctc_states(n); s++)
        terms[s] = alpha[s] + beta[s];
    shift_to_zero(terms, ctc_states(n));
#pragma omp simd reduction(+ : blanks)
    for (int64_t j = 0; j <= n; j++)
        blanks += real_exp(row.blank[j]);
#pragma omp simd reduction(+ : symbols)
    for (int64_t j = 0; j < n; j++)
        symbols += row.symbol[j] = real_exp(row.symbol[j]);
    fill(occupancy, 0, C);
    occupancy[0] = blanks;
    for (int64_t j = 0; j < n; j++)
        occupancy[target[j]] += row.symbol[j];
    return blanks + symbols;
}

/* dlogits [C] <- g (y - occupancy / p) */
ALWAYS_INLINE void frame_backward(int T, Real *dlogits, bool accumulate, Real g, const Real *x,
                                  LogSumExp l, const Real *occupancy, Real p, int64_t C)
{
    const Real factor = 1 / p;
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        contribute(T, dlogits, c, accumulate,
                   g * (real_exp(log_probability(load(T, x, c), l)) - factor * occupancy[c]));
}

/* beta <- that of the frame before x */
ALWAYS_INLINE void step_back(int T, Real *beta, Real *sums, const Real *x, LogSumExp l,
                             const int32_t *target, const Real *skip, int64_t n)
{
    const Real blank = log_probability(load(T, x, 0), l);
    const CtcRow b = ctc_row(beta, n), c = ctc_row(sums, n);
    c.symbol[-1] = c.symbol[n] = -(Real)INFINITY;
#pragma omp simd
    for (int64_t j = 0; j <= n; j++)
        c.blank[j] = b.blank[j] + blank;
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        c.symbol[j] = b.symbol[j] + log_probability(load(T, x, target[j]), l);
    shift_to_zero(sums, ctc_states(n));
#pragma omp simd
    for (int64_t j = 0; j <= n; j++)
        b.blank[j] = log_add(c.blank[j], c.symbol[j]);
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        b.symbol[j] = log_add_3(c.symbol[j], c.blank[j + 1], skip[j + 1] + c.symbol[j + 1]);
}

ALWAYS_INLINE void sequence_backward(int T, Real *dlogits, bool accumulate, Real g,
                                     CtcWorkspace parts, const Real *alpha,
                                     const LogSumExp *log_sums, const Real *logits,
                                     const int32_t *target, int64_t frames, int64_t n,
                                     bool ignore_impossible, CtcSizes size)
{
    const int64_t W = ctc_states(size.S), C = size.C;
    fill(parts.states, -(Real)INFINITY, ctc_states(n));
    parts.states[n] = 0;
    if (n > 0)
        ctc_row(parts.states, n).symbol[n - 1] = 0;
    for (int64_t t = size.T - 1; t >= 0; t--) {
        const Real *x = elements_at(T, logits, t * C);
        Real p = 0;
        if (t < frames)
            p = occupancy_of_frame(parts.occupancy, parts.sums, alpha + (t + 1) * W, parts.states,
                                   target, n, C);
        const bool ignored = g == 0 || t >= frames || (p == 0 && ignore_impossible);
        if (ignored)
            for (int64_t c = 0; c < C; c++)
                contribute(T, dlogits, t * C + c, accumulate, 0);
        else
            frame_backward(T, elements_at(T, dlogits, t * C), accumulate, g, x, log_sums[t],
                           parts.occupancy, p, C);
        if (t < frames)
            step_back(T, parts.states, parts.sums, x, log_sums[t], target, parts.skip, n);
    }
}

/* dlogits [B, T, C], dlosses [B]; the rest as ctc_forward_cpu */
void ctc_backward_cpu(TensorType type, Real *dlogits, bool accumulate, const Real *dlosses,
                      const Real *alpha, const LogSumExp *log_sums, Real *workspace,
                      const Real *logits, const int32_t *targets, const int32_t *lengths,
                      const int32_t *target_lengths, bool ignore_impossible, CtcSizes size)
{
    const int64_t W = ctc_states(size.S);
#pragma omp parallel for schedule(dynamic) num_threads(threads_for(size.B *size.T *W, 2))
    for (int64_t b = 0; b < size.B; b++) {
        const int64_t n = target_lengths ? target_lengths[b] : size.S, start = b * size.T * size.C;
        const CtcWorkspace parts = ctc_workspace(workspace, b, size);
        skips(parts.skip, targets + b * size.S, n);
        BY_STORAGE(type, T,
                   sequence_backward(T, elements_at(T, dlogits, start), accumulate, dlosses[b],
                                     parts, alpha + b * (size.T + 1) * W, log_sums + b * size.T,
                                     elements_at(T, logits, start), targets + b * size.S,
                                     lengths ? lengths[b] : size.T, n, ignore_impossible, size));
    }
}

typedef struct CtcAttributes {
    bool ignore_impossible;
    CtcSizes size;
} CtcAttributes;

static Tensor *ctc_scratch(Tape *tape, CtcSizes size)
{
    return tape_scratch(tape, shape(size.B, 2 * ctc_states(size.S) + size.S + 1 + size.C));
}

static const int32_t *integers_or_null(const Tensor *tensor)
{
    return tensor ? tensor->integers : NULL;
}

static void ctc_backward(Node *node)
{
    const CtcAttributes *attributes = node->attributes;
    Tensor *logits = node->inputs[0], *targets = node->inputs[1];
    Gradient dlogits = tape_contribution(node, logits);
    if (!dlogits.data)
        return;
    Tensor *workspace = ctc_scratch(node->tape, attributes->size);
    KERNEL_CALL(logits, ctc_backward,
                (dlogits.data, dlogits.accumulate, tape_upstream(node, 0), node->saved[0]->data,
                 (const LogSumExp *)node->saved[1]->data, workspace->data, logits->data,
                 targets->integers, integers_or_null(node->inputs[2]),
                 integers_or_null(node->inputs[3]), attributes->ignore_impossible,
                 attributes->size));
    tape_scratch_free(node->tape, workspace);
}

/* Raises if a target contains the blank. */
static void check_blanks(Tape *tape, const Tensor *targets, const Tensor *target_lengths,
                         CtcSizes size)
{
    for (int64_t b = 0; b < size.B; b++) {
        enum { PIECE = 1 << 12 };
        int32_t piece[PIECE], n = (int32_t)size.S;
        if (target_lengths)
            device_copy_out(targets->device, &n, target_lengths->integers + b, sizeof n);
        for (int32_t j = 0; j < n; j++) {
            if (j % PIECE == 0)
                device_copy_out(targets->device, piece, targets->integers + b * size.S + j,
                                (size_t)(n - j < PIECE ? n - j : PIECE) * sizeof *piece);
            if (piece[j % PIECE] == 0)
                tape_error(tape, "op_ctc: targets[%lld,%d] is 0, the blank, expected 1 to %lld",
                           (long long)b, (int)j, (long long)(size.C - 1));
        }
    }
}

static void check_lengths(Tape *tape, const char *label, Tensor *lengths, int64_t B, int64_t most,
                          const char *reason)
{
    tape_use_i32(tape, label, lengths);
    if (!shape_equal(lengths->shape, shape(B)))
        tape_error(tape, "%s is %s, expected [%lld]: one per sequence", label,
                   shape_text(lengths->shape).text, (long long)B);
    check_indices(tape, label, lengths, 0, most, reason);
}

static CtcSizes check_ctc(Tape *tape, Tensor *logits, Tensor *targets, CtcOptions options)
{
    tape_use(tape, "op_ctc: logits", logits);
    tape_use_i32(tape, "op_ctc: targets", targets);
    if (logits->shape.rank != 3)
        tape_error(tape, "op_ctc: logits is %s, expected [B, T, C]",
                   shape_text(logits->shape).text);
    const int64_t *axes = logits->shape.size;
    if (targets->shape.rank != 2 || targets->shape.size[0] != axes[0])
        tape_error(tape, "op_ctc: targets is %s, expected [%lld, S]: logits is %s",
                   shape_text(targets->shape).text, (long long)axes[0],
                   shape_text(logits->shape).text);
    const CtcSizes size = { axes[0], axes[1], axes[2], targets->shape.size[1] };
    check_indices(tape, "op_ctc: targets", targets, 0, size.C - 1, "the symbols of logits");
    if (options.lengths)
        check_lengths(tape, "op_ctc: lengths", options.lengths, size.B, size.T,
                      "the frames of logits");
    if (options.target_lengths)
        check_lengths(tape, "op_ctc: target_lengths", options.target_lengths, size.B, size.S,
                      "the symbols of targets");
    if (!device_is_capturing(logits->device))
        check_blanks(tape, targets, options.target_lengths, size);
    return size;
}

Tensor *op_ctc(Tape *tape, Tensor *logits, Tensor *targets, CtcOptions options)
{
    const CtcSizes size = check_ctc(tape, logits, targets, options);
    const CtcAttributes attributes = { options.ignore_impossible, size };
    Tensor *losses = tape_tensor(tape, shape(size.B));
    Tensor *alpha = tape_tensor(tape, shape(size.B, size.T + 1, ctc_states(size.S)));
    Tensor *log_sums = tape_tensor(tape, shape(size.B, size.T, 2));
    Tensor *workspace = ctc_scratch(tape, size);
    KERNEL_CALL(logits, ctc_forward,
                (losses->data, alpha->data, (LogSumExp *)log_sums->data, workspace->data,
                 logits->data, targets->integers, integers_or_null(options.lengths),
                 integers_or_null(options.target_lengths), options.ignore_impossible, size));
    tape_scratch_free(tape, workspace);
    tape_record(tape,
                (Node){ "op_ctc", ctc_backward,
                        .inputs = { logits, targets, options.lengths, options.target_lengths },
                        .outputs = { losses }, .saved = { alpha, log_sums },
                        .attributes = tape_save(tape, &attributes, sizeof attributes) });
    return losses;
}
