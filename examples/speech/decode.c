/* Decoding of connectionist temporal classification. Let y_tk be the probability that frame t emits
 * symbol k, log_softmax(logits_t)_k its logarithm.
 *
 * The prefix beam search (Graves and Jaitly 2014, algorithm 1) keeps for a text l two sums over the
 * paths of the first t frames that emit l:
 *   blank_t(l)   of those whose frame t is the blank
 *   symbol_t(l)  of those whose frame t is the last symbol of l, last(l)
 * A path that emits l after frame t emitted l before, or l without its last symbol, parent(l):
 *   blank_t(l)  = y_t,0 (blank_{t-1}(l) + symbol_{t-1}(l))
 *   symbol_t(l) = y_t,last(l) (symbol_{t-1}(l) + from_{t-1}(parent(l), last(l)))
 *   from_t(l, k) = blank_t(l) + (last(l) != k) symbol_t(l)
 * since a repeated symbol without a blank between is merged. After every frame the `width` texts of
 * the largest blank_t + symbol_t remain. If the beam holds all texts, the sums are exact.
 *
 * The alignment is the best path through the states blank, text_0, blank, text_1, .., blank of
 * op_ctc (ext/ctc/ctc.c), with a maximum for its sum. */
#include "examples/speech/decode.h"
#include "examples/shared/program.h"

#include <math.h>
#include <stdlib.h>

/* ln(e^a + e^b) */
static double log_add(double a, double b)
{
    double max = fmax(a, b);
    return max == -INFINITY ? max : max + log1p(exp(-fabs(a - b)));
}

/* log_y [classes] = ln y_t */
static void log_probabilities(Logits logits, int64_t t, double *log_y)
{
    const Real *x = logits.values + t * logits.classes;
    double max = -INFINITY, sum = 0;
    for (int64_t k = 0; k < logits.classes; k++)
        max = (double)x[k] > max ? (double)x[k] : max;
    for (int64_t k = 0; k < logits.classes; k++)
        sum += exp((double)x[k] - max);
    for (int64_t k = 0; k < logits.classes; k++)
        log_y[k] = (double)x[k] - max - log(sum);
}

int32_t decode_next(const Real *logits, int64_t classes, int32_t *before)
{
    int32_t best = 0;
    for (int32_t k = 1; k < classes; k++)
        best = logits[k] > logits[best] ? k : best;
    const int32_t found = best != *before ? best : 0;
    *before = best;
    return found;
}

int64_t decode_greedy(Logits logits, int32_t *text)
{
    int64_t length = 0;
    int32_t before = 0;
    for (int64_t t = 0; t < logits.frames; t++) {
        const int32_t symbol =
            decode_next(logits.values + t * logits.classes, logits.classes, &before);
        if (symbol)
            text[length++] = symbol;
    }
    return length;
}

/* --------------------------------------------------------------------------- prefix beam search */

enum { NONE = -1 };

/* A text as a node of a tree: its symbols are those from the root, node 0, to the node. */
typedef struct Prefix {
    int32_t symbol;                 /* last(l); NONE for the root, the empty text */
    int64_t parent, child, sibling; /* indices of nodes, or NONE */
    bool in_beam;
    double blank, symbol_sum;           /* ln of the sums above, of t - 1 */
    double next_blank, next_symbol_sum; /* of t */
} Prefix;

/* A text that may enter the beam: node, or a new child of it that ends with the symbol. */
typedef struct Candidate {
    int64_t node;
    int32_t symbol; /* NONE: the node itself */
    double log_p;
} Candidate;

typedef struct Search {
    int64_t width, classes;
    Prefix *nodes; /* all texts that have been in the beam */
    int64_t node_count;
    int64_t *beam; /* [width] nodes */
    int64_t size;
    Candidate *candidates; /* [width * classes] */
    int64_t candidate_count;
    double *log_y; /* [classes] */
} Search;

static int64_t add_node(Search *search, int64_t parent, int32_t symbol)
{
    const int64_t node = search->node_count++;
    search->nodes[node] = (Prefix){ .symbol = symbol,
                                    .parent = parent,
                                    .child = NONE,
                                    .sibling = NONE,
                                    .blank = -INFINITY,
                                    .symbol_sum = -INFINITY };
    if (parent != NONE) {
        search->nodes[node].sibling = search->nodes[parent].child;
        search->nodes[parent].child = node;
    }
    return node;
}

/* The child of a node that ends with the symbol, or NONE. */
static int64_t find_child(const Search *search, int64_t node, int32_t symbol)
{
    int64_t child = search->nodes[node].child;
    while (child != NONE && search->nodes[child].symbol != symbol)
        child = search->nodes[child].sibling;
    return child;
}

/* ln from_{t-1}(l, k) */
static double log_from(const Prefix *l, int32_t k)
{
    return l->symbol == k ? l->blank : log_add(l->blank, l->symbol_sum);
}

/* The sums of frame t for the texts in the beam; texts outside it become candidates. */
static void extend(Search *search, int64_t b)
{
    Prefix *l = &search->nodes[search->beam[b]];
    l->next_blank = search->log_y[0] + log_add(l->blank, l->symbol_sum);
    l->next_symbol_sum = -INFINITY;
    if (l->symbol != NONE) {
        double from = l->symbol_sum;
        if (search->nodes[l->parent].in_beam)
            from = log_add(from, log_from(&search->nodes[l->parent], l->symbol));
        l->next_symbol_sum = search->log_y[l->symbol] + from;
    }
    search->candidates[search->candidate_count++] =
        (Candidate){ search->beam[b], NONE, log_add(l->next_blank, l->next_symbol_sum) };
    for (int32_t k = 1; k < search->classes; k++) {
        const int64_t child = find_child(search, search->beam[b], k);
        if (child == NONE || !search->nodes[child].in_beam)
            search->candidates[search->candidate_count++] =
                (Candidate){ search->beam[b], k, search->log_y[k] + log_from(l, k) };
    }
}

/* By descending probability; ties by node and symbol, so that the order is defined. */
static int compare_candidates(const void *left, const void *right)
{
    const Candidate *a = left, *b = right;
    if (a->log_p != b->log_p)
        return a->log_p < b->log_p ? 1 : -1;
    if (a->node != b->node)
        return a->node > b->node ? 1 : -1;
    return (a->symbol > b->symbol) - (a->symbol < b->symbol);
}

/* The most probable candidates become the beam. */
static void select_beam(Search *search)
{
    qsort(search->candidates, (size_t)search->candidate_count, sizeof *search->candidates,
          compare_candidates);
    for (int64_t b = 0; b < search->size; b++)
        search->nodes[search->beam[b]].in_beam = false;
    search->size =
        search->candidate_count < search->width ? search->candidate_count : search->width;
    for (int64_t b = 0; b < search->size; b++) {
        const Candidate *candidate = &search->candidates[b];
        int64_t node = candidate->node;
        if (candidate->symbol != NONE) {
            node = find_child(search, candidate->node, candidate->symbol);
            node = node != NONE ? node : add_node(search, candidate->node, candidate->symbol);
            search->nodes[node].next_blank = -INFINITY;
            search->nodes[node].next_symbol_sum = candidate->log_p;
        }
        search->beam[b] = node;
    }
    for (int64_t b = 0; b < search->size; b++) {
        Prefix *l = &search->nodes[search->beam[b]];
        l->in_beam = true;
        l->blank = l->next_blank;
        l->symbol_sum = l->next_symbol_sum;
    }
}

int64_t decode_beam(Logits logits, int64_t width, int32_t *text, double *log_p)
{
    Search search = { .width = width,
                      .classes = logits.classes,
                      .nodes = allocate(1 + width * logits.frames, sizeof(Prefix)),
                      .beam = allocate(width, sizeof(int64_t)),
                      .size = 1,
                      .candidates = allocate(width * logits.classes, sizeof(Candidate)),
                      .log_y = allocate(logits.classes, sizeof(double)) };
    search.beam[0] = add_node(&search, NONE, NONE);
    search.nodes[0].blank = 0;
    search.nodes[0].in_beam = true;
    for (int64_t t = 0; t < logits.frames; t++) {
        log_probabilities(logits, t, search.log_y);
        search.candidate_count = 0;
        for (int64_t b = 0; b < search.size; b++)
            extend(&search, b);
        select_beam(&search);
    }
    const Prefix *best = &search.nodes[search.beam[0]];
    if (log_p)
        *log_p = log_add(best->blank, best->symbol_sum);
    int64_t length = 0;
    for (const Prefix *node = best; node->symbol != NONE; node = &search.nodes[node->parent])
        length++;
    int64_t i = length;
    for (const Prefix *node = best; node->symbol != NONE; node = &search.nodes[node->parent])
        text[--i] = node->symbol;
    free(search.nodes);
    free(search.beam);
    free(search.candidates);
    free(search.log_y);
    return length;
}

/* ------------------------------------------------------------------------------------ alignment */

/* The best predecessor of state s, by how many states it lies before: 0, 1, or 2 to pass over a
 * blank between unequal symbols. best [states] are the paths before frame t. */
static int8_t best_step(const double *best, int64_t s, const int32_t *text)
{
    int8_t step = 0;
    if (s > 0 && best[s - 1] > best[s])
        step = 1;
    if (s > 2 && s % 2 && text[s / 2] != text[s / 2 - 1] && best[s - 2] > best[s - step])
        step = 2;
    return step;
}

double decode_align(Logits logits, const int32_t *text, int64_t n, Interval *intervals)
{
    const int64_t states = 2 * n + 1, frames = logits.frames;
    double *best = allocate(states, sizeof *best), *log_y = allocate(logits.classes, sizeof *log_y);
    int8_t *steps = allocate(frames * states, sizeof *steps);
    for (int64_t s = 0; s < states; s++)
        best[s] = s == 0 ? 0 : -INFINITY; /* before frame 0 a path is in the first blank */
    for (int64_t t = 0; t < frames; t++) {
        log_probabilities(logits, t, log_y);
        for (int64_t s = states - 1; s >= 0; s--) { /* in place: states depend on lower ones */
            const int8_t step = steps[t * states + s] = best_step(best, s, text);
            best[s] = best[s - step] + log_y[s % 2 ? text[s / 2] : 0];
        }
    }
    int64_t s = n > 0 && best[states - 2] > best[states - 1] ? states - 2 : states - 1;
    const double log_p = best[s];
    for (int64_t i = 0; i < n; i++)
        intervals[i] = (Interval){ 0, 0 };
    for (int64_t t = frames - 1; t >= 0 && log_p > -INFINITY; t--) {
        if (s % 2) {
            Interval *interval = &intervals[s / 2];
            interval->end = interval->end ? interval->end : t + 1;
            interval->start = t;
        }
        s -= steps[t * states + s];
    }
    free(best);
    free(log_y);
    free(steps);
    return log_p;
}

/* ----------------------------------------------------------------------------------- error rate */

void edits_add(Edits *sum, Edits edits)
{
    sum->substitutions += edits.substitutions;
    sum->deletions += edits.deletions;
    sum->insertions += edits.insertions;
    sum->symbols += edits.symbols;
}

int64_t edits_total(Edits edits)
{
    return edits.substitutions + edits.deletions + edits.insertions;
}

double edits_percent(Edits edits)
{
    return 100 * (double)edits_total(edits) / (double)edits.symbols;
}

static Edits fewest(Edits a, Edits b)
{
    return edits_total(a) <= edits_total(b) ? a : b;
}

/* d_ij of the first i symbols of the reference and the first j that were found, row by row:
 *   d_i0 = i deletions, d_0j = j insertions
 *   d_ij = the fewest of d_{i-1,j-1} + [reference_i != found_j] substitutions, d_{i-1,j} + a
 *          deletion, and d_{i,j-1} + an insertion */
Edits edits_between(const int32_t *reference, int64_t n, const int32_t *found, int64_t m)
{
    Edits *row = allocate(m + 1, sizeof *row);
    for (int64_t j = 0; j <= m; j++)
        row[j].insertions = j;
    for (int64_t i = 1; i <= n; i++) {
        Edits diagonal = row[0];
        row[0].deletions = i;
        for (int64_t j = 1; j <= m; j++) {
            Edits substituted = diagonal, deleted = row[j], inserted = row[j - 1];
            substituted.substitutions += reference[i - 1] != found[j - 1];
            deleted.deletions++;
            inserted.insertions++;
            diagonal = row[j];
            row[j] = fewest(substituted, fewest(deleted, inserted));
        }
    }
    Edits edits = row[m];
    edits.symbols = n;
    free(row);
    return edits;
}
