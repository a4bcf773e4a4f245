/* Exercise 2.2: the right answers, and a sentence for each usual wrong one. */
#include "exercise.h"

#include <stdio.h>

static const Fault right[FUNCTIONS] = { FACTOR, SIGN, STORED, UNWRITTEN, SUM, RIGHT };

/* function -1: for all functions that have no sentence of their own */
static const struct {
    int function;
    Fault guess;
    const char *sentence;
} sentences[] = {
    { 0, SIGN, "the signs differ where x < 0 and agree elsewhere: what is missing depends on x" },
    { 0, SUM, "out_i depends on x_i alone, so that dx_i has no sum" },
    { 1, SUM,
      "the sum is there. \"Off by a multiple of out\" says that its term is wrong, not that it is "
      "missing" },
    { 1, FACTOR, "no factor is missing: derive both terms by the quotient rule and compare them" },
    { 2, RIGHT, "it is right where x is used once: use x twice, by op_add of two calls" },
    { 2, FACTOR,
      "the factor 0.5 appears where x is used twice, and not where it is used once: which of the "
      "two contributions is lost?" },
    { 2, SUM, "both terms of dx_i are there: where x is used once, dx is right" },
    { 3, RIGHT, "it is right for an even n: check an odd one" },
    { 3, STORED, "where x is used twice and n is even, dx is right" },
    { 3, SUM, "all but one element are right: a missing sum would change all of them" },
    { 4, SIGN,
      "no sign is wrong. \"Off by a constant\" says that a term which all elements share is wrong "
      "or missing: which of the two?" },
    { 4, FACTOR,
      "the ratio of tape to differences changes from element to element, their difference does "
      "not: no factor is missing" },
    { 5, SIGN,
      "it is right. The sign changes at the kink, at 0, where a difference is the mean of the "
      "derivatives on both sides" },
    { 5, FACTOR,
      "it is right. At its kink, at 0, a difference is the mean of the derivatives on both sides: "
      "check x away from 0" },
    { 5, SUM, "it is right: check x away from 0, where it has a kink" },
    { -1, RIGHT, "it is not right: gradient_check's error is far above 1e-7" },
    { -1, SIGN, "no sign is wrong: check other values, other n, and x used twice" },
    { -1, FACTOR, "no factor is missing: check other values, other n, and x used twice" },
    { -1, SUM, "no sum is missing: check other values, other n, and x used twice" },
    { -1, UNWRITTEN, "an element that is not written is NaN in gradient_check, and here none is" },
    { -1, STORED,
      "with STORED, dx is right where x is used once and wrong where it is used twice" },
};

static const char *sentence(int function, Fault guess)
{
    for (size_t i = 0; i < sizeof sentences / sizeof sentences[0]; i++)
        if (sentences[i].guess == guess &&
            (sentences[i].function == function || sentences[i].function == -1))
            return sentences[i].sentence;
    return "its answer is none of the names of exercise.h";
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    look();
    int correct = 0, wrong = -1, unknown = -1;
    for (int k = FUNCTIONS - 1; k >= 0; k--) {
        correct += faults[k] == right[k];
        if (faults[k] == UNKNOWN)
            unknown = k;
        else if (faults[k] != right[k])
            wrong = k;
    }
    printf("five_faults: ");
    if (correct == FUNCTIONS)
        printf("right, all %d functions\n", FUNCTIONS);
    else if (wrong >= 0)
        printf("%d of %d are right; function %d: %s\n", correct, FUNCTIONS, wrong,
               sentence(wrong, faults[wrong]));
    else if (correct > 0)
        printf("%d of %d are right; function %d is still UNKNOWN\n", correct, FUNCTIONS, unknown);
    else
        printf("all functions are still UNKNOWN: call check in look, then fill in `faults`\n");
    return correct < FUNCTIONS;
}
