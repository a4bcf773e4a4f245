/* Causal linear attention in four forms and its gradients in four ways, compared on a case small
 * enough to read. Chapter 9 of the book derives them: book/linear_attention/page.md.
 *
 * One sequence, one head: queries and keys [N, D], values [N, M]; phi(x) = elu(x) + 1;
 *
 *     a_i = phi(q_i)    b_j = phi(k_j)
 *     out_i = sum_{j<=i} (a_i . b_j) v_j / (sum_{j<=i} a_i . b_j + eps)
 *
 * The forms add the same terms in other orders, in double: they differ by a few errors of 1e-16.
 * The tape's rounding is near 6e-8, in a build with REAL=double as small as theirs. Differences
 * contain L's rounding divided by h, about 1e-11 for h = 1e-5, and an error in proportion to h^2,
 * as small. Position 1 attends to itself alone, out_1 = v_1: dL/dq_1 would be 0 but for eps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad.h>

enum { N = 6, D = 2, M = 2, CHUNK = 2, WIDEST = 3 };
static const double eps = 1e-6;

/* N rows of up to WIDEST elements. The plain loops compute in double, so their difference from the
 * tape is the tape's rounding error. */
typedef struct Rows {
    int columns;
    double at[N][WIDEST];
} Rows;

/* ------------------------------------------------------- 1. one sum, four forms
 * scan(x, y, w)_i = sum_{j<=i} (x_i . y_j) w_j
 * is all that attention needs. The four functions below compute the same rows. */
typedef Rows Scan(Rows x, Rows y, Rows w);

static double dot(const double *x, const double *y, int count)
{
    double sum = 0;
    for (int c = 0; c < count; c++)
        sum += x[c] * y[c];
    return sum;
}

/* The formula as written: every pair of positions, O(N^2) time. */
static Rows scan_quadratic(Rows x, Rows y, Rows w)
{
    Rows out = { .columns = w.columns };
    for (int i = 0; i < N; i++)
        for (int j = 0; j <= i; j++)
            for (int m = 0; m < w.columns; m++)
                out.at[i][m] += dot(x.at[i], y.at[j], x.columns) * w.at[j][m];
    return out;
}

/* The recurrent state: the sum of y_j w_j^T over the positions so far. */
typedef struct State {
    double at[WIDEST][WIDEST];
} State;

static void state_add(State *s, const double *y, int y_count, const double *w, int w_count)
{
    for (int c = 0; c < y_count; c++)
        for (int m = 0; m < w_count; m++)
            s->at[c][m] += y[c] * w[m];
}

/* out += s^T x */
static void state_read(const State *s, const double *x, int x_count, double *out, int w_count)
{
    for (int c = 0; c < x_count; c++)
        for (int m = 0; m < w_count; m++)
            out[m] += s->at[c][m] * x[c];
}

/* (x_i . y_j) w_j = (w_j y_j^T) x_i: the factor with j is summed once for all i. O(N) time. */
static Rows scan_recurrent(Rows x, Rows y, Rows w)
{
    Rows out = { .columns = w.columns };
    State s = { 0 };
    for (int i = 0; i < N; i++) {
        state_add(&s, y.at[i], y.columns, w.at[i], w.columns);
        state_read(&s, x.at[i], x.columns, out.at[i], w.columns);
    }
    return out;
}

/* The quadratic form within the chunk that begins at position start. */
static void add_within_chunk(int start, const Rows *x, const Rows *y, const Rows *w, Rows *out)
{
    for (int i = start; i < start + CHUNK; i++)
        for (int j = start; j <= i; j++)
            for (int m = 0; m < w->columns; m++)
                out->at[i][m] += dot(x->at[i], y->at[j], x->columns) * w->at[j][m];
}

/* The quadratic form within a chunk, the state between chunks: matrix products of a fixed size. */
static Rows scan_chunked(Rows x, Rows y, Rows w)
{
    Rows out = { .columns = w.columns };
    State s = { 0 };
    for (int start = 0; start < N; start += CHUNK) {
        for (int i = start; i < start + CHUNK; i++)
            state_read(&s, x.at[i], x.columns, out.at[i], w.columns);
        add_within_chunk(start, &x, &y, &w, &out);
        for (int i = start; i < start + CHUNK; i++)
            state_add(&s, y.at[i], y.columns, w.at[i], w.columns);
    }
    return out;
}

/* The chunked form in three passes. The first and the last are parallel over chunks; only the
 * middle one is sequential, and it adds up just one small state per chunk. */
static Rows scan_chunk_parallel(Rows x, Rows y, Rows w)
{
    Rows out = { .columns = w.columns };
    State own[N / CHUNK] = { 0 }, prefix[N / CHUNK] = { 0 };
    for (int chunk = 0; chunk < N / CHUNK; chunk++)
        for (int i = chunk * CHUNK; i < (chunk + 1) * CHUNK; i++)
            state_add(&own[chunk], y.at[i], y.columns, w.at[i], w.columns);
    for (int chunk = 1; chunk < N / CHUNK; chunk++)
        for (int c = 0; c < WIDEST; c++)
            for (int m = 0; m < WIDEST; m++)
                prefix[chunk].at[c][m] = prefix[chunk - 1].at[c][m] + own[chunk - 1].at[c][m];
    for (int chunk = 0; chunk < N / CHUNK; chunk++) {
        for (int i = chunk * CHUNK; i < (chunk + 1) * CHUNK; i++)
            state_read(&prefix[chunk], x.at[i], x.columns, out.at[i], w.columns);
        add_within_chunk(chunk * CHUNK, &x, &y, &w, &out);
    }
    return out;
}

/* ------------------------------------------------------- 2. attention: one scan and a quotient */

static Rows phi(Rows x)
{
    for (int i = 0; i < N; i++)
        for (int c = 0; c < x.columns; c++)
            x.at[i][c] = x.at[i][c] > 0 ? x.at[i][c] + 1 : exp(x.at[i][c]);
    return x;
}

/* v~_j = [v_j, 1]: the column of ones yields the sum of a_i . b_j, the normalizer. */
static Rows with_ones(Rows v)
{
    for (int i = 0; i < N; i++)
        v.at[i][v.columns] = 1;
    v.columns++;
    return v;
}

typedef struct Forward {
    Rows out;      /* [N, M] */
    double den[N]; /* sum_{j<=i} a_i . b_j + eps */
} Forward;

static Forward attention(Scan *scan, Rows q, Rows k, Rows v)
{
    Rows num = scan(phi(q), phi(k), with_ones(v)); /* num~_i = [num_i, den_i - eps]: [N, M + 1] */
    Forward forward = { .out = { .columns = M } };
    for (int i = 0; i < N; i++) {
        forward.den[i] = num.at[i][M] + eps;
        for (int m = 0; m < M; m++)
            forward.out.at[i][m] = num.at[i][m] / forward.den[i];
    }
    return forward;
}

/* ------------------------------------------------------- 3. gradients, by hand */

typedef struct Gradients {
    Rows dq, dk, dv;
} Gradients;

static Rows reversed(Rows x)
{
    Rows y = { .columns = x.columns };
    for (int i = 0; i < N; i++)
        for (int c = 0; c < x.columns; c++)
            y.at[i][c] = x.at[N - 1 - i][c];
    return y;
}

/* scan_reverse(x, y, w)_j = sum_{i>=j} (x_j . y_i) w_i: the scan in reverse order. */
static Rows scan_reverse(Scan *scan, Rows x, Rows y, Rows w)
{
    return reversed(scan(reversed(x), reversed(y), reversed(w)));
}

/* dnum~_i = [dnum_i, dden_i], the derivative of the augmented numerator, with g_i = dL/dout_i:
 * dnum_i = g_i / den_i,  dden_i = -(g_i . out_i) / den_i. */
static Rows quotient_backward(Rows g, const Forward *forward)
{
    Rows dnum = { .columns = M + 1 };
    for (int i = 0; i < N; i++) {
        for (int m = 0; m < M; m++)
            dnum.at[i][m] = g.at[i][m] / forward->den[i];
        dnum.at[i][M] = -dot(g.at[i], forward->out.at[i], M) / forward->den[i];
    }
    return dnum;
}

/* dx = da phi'(x), and phi'(x) = min(1, phi(x)) */
static Rows feature_map_backward(Rows da, Rows a)
{
    for (int i = 0; i < N; i++)
        for (int c = 0; c < da.columns; c++)
            da.at[i][c] *= fmin(1, a.at[i][c]);
    return da;
}

static Gradients by_hand(Scan *scan, Rows q, Rows k, Rows v, Rows g)
{
    Rows a = phi(q), b = phi(k);
    Forward forward = attention(scan, q, k, v);
    Rows dnum_dden = quotient_backward(g, &forward), dnum = dnum_dden;
    dnum.columns = M;
    return (Gradients){
        .dq = feature_map_backward(scan(dnum_dden, with_ones(v), b), a),
        .dk = feature_map_backward(scan_reverse(scan, with_ones(v), dnum_dden, a), b),
        .dv = scan_reverse(scan, b, a, dnum),
    };
}

/* ------------------------------------------------------- 4. gradients, by the tape */

static Tensor *variable(Tape *tape, Rows x, Shape size)
{
    Real host[N * WIDEST];
    for (int i = 0; i < N; i++)
        for (int c = 0; c < x.columns; c++)
            host[i * x.columns + c] = (Real)x.at[i][c];
    return tape_variable(tape, host, size);
}

static Rows rows_of(const Tensor *tensor, int columns)
{
    Real host[N * WIDEST];
    Rows x = { .columns = columns };
    tensor_read(tensor, host);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < columns; c++)
            x.at[i][c] = (double)host[i * columns + c];
    return x;
}

/* The definition by elementary operations: S_i and z_i are cumulative sums over the positions. */
static Tensor *elementary(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    Tensor *a = op_elu_plus_one(tape, q), *b = op_elu_plus_one(tape, k); /* [N, D] each */
    Tensor *a_row = op_reshape(tape, a, shape(N, 1, D));
    Tensor *b_column = op_reshape(tape, b, shape(N, D, 1));
    Tensor *v_row = op_reshape(tape, v, shape(N, 1, M));
    Tensor *products = op_matmul(tape, b_column, v_row); /* b_j v_j^T: [N, D, M] */
    Tensor *s = op_cumulative_sum(tape, products, 0);    /* [N, D, M] */
    Tensor *z = op_cumulative_sum(tape, b, 0);           /* [N, D] */
    Tensor *numerator = op_matmul(tape, a_row, s);       /* S_i^T a_i: [N, 1, M] */
    numerator = op_reshape(tape, numerator, shape(N, M));
    Tensor *den = op_sum(tape, op_multiply(tape, a, z), -1); /* a_i . z_i: [N] */
    den = op_add_scalar(tape, den, eps);
    Tensor *quotient = op_divide(tape, op_transpose(tape, numerator, 0, 1), den); /* [M, N] */
    return op_transpose(tape, quotient, 0, 1);                                    /* [N, M] */
}

/* The library's operation, on [B, N, H, D]. */
static Tensor *fused(Tape *tape, Tensor *q, Tensor *k, Tensor *v)
{
    return op_causal_linear_attention(
        tape, op_reshape(tape, q, shape(1, N, 1, D)), op_reshape(tape, k, shape(1, N, 1, D)),
        op_reshape(tape, v, shape(1, N, 1, M)), (CausalLinearAttentionOptions){ .eps = eps }, NULL);
}

/* L = sum g out, so that dL/dout = g. */
static Gradients by_tape(Tensor *(*attend)(Tape *, Tensor *, Tensor *, Tensor *), Rows q, Rows k,
                         Rows v, Rows g, Rows *out)
{
    Tape *tape = tape_new(device_open("cpu"));
    Tensor *tq = variable(tape, q, shape(N, D)), *tk = variable(tape, k, shape(N, D));
    Tensor *tv = variable(tape, v, shape(N, M)), *tg = variable(tape, g, shape(N, M));
    Tensor *attended = tensor_keep(op_reshape(tape, attend(tape, tq, tk, tv), shape(N, M)));
    tape_backward(tape, op_sum(tape, op_multiply(tape, attended, tg), ALL_AXES));
    *out = rows_of(attended, M);
    Gradients gradients = { rows_of(tensor_gradient(tq), D), rows_of(tensor_gradient(tk), D),
                            rows_of(tensor_gradient(tv), M) };
    tape_free(tape);
    return gradients;
}

/* ------------------------------------------------------- 5. gradients, by finite differences */

static double loss(Rows q, Rows k, Rows v, Rows g)
{
    Forward forward = attention(scan_quadratic, q, k, v);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += dot(g.at[i], forward.out.at[i], M);
    return sum;
}

/* (L(x + h) - L(x - h)) / 2h for each element x of q, k and v. */
static Gradients by_differences(Rows q, Rows k, Rows v, Rows g)
{
    const double h = 1e-5;
    Gradients gradients = { .dq.columns = D, .dk.columns = D, .dv.columns = M };
    Rows *inputs[] = { &q, &k, &v }, *outputs[] = { &gradients.dq, &gradients.dk, &gradients.dv };
    for (int input = 0; input < 3; input++) {
        for (int e = 0; e < N * inputs[input]->columns; e++) {
            int i = e / inputs[input]->columns, c = e % inputs[input]->columns;
            double *x = &inputs[input]->at[i][c], saved = *x;
            *x = saved + h;
            double above = loss(q, k, v, g);
            *x = saved - h;
            double below = loss(q, k, v, g);
            *x = saved;
            outputs[input]->at[i][c] = (above - below) / (2 * h);
        }
    }
    return gradients;
}

/* ------------------------------------------------------- 6. comparison */

enum { WAYS = 4 };

static void print_table(const char *name, const char *const titles[WAYS], const Rows ways[WAYS])
{
    printf("%-8s", name);
    for (int way = 0; way < WAYS; way++)
        printf("%20s", titles[way]);
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < ways[0].columns; c++) {
            printf("\n  [%d,%d] ", i + 1, c + 1);
            for (int way = 0; way < WAYS; way++)
                printf("%20.9f", ways[way].at[i][c]);
        }
    }
    printf("\n\n");
}

static double difference(Rows x, Rows y)
{
    double largest = 0;
    for (int i = 0; i < N; i++)
        for (int c = 0; c < x.columns; c++)
            largest = fmax(largest, fabs(x.at[i][c] - y.at[i][c]));
    return largest;
}

static double gradient_difference(const Gradients *x, const Gradients *y)
{
    return fmax(fmax(difference(x->dq, y->dq), difference(x->dk, y->dk)), difference(x->dv, y->dv));
}

/* Prints one line of the summary; returns whether the difference is within the tolerance. */
static bool report(const char *what, double largest, double allowed)
{
    printf("  %-66s %8.1e  (allowed %.0e)\n", what, largest, allowed);
    return largest <= allowed;
}

static Rows draw(Random *random, int columns)
{
    Real host[N * WIDEST];
    Rows x = { .columns = columns };
    random_normal(random, host, N * columns);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < columns; c++)
            x.at[i][c] = (double)host[i * columns + c];
    return x;
}

static bool compare_forms(Rows q, Rows k, Rows v, Rows g)
{
    static const char *const names[WAYS] = { "quadratic", "recurrent", "chunked",
                                             "chunk-parallel" };
    Scan *const scans[WAYS] = { scan_quadratic, scan_recurrent, scan_chunked, scan_chunk_parallel };
    Rows outs[WAYS];
    double out_largest = 0, gradient_largest = 0;
    Gradients first = by_hand(scans[0], q, k, v, g);
    for (int form = 0; form < WAYS; form++) {
        Gradients gradients = by_hand(scans[form], q, k, v, g);
        outs[form] = attention(scans[form], q, k, v).out;
        out_largest = fmax(out_largest, difference(outs[form], outs[0]));
        gradient_largest = fmax(gradient_largest, gradient_difference(&gradients, &first));
    }
    print_table("out", names, outs);
    bool ok = report("four forms of the output, largest difference:", out_largest, 1e-13);
    ok &=
        report("gradients by hand through each form, largest difference:", gradient_largest, 1e-13);
    printf("\n");
    return ok;
}

static bool compare_gradients(Rows q, Rows k, Rows v, Rows g)
{
    static const char *const names[WAYS] = { "cumulative sums", "tape, elementary",
                                             "finite differences", "tape, fused" };
    Rows elementary_out, fused_out, out = attention(scan_recurrent, q, k, v).out;
    Gradients ways[WAYS] = { by_hand(scan_recurrent, q, k, v, g),
                             by_tape(elementary, q, k, v, g, &elementary_out),
                             by_differences(q, k, v, g), by_tape(fused, q, k, v, g, &fused_out) };
    Rows dq[WAYS], dk[WAYS], dv[WAYS];
    for (int way = 0; way < WAYS; way++) {
        dq[way] = ways[way].dq;
        dk[way] = ways[way].dk;
        dv[way] = ways[way].dv;
    }
    print_table("dL/dq", names, dq);
    print_table("dL/dk", names, dk);
    print_table("dL/dv", names, dv);
    double rounding = sizeof(Real) == sizeof(double) ? 1e-13 : 1e-5;
    bool ok = report("outputs of the tape against plain loops, largest difference:",
                     fmax(difference(elementary_out, out), difference(fused_out, out)), rounding);
    ok &= report("gradients: elementary operations against cumulative sums:",
                 gradient_difference(&ways[1], &ways[0]), rounding);
    ok &= report("gradients: finite differences against cumulative sums:",
                 gradient_difference(&ways[2], &ways[0]), 1e-8);
    ok &= report("gradients: op_causal_linear_attention against cumulative sums:",
                 gradient_difference(&ways[3], &ways[0]), rounding);
    return ok;
}

int main(void)
{
    Random random = random_new(/*seed*/ 1, random_stream("derive_attention"));
    Rows q = draw(&random, D), k = draw(&random, D), v = draw(&random, M), g = draw(&random, M);
    printf("causal linear attention: N = %d positions, D = %d, M = %d, chunks of %d positions\n"
           "L = sum of g out, with a random g\n\n",
           N, D, M, CHUNK);
    bool ok = compare_forms(q, k, v, g);
    ok &= compare_gradients(q, k, v, g);
    ok &= !fflush(stdout) && !ferror(stdout);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
