#include "bench/curve.h"

#include <math.h>

Curve curve_of_times(const Line *line)
{
    Curve curve = { .count = line->count };
    for (int p = 0; p < line->count; p++) {
        curve.x[p] = (double)line->points[p].length;
        curve.y[p] = line->points[p].ms / (double)line->points[p].batch;
    }
    return curve;
}

Estimate curve_at(const Curve *curve, double x)
{
    const double *X = curve->x, *Y = curve->y;
    int i = 0;
    if (curve->count < 2)
        return (Estimate){ NAN, false };
    while (i < curve->count - 2 && X[i + 1] <= x)
        i++;
    if (X[i] <= 0 || X[i + 1] <= X[i])
        return (Estimate){ NAN, false };
    const double power = log(Y[i + 1] / Y[i]) / log(X[i + 1] / X[i]);
    return (Estimate){ Y[i] * pow(x / X[i], power), X[0] <= x && x <= X[curve->count - 1] };
}

double curve_crossing(const Curve *slow, const Curve *fast)
{
    double crossing = 0, earlier = 0, earlier_ratio = 0, ratio = NAN;
    for (int i = 0, j = 0; i < slow->count && j < fast->count;) {
        const double x = slow->x[i];
        if (x != fast->x[j]) {
            *(x < fast->x[j] ? &i : &j) += 1;
            continue;
        }
        ratio = log(fast->y[j++] / slow->y[i++]);
        if (earlier_ratio > 0 && ratio <= 0)
            crossing = earlier * pow(x / earlier, earlier_ratio / (earlier_ratio - ratio));
        earlier = x;
        earlier_ratio = ratio;
    }
    return ratio <= 0 ? crossing : NAN;
}

BenchText estimate_text(Estimate estimate)
{
    BenchText text = { "-" };
    if (isnan(estimate.value))
        return text;
    const char *mark = estimate.measured ? "" : "~";
    const double unit = pow(10, floor(log10(estimate.value)) - 2);
    if (unit >= 1)
        snprintf(text.text, sizeof text.text, "%s%.0f", mark, round(estimate.value / unit) * unit);
    else
        snprintf(text.text, sizeof text.text, "%s%.3g", mark, estimate.value);
    return text;
}

void print_longest_lengths(const Figure *figure)
{
    printf("longest length of one sequence that fits in memory, extrapolated\n%-20s", "");
    for (int gib = 1; gib <= 16; gib *= 4)
        printf(" %8d GiB", gib);
    for (int l = 0; l < figure->count; l++) {
        const Line *line = &figure->lines[l];
        if (line->count == 0)
            continue;
        const Point *last = &line->points[line->count - 1];
        const double bytes = last->bytes / (double)(last->batch * last->length);
        printf("\n%-20s", line->name);
        for (int gib = 1; gib <= 16; gib *= 4)
            printf(" %12s", estimate_text((Estimate){ gib * 0x1p30 / bytes, false }).text);
    }
    printf("\n");
}

void print_crossings(const Figure *figure, int count)
{
    const Curve first = curve_of_times(&figure->lines[0]);
    for (int l = 1; l < count; l++) {
        const Line *line = &figure->lines[l];
        const Curve curve = curve_of_times(line);
        const double crossing = curve_crossing(&first, &curve);
        if (line->count == 0 || first.count == 0)
            continue;
        printf("%s, ", line->title);
        if (isnan(crossing))
            printf("does not overtake %s within the measured lengths\n", figure->lines[0].title);
        else if (crossing > 0)
            printf("overtakes %s at about N = %s\n", figure->lines[0].title,
                   estimate_text((Estimate){ crossing, true }).text);
        else
            printf("is at least as fast as %s at all measured lengths\n", figure->lines[0].title);
    }
}
