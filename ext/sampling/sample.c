/* sample: chooses one symbol per row of C logits, for R rows, with probabilities
 *   p_c = w_c / sum_j w_j, sums over kept symbols
 *   w_c = floor(2^40 e^((logit_c - max_j logit_j) / T)), T the temperature
 * from a random number u, uniform in [0, 1) in steps of 2^-64. The symbol is the first c with
 *   sum_{j<=c} w_j > floor(u S), S = sum_j w_j
 * The weights w are integers, so their sums do not depend on the order of addition, and every
 * device chooses the same symbol. The kept symbols are those with the largest logits, of equal
 * logits those of lower index, until
 *   top k: there are k of them
 *   top p: their sum is at least p S, with S the sum of the symbols that top k keeps
 * The smallest kept logit is found without sorting by a radix selection: as an integer, its key, it
 * is found digit by digit from the highest on. A pass over the row adds up, per value of the digit,
 * the number or the weights of the symbols whose keys have this value and the digits found before.
 * The weight of -infinity and NaN is 0; if all weights of a row are 0, the symbol is 0. */
#include "ext/sampling/kernels.h"
#include "ext/sampling/sampling.h"

typedef struct SymbolRow {
    const Real *logits;
    int64_t C;
    Real max, temperature;
} SymbolRow;

/* The fewest symbols with the largest logits whose number or, by_weight, whose sum of weights is at
 * least `required`. The row has that many, and required > 0. */
static KeptSymbols keep_largest(const SymbolRow *row, bool by_weight, uint64_t required)
{
    enum { DIGIT = 8, VALUES = 1 << DIGIT };
    LogitKey found = 0;
    uint64_t above = 0; /* number or weight of the symbols with larger keys */
    for (int shift = KEY_BITS - DIGIT; shift >= 0; shift -= DIGIT) {
        uint64_t has[VALUES] = { 0 };
        for (int64_t c = 0; c < row->C; c++) {
            const Real logit = row->logits[c];
            const LogitKey key = logit_key(logit);
            if ((key ^ found) >> shift >> DIGIT == 0)
                has[key >> shift & (VALUES - 1)] +=
                    by_weight ? symbol_weight(logit, row->max, row->temperature) : 1;
        }
        int value = VALUES - 1;
        while (above + has[value] < required)
            above += has[value--];
        found |= (LogitKey)value << shift;
    }
    const uint64_t each =
        by_weight ? symbol_weight(logit_of_key(found), row->max, row->temperature) : 1;
    return (KeptSymbols){ found, (required - above + each - 1) / each };
}

/* Sums the weights of kept symbols. Returns the first symbol at which the sum exceeds limit; if
 * none does, returns 0 and stores the sum in *total. */
static int64_t add_weights(const SymbolRow *row, KeptSymbols kept, uint64_t limit, uint64_t *total)
{
    uint64_t sum = 0;
    for (int64_t c = 0; c < row->C; c++) {
        const LogitKey key = logit_key(row->logits[c]);
        const bool tie = key == kept.key && kept.ties > 0;
        kept.ties -= tie;
        if (key > kept.key || tie)
            sum += symbol_weight(row->logits[c], row->max, row->temperature);
        if (sum > limit)
            return c;
    }
    *total = sum;
    return 0;
}

static int64_t sample_symbol(const Real *logits, int64_t C, const Sampler *sampler,
                             uint64_t uniform)
{
    const Real max = at_least_finite(row_max(logits, C));
    const SymbolRow row = { logits, C, max, sampler->temperature };
    KeptSymbols kept = { 0, 0 };
    uint64_t total = 0;
    if (sampler->greedy)
        kept = (KeptSymbols){ logit_key(max), 1 };
    else if (sampler->top_k > 0 && sampler->top_k < C)
        kept = keep_largest(&row, false, (uint64_t)sampler->top_k);
    add_weights(&row, kept, UINT64_MAX, &total);
    if (sampler->top_p > 0 && total > 0) {
        kept = keep_largest(&row, true, product_high_up(sampler->top_p, total));
        add_weights(&row, kept, UINT64_MAX, &total);
    }
    return add_weights(&row, kept, product_high(uniform, total), &total);
}

static void sample_plain(int32_t *out, const Real *logits, Sampler sampler, int64_t R, int64_t C)
{
    EACH_ROW(r, R, 2 * C)
        out[r] = (int32_t)sample_symbol(logits + r * C, C, &sampler, sampler_uniform(&sampler, r));
}

const SamplingKernels sampling_plain = { sample_plain, draw_normal_plain };

static void check_sampling(Tape *tape, Tensor *logits, Sampling s)
{
    tape_use(tape, "op_sample: logits", logits);
    if (logits->shape.rank < 1)
        tape_error(tape, "op_sample: logits is a scalar, expected one axis at least");
    if (shape_columns(logits->shape) > MAX_SYMBOLS)
        tape_error(tape, "op_sample: logits %s, expected %d symbols at most",
                   tensor_text(logits).text, MAX_SYMBOLS);
    if (!(s.temperature >= 0 && (Real)s.temperature < (Real)INFINITY))
        tape_error(tape, "op_sample: temperature is %g, expected 0 or more", s.temperature);
    if (s.top_k < 0)
        tape_error(tape, "op_sample: top_k is %lld, expected 1 or more, or 0 for all",
                   (long long)s.top_k);
    if (!(s.top_p >= 0 && s.top_p <= 1))
        tape_error(tape, "op_sample: top_p is %g, expected more than 0 and 1 at most, or 0 for all",
                   s.top_p);
}

Tensor *op_sample(Tape *tape, Tensor *logits, Sampling sampling)
{
    check_sampling(tape, logits, sampling);
    logits = op_cast(tape, logits, TENSOR_REAL);
    const int64_t R = shape_rows(logits->shape), C = shape_columns(logits->shape);
    Tensor *out = bounded_integers(tape, shape_of_rows(logits->shape), (int32_t)(C - 1));
    const Real temperature = (Real)sampling.temperature;
    const bool greedy = temperature == 0;
    Sampler sampler = { .random = tape_draw(tape, greedy ? 0 : R),
                        .start = tape_random_start(tape),
                        .greedy = greedy,
                        .temperature = greedy ? 1 : temperature,
                        .top_k = sampling.top_k };
    if (sampling.top_p > 0 && sampling.top_p < 1)
        sampler.top_p = (uint64_t)fmax(sampling.top_p * 0x1p64, 1);
    sampling_kernels(logits)->sample(out->integers, logits->data, sampler, R, C);
    tape_record(tape, (Node){ .name = "op_sample", .outputs = { out } });
    return out;
}
