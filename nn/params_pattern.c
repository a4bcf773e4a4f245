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
