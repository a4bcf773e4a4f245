/* Causal linear attention in plain loops: four forms of one scan, and all gradients by it. */
#include <math.h>
#include <string.h>

/* N positions in chunks of C. Queries and keys have D elements, values M. All rows have the same
 * WIDTH here: D, and M + 1. */
enum { N = 4, C = 2, D = 2, M = 1, WIDTH = 2 };
static const double eps = 1e-6;

typedef double Rows[N][WIDTH];
typedef double State[WIDTH][WIDTH];
typedef void Scan(Rows o, Rows x, Rows y, Rows w);

static double dot(const double *x, const double *y)
{
    return x[0] * y[0] + x[1] * y[1];
}

/* o <- o + factor w */
static void add(double *o, double factor, const double *w)
{
    for (int c = 0; c < WIDTH; c++)
        o[c] += factor * w[c];
}

/* T <- T + y w^T */
static void state_add(State T, const double *y, const double *w)
{
    for (int r = 0; r < WIDTH; r++)
        add(T[r], y[r], w);
}

/* o <- o + T^T x */
static void state_read(double *o, State T, const double *x)
{
    for (int r = 0; r < WIDTH; r++)
        add(o, x[r], T[r]);
}

/* o_i = sum_{j<=i} (x_i.y_j) w_j */
static void scan_quadratic(Rows o, Rows x, Rows y, Rows w)
{
    memset(o, 0, sizeof(Rows));
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++)
            add(o[i], dot(x[i], y[j]), w[j]);
}

/* The same: T is the sum of y_j w_j^T so far. */
static void scan_recurrent(Rows o, Rows x, Rows y, Rows w)
{
    State T = { 0 };
    memset(o, 0, sizeof(Rows));
    for (int i = 0; i < N; i++) {
        state_add(T, y[i], w[i]);
        state_read(o[i], T, x[i]);
    }
}

/* Adds to o the pairs within the chunk at `start`, and those with earlier chunks by their T. */
static void add_chunk(Rows o, int start, Rows x, Rows y, Rows w, State T)
{
    for (int i = start; i < start + C; i++) {
        state_read(o[i], T, x[i]);
        for (int j = start; j <= i; j++)
            add(o[i], dot(x[i], y[j]), w[j]);
    }
}

static void scan_chunked(Rows o, Rows x, Rows y, Rows w)
{
    State T = { 0 };
    memset(o, 0, sizeof(Rows));
    for (int start = 0; start < N; start += C) {
        add_chunk(o, start, x, y, w, T);
        for (int j = start; j < start + C; j++)
            state_add(T, y[j], w[j]);
    }
}

/* T[c] becomes the state before chunk c. Only the second loop is sequential. */
static void scan_chunk_parallel(Rows o, Rows x, Rows y, Rows w)
{
    State T[N / C + 1] = { 0 };
    memset(o, 0, sizeof(Rows));
    for (int c = 0; c < N / C; c++) /* in parallel: each chunk's own sum */
        for (int j = c * C; j < (c + 1) * C; j++)
            state_add(T[c + 1], y[j], w[j]);
    for (int c = 0; c < N / C; c++) /* prefix sums */
        for (int r = 0; r < WIDTH; r++)
            add(T[c + 1][r], 1, T[c][r]);
    for (int c = 0; c < N / C; c++) /* in parallel: outputs */
        add_chunk(o, c * C, x, y, w, T[c]);
}

static void reverse(Rows o, Rows x)
{
    for (int i = 0; i < N; i++)
        memcpy(o[i], x[N - 1 - i], sizeof o[i]);
}

/* o_j = sum_{i>=j} (x_j.y_i) w_i */
static void scan_reverse(Scan *scan, Rows o, Rows x, Rows y, Rows w)
{
    Rows rx, ry, rw, ro;
    reverse(rx, x);
    reverse(ry, y);
    reverse(rw, w);
    scan(ro, rx, ry, rw);
    reverse(o, ro);
}

/* a_i = phi(q_i) = elu(q_i) + 1 */
static void phi(Rows a, Rows q)
{
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++)
            a[i][d] = q[i][d] > 0 ? q[i][d] + 1 : exp(q[i][d]);
}

/* d_i <- d_i phi'(q_i), from a_i = phi(q_i) */
static void phi_backward(Rows d, Rows a)
{
    for (int i = 0; i < N; i++)
        for (int c = 0; c < D; c++)
            d[i][c] *= fmin(1, a[i][c]);
}

/* vt_i = v~_i = [v_i, 1]; out_i becomes [out_i, den_i]. */
static void forward(Scan *scan, Rows out, Rows q, Rows k, Rows vt)
{
    Rows a, b;
    phi(a, q);
    phi(b, k);
    scan(out, a, b, vt);
    for (int i = 0; i < N; i++) {
        out[i][M] += eps;
        out[i][0] /= out[i][M];
    }
}

/* delta_i = [dnum_i, dden_i], from out_i = [out_i, den_i] */
static void quotient_backward(Rows delta, Rows g, Rows out)
{
    for (int i = 0; i < N; i++) {
        delta[i][0] = g[i][0] / out[i][M];
        delta[i][M] = -delta[i][0] * out[i][0];
    }
}

typedef struct Gradients {
    Rows q, k, v; /* of v the last column, that of the ones, is not used */
} Gradients;

static void backward(Scan *scan, Gradients *d, Rows q, Rows k, Rows vt, Rows g, Rows out)
{
    Rows a, b, delta;
    phi(a, q);
    phi(b, k);
    quotient_backward(delta, g, out);
    scan(d->q, delta, vt, b); /* da */
    phi_backward(d->q, a);
    scan_reverse(scan, d->k, vt, delta, a); /* db */
    phi_backward(d->k, b);
    scan_reverse(scan, d->v, b, a, delta);
}

/* sum_i g_i out_i, whose derivatives are the gradients */
static double loss(Rows q, Rows k, Rows vt, Rows g)
{
    Rows out;
    double sum = 0;
    forward(scan_quadratic, out, q, k, vt);
    for (int i = 0; i < N; i++)
        sum += g[i][0] * out[i][0];
    return sum;
}

static void by_differences(Gradients *d, Rows q, Rows k, Rows v, Rows g)
{
    double(*const inputs[])[WIDTH] = { q, k, v };
    double(*const results[])[WIDTH] = { d->q, d->k, d->v };
    const double h = 1e-5;
    for (int input = 0; input < 3; input++)
        for (int i = 0; i < N; i++)
            for (int c = 0; c < WIDTH; c++) {
                double *x = &inputs[input][i][c], before = *x;
                *x = before + h;
                const double up = loss(q, k, v, g);
                *x = before - h;
                const double down = loss(q, k, v, g);
                *x = before;
                results[input][i][c] = (up - down) / (2 * h);
            }
}

/* Of the columns below count. */
static double difference(Rows x, Rows y, int count)
{
    double largest = 0;
    for (int i = 0; i < N; i++)
        for (int c = 0; c < count; c++)
            largest = fmax(largest, fabs(x[i][c] - y[i][c]));
    return largest;
}

static double gradient_difference(Gradients *x, Gradients *y)
{
    return fmax(fmax(difference(x->q, y->q, D), difference(x->k, y->k, D)),
                difference(x->v, y->v, M));
}
