/* For answers.c of each exercise, one program that gives all answers in expected.txt: it computes
 * the right one, and another value in the places that name a wrong one. The environment variable
 * ANSWER chooses; an unknown name is a right answer. Readers of the book get neither file. */
#ifndef ANSWER_H
#define ANSWER_H

#include <tapegrad.h>

#include <stdlib.h>
#include <string.h>

/* Whether the answer with this name is to be given */
static inline bool is(const char *name)
{
    static const char *answer;
    if (!answer)
        answer = getenv("ANSWER");
    return answer && strcmp(answer, name) == 0;
}

/* gradient_add, or what stands in its place in two wrong answers to all exercises that call it */
static inline void add(Gradient to, int i, Real value)
{
    if (is("stores"))
        to.data[i] = value;
    else if (is("adds_always"))
        to.data[i] += value;
    else
        gradient_add(to, i, value);
}

/* Of answers that crash */
static inline void write_to_null(void)
{
    *(volatile char *)NULL = 0;
}

#endif
