/* Answers to exercise 1.1, compiled with -Dright, -Dstores, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#include <math.h>

#ifdef stores
#define add(i, number) gradient[i] = number
#else
#define add(i, number) gradient[i] += number
#endif

void tape_gradients(Real *gradient, const Entry *entries, const Real *value, int count)
{
#ifndef no_clearing
    for (int i = 0; i < count; i++)
        gradient[i] = 0;
#endif
#ifndef no_start
    gradient[count - 1] = 1;
#endif
#ifdef forward
    for (int i = 0; i < count; i++) {
#else
    for (int i = count - 1; i >= 0; i--) {
#endif
        const Real g = gradient[i];
        const int a = entries[i].a, b = entries[i].b;
        switch (entries[i].operation) {
        case '+':
            add(a, g);
#ifndef one_operand
            add(b, g);
#endif
            break;
        case '*':
#ifdef own_factor
            add(a, g * value[a]);
            add(b, g * value[b]);
#elif defined one_factor
            add(a, g * value[b]);
            if (a != b)
                add(b, g * value[a]);
#else
        add(a, g * value[b]);
        add(b, g * value[a]);
#endif
            break;
        case 'e':
#ifdef input_of_exp
            add(a, g * value[a]);
#else
            add(a, g * value[i]);
#endif
#ifdef exp_twice
            add(b, g * value[i]);
#endif
            break;
        }
    }
}
