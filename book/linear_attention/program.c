/* The numbers of chapter 9: states, four forms of the output, and all gradients by scans, by
 * differences, by the tape and by the library's operation. */
#include "library.h"

#include <stdio.h>

/* phi is 2, 0.5 and 1.5 at 1, -ln 2 and 0.5 */
#define LN_2 0.6931471805599453
static Rows q = { { 1, -LN_2 }, { -LN_2, 1 }, { 1, -LN_2 }, { 0.5, 0.5 } };
static Rows k = { { 1, -LN_2 }, { -LN_2, 1 }, { 0.5, 0.5 }, { 1, -LN_2 } };
static Rows v = { { 4, 1 }, { -2, 1 }, { 1, 1 }, { 3, 1 } }; /* v~ */
static Rows g = { { 1 }, { -1 }, { 2 }, { 0.5 } };
static bool right = true;

static const struct {
    const char *name;
    Scan *scan;
} forms[] = { { "quadratic", scan_quadratic },
              { "recurrent", scan_recurrent },
              { "chunked", scan_chunked },
              { "parallel", scan_chunk_parallel } };

static void print_states(void)
{
    Rows a, b;
    State S = { 0 };
    phi(a, q);
    phi(b, k);
    printf("[features]\n   i     a_i         b_i        v~_i\n");
    for (int i = 0; i < N; i++)
        printf("%4d  %4.1f %4.1f  %5.1f %4.1f  %5.0f %3.0f\n", i + 1, a[i][0], a[i][1], b[i][0],
               b[i][1], v[i][0], v[i][1]);
    printf("[states]\n  i     S     z     num    den     out\n");
    for (int i = 0; i < N; i++) {
        double num[WIDTH] = { 0 };
        state_add(S, b[i], v[i]);
        state_read(num, S, a[i]);
        printf("%3d%6.1f%6.1f%8.2f%7.2f%8.3f\n", i + 1, S[0][0], S[0][1], num[0], num[1],
               num[0] / num[1]);
        printf("%9.1f%6.1f\n", S[1][0], S[1][1]);
    }
}

/* Prints a largest difference, which must be rounding. */
static void report(const char *what, double largest, double allowed)
{
    printf("%-32s%8.0e\n", what, largest);
    right &= largest <= allowed;
}

/* Of q, k or v: by four ways */
static void print_columns(const char *name, int columns, Rows x, Rows y, Rows z, Rows w)
{
    for (int i = 0; i < N; i++)
        for (int c = 0; c < columns; c++)
            printf("%s_%d%d%8.4f%8.4f%8.4f%8.4f\n", name, i + 1, c + 1, x[i][c], y[i][c], z[i][c],
                   w[i][c]);
}

static void print_gradients(Gradients *scans)
{
    Rows out;
    Gradients differences, tape, library;
    by_differences(&differences, q, k, v, g);
    by_tape(elementary, out, &tape, q, k, v, g);
    by_tape(fused, out, &library, q, k, v, g);
    printf("[gradients]\n        scans differ.    tape library\n");
    print_columns("dq", D, scans->q, differences.q, tape.q, library.q);
    print_columns("dk", D, scans->k, differences.k, tape.k, library.k);
    print_columns("dv", M, scans->v, differences.v, tape.v, library.v);
    printf("[agree]\n");
    report("differences", gradient_difference(scans, &differences), 1e-8);
    report("tape, in float", gradient_difference(scans, &tape), 1e-5);
    report("library, in float", gradient_difference(scans, &library), 1e-5);
}

static void print_row(const char *name, Rows out)
{
    printf("%-10s%7.3f%7.3f%7.3f%7.3f\n", name, out[0][0], out[1][0], out[2][0], out[3][0]);
}

int main(void)
{
    Rows out[4], library, delta;
    Gradients d[4], unused;
    double outputs = 0, gradients = 0;
    print_states();
    printf("[forms]\n");
    for (int f = 0; f < 4; f++) {
        forward(forms[f].scan, out[f], q, k, v);
        backward(forms[f].scan, &d[f], q, k, v, g, out[f]);
        print_row(forms[f].name, out[f]);
        outputs = fmax(outputs, difference(out[f], out[0], M));
        gradients = fmax(gradients, gradient_difference(&d[f], &d[0]));
    }
    by_tape(fused, library, &unused, q, k, v, g);
    print_row("library", library);
    right &= difference(library, out[0], M) <= 1e-5;
    printf("[rounding]\n");
    report("outputs of the four forms", outputs, 1e-13);
    report("gradients by the four forms", gradients, 1e-13);
    quotient_backward(delta, g, out[0]);
    printf("[quotient]\n   i      g    den    out   dnum   dden\n");
    for (int i = 0; i < N; i++)
        printf("%4d%7.2f%7.2f%7.3f%7.3f%7.3f\n", i + 1, g[i][0], out[0][i][M], out[0][i][0],
               delta[i][0], delta[i][M]);
    print_gradients(&d[0]);
    printf("[memory]\nelementary operations %8.0f KiB\n", saved_memory(elementary));
    printf("one operation         %8.0f KiB\n", saved_memory(fused));
    return !right;
}
