/* Patterns of weights' path names, as shells match file names: fnmatch(3) without flags, on
 * every system, but without classes such as [:digit:] and without \ in sets.
 *
 *   *   any characters     ?   one character     [abc] [a-c] [!a-c]   one of these, or none of them
 *   \c  the character c    other characters match themselves, and so does a [ without its ] */
#include "nn/internal.h"

/* Matches c with the set behind '['. Returns the pattern behind its ']', or NULL if there is
 * none. */
static const char *match_set(const char *set, char c, bool *in_set)
{
    const bool negated = *set == '!';
    set += negated;
    *in_set = negated;
    for (const char *first = set; *set && (*set != ']' || set == first); set++) {
        const char low = *set;
        if (set[1] == '-' && set[2] && set[2] != ']')
            set += 2;
        if (low <= c && c <= *set)
            *in_set = !negated;
    }
    return *set ? set + 1 : NULL;
}

/* Matches c with the pattern's first element, not '*'. Returns the rest of the pattern, or NULL. */
static const char *match_character(const char *pattern, char c)
{
    bool in_set;
    if (*pattern == '?')
        return pattern + 1;
    const char *rest = *pattern == '[' ? match_set(pattern + 1, c, &in_set) : NULL;
    if (rest)
        return in_set ? rest : NULL;
    if (*pattern == '\\' && pattern[1])
        pattern++;
    return *pattern == c ? pattern + 1 : NULL;
}

/* Where an element does not match, the last '*' takes one more character. */
bool params_matches(const char *pattern, const Tensor *weight)
{
    const char *behind_star = NULL, *star_end = NULL;
    for (const char *c = weight->name; *c;) {
        const char *rest = *pattern == '*' ? NULL : match_character(pattern, *c);
        if (*pattern == '*') {
            behind_star = ++pattern;
            star_end = c;
        } else if (rest) {
            pattern = rest;
            c++;
        } else if (behind_star) {
            pattern = behind_star;
            c = ++star_end;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* ------------------------------------------------------------------------------------- freezing */
void params_check_pattern(const char *function, const Params *params, const char *pattern)
{
    if (!params || !pattern)
        error_raise("%s: %s is NULL", function, params ? "the pattern" : "params");
    if (device_is_capturing(params->device))
        error_raise("%s: this step is replayed; call it before the step", function);
    for (int i = 0; i < params_count(params); i++)
        if (params_matches(pattern, params_at(params, i)))
            return;
    error_raise("%s: no weight's name matches \"%s\"", function, pattern);
}

/* The backward pass looks at the whole of joined weights, which share one gradient. */
void params_set_requires_grad(Params *params, const char *pattern, bool requires_grad)
{
    params_check_pattern("params_set_requires_grad", params, pattern);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        Tensor *tensor = &weight->tensor;
        if (weight->is_whole)
            tensor->requires_grad = false;
        else if (params_matches(pattern, tensor))
            tensor->requires_grad = requires_grad;
        tensor_root(tensor)->requires_grad |= tensor->requires_grad;
    }
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.has_gradient &= weight->tensor.requires_grad;
    params->frozen_version++;
}
