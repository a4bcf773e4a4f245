/* The numbers of a recurrence of one unit, h_t = tanh(w x_t + u h_{t-1}), and of gradients against
 * distance. Returns 1 if a gradient differs from central differences. */
#include <math.h>
#include <stdio.h>
#include <tapegrad.h>

enum { T = 4, N = 101, H = 16 };
static bool failed;

/* Element 0 of h is the initial state; elements 0 of x and g are not used. */
typedef struct Recurrence {
    double w, u, x[T + 1], g[T + 1], h[T + 1];
} Recurrence;

typedef struct Gradients {
    double dw, du, dx[T + 1], dh[T + 1], da[T + 1];
} Gradients;

/* L = sum of g_t h_t */
static double forward(Recurrence *r)
{
    double loss = 0;
    for (int t = 1; t <= T; t++) {
        r->h[t] = tanh(r->w * r->x[t] + r->u * r->h[t - 1]);
        loss += r->g[t] * r->h[t];
    }
    return loss;
}

static Gradients backward(const Recurrence *r)
{
    Gradients d = { 0 };
    for (int t = T; t >= 1; t--) {
        d.dh[t] += r->g[t];
        d.da[t] = d.dh[t] * (1 - r->h[t] * r->h[t]);
        d.dw += d.da[t] * r->x[t];
        d.du += d.da[t] * r->h[t - 1];
        d.dx[t] = r->w * d.da[t];
        d.dh[t - 1] = r->u * d.da[t];
    }
    return d;
}

/* dL by a number of r, which is restored. */
static double difference(Recurrence *r, double *moved, double expected)
{
    const double before = *moved, step = 1e-5;
    *moved = before + step;
    const double right = forward(r);
    *moved = before - step;
    const double result = (right - forward(r)) / (2 * step);
    *moved = before;
    failed |= !(fabs(result - expected) < 1e-8);
    return result;
}

static void print_recurrence(void)
{
    Recurrence r = { .w = 1, .u = 0.8, .x = { 0, 1, 0, -0.5, 0.5 }, .g = { [T] = 1 } };
    forward(&r);
    const Gradients d = backward(&r);
    printf("[recurrence]\nt      x      h  1 - h^2      dh      da\n");
    for (int t = 1; t <= T; t++)
        printf("%d %6.1f %6.3f %8.3f %7.3f %7.3f\n", t, r.x[t], r.h[t], 1 - r.h[t] * r.h[t],
               d.dh[t], d.da[t]);
    printf("[sums]\n     t=1    t=2    t=3    t=4    sum\ndw");
    for (int t = 1; t <= T; t++)
        printf("%7.3f", d.da[t] * r.x[t]);
    printf("%7.3f\ndu", d.dw);
    for (int t = 1; t <= T; t++)
        printf("%7.3f", d.da[t] * r.h[t - 1]);
    printf("%7.3f\ndifferences:%18.3f, %.3f\n", d.du, difference(&r, &r.w, d.dw),
           difference(&r, &r.u, d.du));
    difference(&r, &r.h[0], d.dh[0]);
    for (int t = 1; t <= T; t++)
        difference(&r, &r.x[t], d.dx[t]);
}

/* dh_{t-k} / dh_t of a recurrence with w = 1 and random inputs of this size */
static void print_distances(void)
{
    static const struct {
        double u, size;
    } columns[] = { { 0.9, 0 }, { 1.1, 0 }, { 1.1, 1 }, { 3, 1 } };
    Real x[N];
    Random random = random_new(/*seed*/ 1, random_stream("inputs"));
    random_normal(&random, x, N);
    printf(
        "[distance]\nu          0.9    1.1    1.1      3\ninputs       0      0      1      1\n");
    for (int k = 1; k < N; k = k == 1 ? 10 : k == 10 ? 20 : k == 20 ? 50 : 2 * k) {
        printf("k = %-3d", k);
        for (int column = 0; column < 4; column++) {
            double h = 0, product = 1;
            for (int t = 1; t < N; t++) {
                h = tanh(columns[column].size * (double)x[t] + columns[column].u * h);
                product *= t > N - 1 - k ? columns[column].u * (1 - h * h) : 1;
            }
            printf(" %6.0e", product);
        }
        printf("\n");
    }
}

int main(void)
{
    print_recurrence();
    print_distances();
    return failed;
}
