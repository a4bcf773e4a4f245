/* Answers to exercise 1.1 */
#include "exercise.h"
#include "../answer.h"

static void contribute(Real *gradient, int i, Real value)
{
    gradient[i] = is("stores") ? value : gradient[i] + value;
}

void tape_gradients(Real *gradient, const Entry *entries, const Real *value, int count)
{
    for (int i = 0; i < count && !is("no_clearing"); i++)
        gradient[i] = 0;
    if (!is("no_start"))
        gradient[count - 1] = 1;
    for (int n = 0; n < count; n++) {
        const int i = is("forward") ? n : count - 1 - n, a = entries[i].a, b = entries[i].b;
        const Real g = gradient[i];
        switch (entries[i].operation) {
        case '+':
            contribute(gradient, a, g);
            contribute(gradient, b, g);
            break;
        case '*':
            contribute(gradient, a, g * value[is("own_factor") ? a : b]);
            if (!is("one_factor") || a != b)
                contribute(gradient, b, g * value[is("own_factor") ? b : a]);
            break;
        case 'e':
            contribute(gradient, a, g * value[is("input_of_exp") ? a : i]);
            if (is("exp_twice"))
                contribute(gradient, b, g * value[i]);
            break;
        }
    }
}
