/* A tape in a hundred lines. It records operations on numbers and differentiates the last one by
 * all the others. It needs no library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Entry {
    char operation; /* 'x': an input; '+', '*'; 'e': the exponential function */
    int a, b;       /* the operands: entries before this one */
    double value, gradient;
} Entry;

typedef struct Tape {
    Entry entries[16];
    int count;
} Tape;

static int record(Tape *tape, char operation, int a, int b, double value)
{
    if (tape->count == sizeof tape->entries / sizeof tape->entries[0])
        exit(1); /* the tape is full */
    tape->entries[tape->count] = (Entry){ operation, a, b, value, 0 };
    return tape->count++;
}

static int input(Tape *tape, double value)
{
    return record(tape, 'x', 0, 0, value);
}

static int add(Tape *tape, int a, int b)
{
    return record(tape, '+', a, b, tape->entries[a].value + tape->entries[b].value);
}

static int multiply(Tape *tape, int a, int b)
{
    return record(tape, '*', a, b, tape->entries[a].value * tape->entries[b].value);
}

static int exponential(Tape *tape, int a)
{
    return record(tape, 'e', a, a, exp(tape->entries[a].value));
}

/* The gradient of every entry: dL/dentry, where L is the last one. */
static void backward(Tape *tape)
{
    Entry *entries = tape->entries;
    for (int i = 0; i < tape->count; i++)
        entries[i].gradient = 0;
    entries[tape->count - 1].gradient = 1;
    for (int i = tape->count - 1; i >= 0; i--) {
        const double g = entries[i].gradient;
        const int a = entries[i].a, b = entries[i].b;
        switch (entries[i].operation) {
        case '+':
            entries[a].gradient += g;
            entries[b].gradient += g;
            break;
        case '*':
            entries[a].gradient += g * entries[b].value;
            entries[b].gradient += g * entries[a].value;
            break;
        case 'e':
            entries[a].gradient += g * entries[i].value;
            break;
        }
    }
}

static void print(const char *title, const Tape *tape)
{
    printf("[%s]\nentry      reads      value  gradient\n", title);
    for (int i = 0; i < tape->count; i++) {
        const Entry *e = &tape->entries[i];
        char reads[16] = "";
        if (e->operation != 'x')
            snprintf(reads, sizeof reads, e->operation == 'e' ? "%d" : "%d, %d", e->a, e->b);
        printf("%d %-8s %6s %10.6f %9.6f\n", i,
               e->operation == 'x'   ? "input"
               : e->operation == 'e' ? "exp"
               : e->operation == '+' ? "add"
                                     : "multiply",
               reads, e->value, e->gradient);
    }
}

int main(void)
{
    Tape tape = { .count = 0 };
    const int x = input(&tape, 1);
    multiply(&tape, x, exponential(&tape, x));
    backward(&tape);
    print("tape", &tape);

    Tape twice = { .count = 0 };
    const int y = input(&twice, 3), square = multiply(&twice, y, y);
    add(&twice, square, y);
    backward(&twice);
    print("twice", &twice);
    return fabs(tape.entries[x].gradient - 2 * exp(1)) > 1e-12 || twice.entries[y].gradient != 7;
}
