/* A grader that names mistakes. It compares the learner's answer with the right one, which the
 * library computes, and with the answers of the usual mistakes, and prints one sentence. A program
 * for an exercise is student.c, which the learner completes, exercise.c, which describes it, and
 * grade.c. */
#ifndef GRADE_H
#define GRADE_H

#include <tapegrad.h>

#ifndef TAPEGRAD_DOUBLE
#error "exercises are compiled with -DTAPEGRAD_DOUBLE"
#endif

enum { CASES = 3, SIZES = 4, INPUTS = 6, OUTPUTS = 4, ELEMENTS = 128, MISTAKES = 32 };

/* What the function gets, and its right results. */
typedef struct Case {
    int size[SIZES]; /* R, C, ...: the exercise's; no two are equal */
    Real in[INPUTS][ELEMENTS];
    Real right[OUTPUTS][ELEMENTS];
    int rows[OUTPUTS], columns[OUTPUTS]; /* of each result */
    int fault;                           /* for Exercise.faulty: which one; else 0 */
} Case;

/* Calls a function with the case's inputs. out are its results: gradients to add to, or arrays to
 * fill. */
typedef void Answer(const Case *c, const Gradient *out);

typedef struct Mistake {
    Answer *answer;
    const char *sentence; /* what is wrong, and why */
} Mistake;

typedef struct Exercise {
    const char *name;
    const char *outputs[OUTPUTS];     /* the results' names, up to NULL */
    bool fills;                       /* the function fills arrays ... */
    bool adds;                        /* or adds to them, by +=; else it calls gradient_add */
    double tolerance;                 /* 0: 1e-9; relative to the largest right element, or to 1 */
    void (*make)(Case *c, int index); /* the case with this number below CASES */
    Answer *student;
    Mistake mistakes[MISTAKES];   /* up to NULL */
    Answer *faulty;               /* an answer with the fault c->fault ... */
    const char *faults[MISTAKES]; /* and the sentences of its faults, or NULL */
    void (*run)(int n);           /* NULL, or calls the function once, which must take O(n) time */
    const char *slow;             /* the sentence where it takes O(n^2) */
} Exercise;

/* Prints one line: that the answer is right, or its mistake. Returns main's status: 0 if right. */
int grade(const Exercise *exercise);

/* For student: a mistake that shows in something else than the results. Its first sentence comes
 * before all comparisons. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For make: n normal random numbers, others for each case and input; and the result number output,
 * rows times columns elements. */
void case_normal(Case *c, int index, int input, int n);
void case_right(Case *c, int output, const Real *values, int rows, int columns);

#endif
