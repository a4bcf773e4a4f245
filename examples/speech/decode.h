/* From the frames' logits to symbols: decoding of connectionist temporal classification (ops/ops.h,
 * op_ctc), the best alignment, and error counts. logits [T, C] are one sequence in host memory;
 * symbol 0 is the blank. */
#ifndef TAPEGRAD_SPEECH_DECODE_H
#define TAPEGRAD_SPEECH_DECODE_H

#include <tapegrad.h>

typedef struct Logits {
    const Real *values; /* [frames, classes] */
    int64_t frames, classes;
} Logits;

/* One frame of the most probable path: the largest of logits [classes], or 0 if it is the blank or
 * equal to *before, that of the frame before (0 at first), which becomes it. */
int32_t decode_next(const Real *logits, int64_t classes, int32_t *before);

/* The text of the most probable path: the largest logit of every frame, equal neighbors merged,
 * blanks dropped. Writes it to text [frames] and returns its length. */
int64_t decode_greedy(Logits logits, int32_t *text);

/* The most probable text that a prefix beam search finds, which sums over the paths of each text
 * (Graves and Jaitly 2014, algorithm 1, without a language model). The beam has `width` prefixes, 1
 * or more. Writes the text to text [frames] and returns its length; *log_p, unless log_p is NULL,
 * becomes ln of the probability of its paths, as far as their prefixes were in the beam. */
int64_t decode_beam(Logits logits, int64_t width, int32_t *text, double *log_p);

/* The frames that emit a symbol: start <= t < end. */
typedef struct Interval {
    int64_t start, end;
} Interval;

/* The most probable path whose text is text [n]: writes the frames of every symbol to intervals [n]
 * and returns ln of the path's probability, or minus infinity if the frames are too few to emit
 * the text; then the intervals are empty. */
double decode_align(Logits logits, const int32_t *text, int64_t n, Interval *intervals);

/* The fewest edits that turn the reference into what was found. */
typedef struct Edits {
    int64_t substitutions, deletions, insertions, symbols; /* symbols: of the reference */
} Edits;

/* Levenshtein distance with its parts. Of equally short sequences of edits it counts one with the
 * most substitutions. */
Edits edits_between(const int32_t *reference, int64_t n, const int32_t *found, int64_t m);
void edits_add(Edits *sum, Edits edits);
int64_t edits_total(Edits edits);

/* Edits per symbol of the reference, in percent. */
double edits_percent(Edits edits);

#endif
