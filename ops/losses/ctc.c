/* ctc: the loss of a target of n symbols that T frames emit at unknown times (Graves, Fernandez,
 * Gomez and Schmidhuber 2006). Frame t emits symbol k, or the blank, symbol 0, with probability
 *   y_tk = softmax(logits_t)_k
 * A path emits one symbol per frame; merging equal neighbors, then dropping blanks, gives its text.
 *   p = sum over the paths whose text is the target of prod_t y_t,path_t      out = -ln p
 * (equations 3, 12). Such a path passes the states blank_0, symbol_0, blank_1, .., blank_n in this
 * order: it stays or goes to the next state, or passes over a blank between unequal symbols. Let
 *   a_t(s) = ln of the sum over prefixes of paths, frames 0 .. t, that end in state s
 *   b_t(s) = ln of the sum over suffixes, frames t + 1 .. T - 1, after state s at frame t
 * With (+) for ln(e^x + e^y), and skip_j = 0 if target_j differs from target_{j-1}, else minus
 * infinity, the last step gives a (equations 6, 7), the first one b (equations 10, 11, without
 * frame t's factor):
 *   a_t(blank_j)  = ln y_t,0        + (a_{t-1}(blank_j) (+) a_{t-1}(symbol_{j-1}))
 *   a_t(symbol_j) = ln y_t,target_j + (a_{t-1}(symbol_j) (+) a_{t-1}(blank_j)
 *                                                      (+) skip_j + a_{t-1}(symbol_{j-1}))
 *   b_{t-1}(blank_j)  = c_t(blank_j) (+) c_t(symbol_j)            c_t(s) = b_t(s) + ln y_t,s
 *   b_{t-1}(symbol_j) = c_t(symbol_j) (+) c_t(blank_{j+1}) (+) skip_{j+1} + c_t(symbol_{j+1})
 * Before frame 0 a path is in blank_0; after the last frame, in blank_n or symbol_{n-1}.
 *
 * Backward, g = dL/dout. Every path is in one state at frame t, so for every t
 *   p = sum_s e^(a_t(s) + b_t(s))
 *   d ln p / d ln y_tk = o_tk = sum_{s emits k} e^(a_t(s) + b_t(s)) / p
 * the probability that frame t emits k given the target, and sum_k o_tk = 1. With
 * d ln y_tk / d logits_tc = [k = c] - y_tc (equation 16):
 *   dlogits_tc <- g (y_tc - o_tc)
 *
 * Each row of a and of c is shifted to a maximum of 0, so that its error does not grow with T; the
 * shifts of a are part of ln p, summed in double, and o divides by its own sum over s. An
 * infeasible target has no path: p = 0, out is infinite, and dlogits NaN.
 * Saved: per frame ln sum_c e^logits_tc and a. Backward, b_{t-1} replaces a_t, which has been
 * used. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"
#include "ops/shared/rows.h"

/* Shifts x [n] to a maximum of 0 and returns the shift. */
static Real shift_to_zero(Real *x, int64_t n)
{
    Real m = row_max(x, n);
    m = m > -(Real)INFINITY ? m : 0;
    PRAGMA(omp simd)
    for (int64_t i = 0; i < n; i++)
        x[i] -= m;
    return m;
}

/* x(s) += ln y_t,s, from a frame's logits and their log-sum-exp */
static void ctc_emit(CtcRow x, const Real *logits, LogSumExp l, const int32_t *target, int64_t n)
{
    const Real blank = log_probability(logits[0], l);
    PRAGMA(omp simd)
    for (int64_t j = 0; j <= n; j++)
        x.blank[j] += blank;
    PRAGMA(omp simd)
    for (int64_t j = 0; j < n; j++)
        x.symbol[j] += log_probability(logits[target[j]], l);
}

/* The sums over the states before each state (prefixes) or after it (suffixes). */
ALWAYS_INLINE void ctc_step(CtcRow to, CtcRow from, const int32_t *target, int64_t n, bool prefixes)
{
    const int64_t neighbor = prefixes ? -1 : 1, blank = prefixes ? 0 : 1;
    const int64_t edge = prefixes ? 0 : n - 1; /* the symbol that has no neighbor */
    PRAGMA(omp simd)
    for (int64_t j = 0; j <= n; j++)
        to.blank[j] = log_add(from.blank[j], from.symbol[j + (prefixes ? -1 : 0)]);
    if (n > 0)
        to.symbol[edge] = log_add(from.symbol[edge], from.blank[edge + blank]);
    PRAGMA(omp simd)
    for (int64_t j = prefixes; j < n - !prefixes; j++) {
        const Real skip = target[j + neighbor] != target[j] ? 0 : -(Real)INFINITY;
        to.symbol[j] =
            log_add_3(from.symbol[j], from.blank[j + blank], skip + from.symbol[j + neighbor]);
    }
    to.symbol[-1] = to.symbol[n] = -(Real)INFINITY;
}

void ctc_forward_plain(Real *losses, Ctc ctc)
{
    EACH_ROW(b, ctc.B, ctc.T * ctc_states(ctc.S) * 4) {
        const int64_t n = ctc_symbols(&ctc, b);
        const int32_t *target = ctc.targets + b * ctc.S;
        CtcRow a = ctc_row(&ctc, b, -1);
        double log_p = 0;
        for (int64_t s = 0; s < ctc_states(n); s++)
            a.blank[s] = s == 0 ? 0 : -(Real)INFINITY;
        for (int64_t t = 0; t < ctc_frames(&ctc, b); t++) {
            const CtcRow a_t = ctc_row(&ctc, b, t);
            const Real *logits = ctc.logits + (b * ctc.T + t) * ctc.C;
            const LogSumExp l = ctc.log_sums[b * ctc.T + t] = log_sum_exp(logits, ctc.C);
            ctc_step(a_t, a, target, n, true);
            ctc_emit(a_t, logits, l, target, n);
            log_p += (double)shift_to_zero(a_t.blank, ctc_states(n));
            a = a_t;
        }
        losses[b] = (Real) - (log_p + (double)log_add(a.blank[n], a.symbol[n - 1]));
        if (ctc.ignore_infeasible && losses[b] == (Real)INFINITY)
            losses[b] = 0;
    }
}

/* dx [C] <- g (y - o) of frame t; a becomes e^(a + b), times one factor */
static void ctc_frame_backward(Gradient dx, Real g, CtcRow a, CtcRow b, const Ctc *ctc,
                               int64_t sequence, int64_t t)
{
    const int64_t n = ctc_symbols(ctc, sequence), row = sequence * ctc->T + t;
    const Real *logits = ctc->logits + row * ctc->C;
    const int32_t *target = ctc->targets + sequence * ctc->S;
    const LogSumExp l = ctc->log_sums[row];
    double blanks = 0, symbols = 0;
    PRAGMA(omp simd)
    for (int64_t s = 0; s < ctc_states(n); s++)
        a.blank[s] += b.blank[s];
    shift_to_zero(a.blank, ctc_states(n));
    SUM(+, blanks)
    for (int64_t j = 0; j <= n; j++)
        blanks += (double)real_exp(a.blank[j]);
    SUM(+, symbols)
    for (int64_t j = 0; j < n; j++)
        symbols += (double)(a.symbol[j] = real_exp(a.symbol[j]));
    const bool ignored = blanks + symbols == 0 && ctc->ignore_infeasible;
    const Real p_inverse = (Real)(1 / (blanks + symbols)), o_0 = (Real)blanks * p_inverse;
    PRAGMA(omp simd)
    for (int64_t c = 0; c < ctc->C; c++) {
        const Real y = real_exp(log_probability(logits[c], l));
        gradient_add(dx, c, ignored ? 0 : g * (y - (c == 0 ? o_0 : 0 * p_inverse)));
    }
    for (int64_t j = 0; j < n && !ignored; j++)
        dx.data[target[j]] -= g * (a.symbol[j] * p_inverse);
}

void ctc_backward_plain(Gradient dlogits, const Real *dlosses, Ctc ctc)
{
    EACH_ROW(b, ctc.B, ctc.T * ctc_states(ctc.S) * 8) {
        const int64_t n = ctc_symbols(&ctc, b), frames = ctc_frames(&ctc, b);
        const int32_t *target = ctc.targets + b * ctc.S;
        const CtcRow last = ctc_row(&ctc, b, frames);
        for (int64_t s = 0; s < ctc_states(n); s++)
            last.blank[s] = s == n || (n > 0 && s == 2 * n + 1) ? 0 : -(Real)INFINITY;
        for (int64_t t = ctc.T - 1; t >= 0; t--) {
            const CtcRow a = ctc_row(&ctc, b, t), b_t = ctc_row(&ctc, b, t + 1);
            const Gradient dx = gradient_from(dlogits, (b * ctc.T + t) * ctc.C);
            if (t >= frames || dlosses[b] == 0) {
                for (int64_t c = 0; c < ctc.C; c++)
                    gradient_add(dx, c, 0);
                continue;
            }
            const int64_t row = b * ctc.T + t;
            ctc_frame_backward(dx, dlosses[b], a, b_t, &ctc, b, t);
            ctc_emit(b_t, ctc.logits + row * ctc.C, ctc.log_sums[row], target, n); /* c_t */
            shift_to_zero(b_t.blank, ctc_states(n));
            ctc_step(a, b_t, target, n, false);
        }
    }
}

static void ctc_backward(Node *node)
{
    Tensor *logits = node->inputs[0];
    const Gradient dlogits = tape_contribution(node, logits);
    if (dlogits.data)
        kernels_of(logits)->ctc_backward(dlogits, tape_upstream(node, 0),
                                         *(const Ctc *)node->attributes);
}

/* Raises if a target contains the blank. */
static void check_blanks(Tape *tape, const Tensor *targets, const Tensor *target_lengths, int64_t C)
{
    const int64_t S = targets->shape.size[1], count = tensor_count(targets);
    int64_t length = S;
    ChunkedRead symbols, lengths;
    symbols.tensor = targets;
    lengths.tensor = target_lengths;
    for (int64_t i = 0; i < count; i++) {
        const int32_t symbol = symbols.integers[chunk_index(&symbols, i)];
        if (i % S == 0 && target_lengths)
            length = lengths.integers[chunk_index(&lengths, i / S)];
        if (symbol == 0 && i % S < length)
            tape_error(tape, "op_ctc: targets[%lld,%d] is 0, the blank, expected 1 to %lld",
                       (long long)(i / S), (int)(i % S), (long long)(C - 1));
    }
}

static void check_ctc(Tape *tape, Tensor *logits, Tensor *targets, CtcOptions options)
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
    op_check_indices(tape, "op_ctc: targets", targets, 0, axes[2] - 1, "the symbols of logits");
    if (options.lengths)
        op_check_sequence_lengths(tape, "op_ctc: lengths", options.lengths, axes[0], 0, axes[1],
                                  "the frames of logits");
    if (options.target_lengths)
        op_check_sequence_lengths(tape, "op_ctc: target_lengths", options.target_lengths, axes[0],
                                  0, targets->shape.size[1], "the symbols of targets");
    if (!device_is_capturing(logits->device))
        check_blanks(tape, targets, options.target_lengths, axes[2]);
}

Tensor *op_ctc(Tape *tape, Tensor *logits, Tensor *targets, CtcOptions options)
{
    check_ctc(tape, logits, targets, options);
    Tensor *lengths = options.lengths, *target_lengths = options.target_lengths;
    const int64_t *size = logits->shape.size, B = size[0], T = size[1], S = targets->shape.size[1];
    Tensor *losses = tape_tensor(tape, shape(B)), *log_sums = tape_tensor(tape, shape(B, T, 2));
    Tensor *states = tape_tensor(tape, shape(B, T + 2, ctc_states(S)));
    const Ctc ctc = { .B = B,
                      .T = T,
                      .C = size[2],
                      .S = S,
                      .logits = logits->data,
                      .targets = targets->integers,
                      .lengths = lengths ? lengths->integers : NULL,
                      .target_lengths = target_lengths ? target_lengths->integers : NULL,
                      .ignore_infeasible = options.ignore_infeasible,
                      .states = states->data,
                      .log_sums = (LogSumExp *)log_sums->data };
    kernels_of(logits)->ctc_forward(losses->data, ctc);
    tape_record(tape, (Node){ "op_ctc", ctc_backward,
                              .inputs = { logits, targets, lengths, target_lengths },
                              .outputs = { losses }, .saved = { states, log_sums },
                              .attributes = tape_save(tape, &ctc, sizeof ctc) });
    return losses;
}
