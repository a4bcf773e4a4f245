/* Exercise 11.2: the right p is that of op_ctc; usual mistakes are other recurrences of alpha. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>

enum { Y, TARGET };

static void target_of(const Case *c, int *target)
{
    for (int j = 0; j < c->size[2]; j++)
        target[j] = (int)c->in[TARGET][j];
}

/* The first target has both kinds of neighbors. */
static void make(Case *c, int index)
{
    static const int sizes[CASES][3] = { { 7, 4, 3 }, { 2, 3, 1 }, { 9, 5, 4 } };
    static const int targets[CASES][4] = { { 1, 2, 2 }, { 2 }, { 3, 3, 1, 3 } };
    const int T = c->size[0] = sizes[index][0], K = c->size[1] = sizes[index][1];
    const int n = c->size[2] = sizes[index][2];
    int32_t target[4];
    case_normal(c, index, Y, T * K);
    Tape *tape = tape_new(device_open("plain"));
    Tensor *logits = tape_input(tape, c->in[Y], shape(1, T, K));
    tensor_read(op_softmax(tape, logits), c->in[Y]);
    for (int j = 0; j < n; j++)
        c->in[TARGET][j] = target[j] = targets[index][j];
    Tensor *loss = op_ctc(tape, logits, tape_input_i32(tape, target, shape(1, n)),
                          (CtcOptions){ .ignore_infeasible = false });
    const Real p = exp(-tensor_item(loss));
    case_right(c, 0, &p, 1, 1);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    int target[ELEMENTS];
    target_of(c, target);
    out[0].data[0] = ctc_alpha(c->in[Y], c->size[0], c->size[1], target, c->size[2]);
}

#define FAULTS(FAULT)                                                                              \
    FAULT(zero, "p is 0: the body is still empty, or no path reaches the last state")              \
    FAULT(skip_equal, "a blank between equal symbols is skipped: without it they merge into one "  \
                      "symbol, so skip only if target_j differs from target_{j-1}")                \
    FAULT(skip_symbol, "a path goes from blank to blank and leaves a symbol out: only a blank "    \
                       "may be skipped, so s must be a symbol")                                    \
    FAULT(no_skip, "a blank between unequal symbols may be left out: alpha of state s - 2 is "     \
                   "missing")                                                                      \
    FAULT(no_stay, "a state may last several frames: alpha of state s itself, at the frame "       \
                   "before, is missing")                                                           \
    FAULT(begins_in_blank, "only the blank begins: a path may begin with the first symbol, too")   \
    FAULT(begins_in_symbol, "only the first symbol begins: a path may begin with the blank, too")  \
    FAULT(begins_anywhere, "all states begin: at the first frame a path is in the first blank or " \
                           "in the first symbol")                                                  \
    FAULT(begins_with_1, "alpha of the first frame lacks this frame's factor, y of the state's "   \
                         "symbol")                                                                 \
    FAULT(ends_in_blank, "only the last blank ends: a path may end in the last symbol, too")       \
    FAULT(ends_in_symbol, "only the last symbol ends: a path may end in the last blank, too")      \
    FAULT(ends_anywhere, "all states are added at the end: only the last two have emitted the "    \
                         "whole target")                                                           \
    FAULT(frame_before, "the factor is that of the frame before: alpha_t has y of frame t")        \
    FAULT(frame_missing, "the last frame is missing: check the loop over t")                       \
    FAULT(in_place, "the sum reads alpha of frame t, expected of frame t - 1: state s - 1 is "     \
                    "overwritten before s reads it")                                               \
    FAULT(blank_last, "the blank is symbol 0, not symbol K - 1")                                   \
    FAULT(one_term, "y multiplies only one term: brackets around the sum are missing")             \
    FAULT(largest, "this is the probability of the best path: add the terms, instead of taking "   \
                   "the largest")                                                                  \
    FAULT(logarithm, "this is ln p: return p")                                                     \
    FAULT(minus_logarithm, "this is -ln p, the loss: return p")

#define NAME(name, sentence) name,
typedef enum Fault { FAULTS(NAME) } Fault;

static double begin(Fault fault, int s)
{
    return fault == begins_in_blank    ? s == 0
           : fault == begins_in_symbol ? s == 1
           : fault == begins_anywhere  ? 1
                                       : s < 2;
}

static double probability(const Case *c, Fault fault)
{
    const int T = c->size[0] - (fault == frame_missing), K = c->size[1], n = c->size[2];
    const int S = 2 * n + 1;
    int target[ELEMENTS];
    double alpha[T][S], end = 0;
    target_of(c, target);
    for (int t = 0; t < T; t++)
        for (int s = 0; s < S; s++) {
            const int blank = fault == blank_last ? K - 1 : 0;
            const int symbol = s % 2 ? target[s / 2] : blank, frame = t - (fault == frame_before);
            const double y = c->in[Y][(frame < 0 ? 0 : frame) * K + symbol];
            if (t == 0) {
                alpha[t][s] = begin(fault, s) * (fault == begins_with_1 ? 1 : y);
                continue;
            }
            const double *before = alpha[t - 1];
            const bool is_equal = s > 2 && s % 2 && target[s / 2] == target[s / 2 - 1];
            const bool may_skip =
                s > 1 && (s % 2 ? fault == skip_equal || !is_equal : fault == skip_symbol);
            const double stay = fault == no_stay ? 0 : before[s];
            const double next = s == 0 ? 0 : fault == in_place ? alpha[t][s - 1] : before[s - 1];
            const double skip = !may_skip || fault == no_skip ? 0
                                : fault == in_place           ? alpha[t][s - 2]
                                                              : before[s - 2];
            alpha[t][s] = fault == one_term  ? y * stay + next + skip
                          : fault == largest ? y * fmax(stay, fmax(next, skip))
                                             : y * (stay + next + skip);
        }
    for (int s = 0; s < S; s++)
        end += fault == ends_anywhere ? alpha[T - 1][s] : 0;
    const double last = alpha[T - 1][S - 1], symbol = alpha[T - 1][S - 2];
    return fault == zero              ? 0
           : fault == ends_anywhere   ? end
           : fault == ends_in_blank   ? last
           : fault == ends_in_symbol  ? symbol
           : fault == largest         ? fmax(last, symbol)
           : fault == logarithm       ? log(last + symbol)
           : fault == minus_logarithm ? -log(last + symbol)
                                      : last + symbol;
}

static void faulty(const Case *c, const Gradient *out)
{
    out[0].data[0] = probability(c, (Fault)c->fault);
}

#define SENTENCE(name, sentence) [name] = sentence,
int main(void)
{
    return grade(&(Exercise){
        .name = "ctc_alpha",
        .outputs = { "p" },
        .fills = true,
        .tolerance = 1e-12,
        .make = make,
        .student = student,
        .faulty = faulty,
        .faults = { FAULTS(SENTENCE) },
    });
}
