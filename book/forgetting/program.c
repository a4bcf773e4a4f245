/* The chapter's numbers of single writes: three rules, decays as floats, beta, the delta rule
 * without a state. Returns 1 if two ways to compute the same differ. */
#include "memory.h"

/* Three writes by hand, the third to the first one's key; M = 1 */
static const double K[3][2] = { { 1, 0 }, { 0.6, 0.8 }, { 1, 0 } }, V[3] = { 4, 1, -1 };

static void print_writes(void)
{
    static const char *const names[] = { "sum", "decay 0.5", "delta rule" };
    printf("[writes]\n%-10s  k   v       S       at A   at B\n", "");
    for (int rule = 0; rule < 3; rule++) {
        double S[2] = { 0 }, at[2], u;
        for (int i = 0; i < 3; i++) {
            if (rule < 2)
                update(S, rule == 0 ? 1 : 0.5, K[i], &V[i], 2, 1);
            else
                correct(S, &u, K[i], &V[i], 1, 2, 1);
            for (int key = 0; key < 2; key++)
                answer(&at[key], S, K[key], 2, 1);
            printf("%-10s  %c %3.0f  %5.2f %5.2f  %5.2f  %5.2f\n", i ? "" : names[rule],
                   i == 1 ? 'B' : 'A', V[i], S[0], S[1], at[0], at[1]);
        }
        failed |= rule == 2 && fabs(at[0] - V[2]) > 1e-12;
    }
}

/* The decay from j to j + 1 where every l is -5, as a float, in two ways */
static void print_decays(void)
{
    static const int positions[] = { 1, 10, 17, 18, 21 };
    printf("[decays]\n  j   e^c_(j+1)     e^-c_j  product  e^l\n");
    for (int i = 0; i < 5; i++) {
        const float c = -5 * (float)positions[i], after = expf(c - 5), before = expf(-c);
        const float product = after * before;
        printf("%3d %11.1e %10.1e %8.4f %7.4f\n", positions[i], (double)after, (double)before,
               isnan(product) ? (double)NAN : (double)product, (double)expf((c - 5) - c));
    }
}

static double shown(double x) /* 0 for -0.0 */
{
    return fabs(x) < 1e-12 ? 0 : x;
}

/* What a write with k = (0.6, 0.8), |k| = 1, leaves of an error: 1 - beta of it */
static void print_strengths(void)
{
    const double v = 1;
    printf("[beta]\nbeta  old answer  v  new answer  error\n");
    for (double beta = 0; beta <= 2; beta += 0.5) {
        double S[2] = { 5, 0 }, before, after, u;
        answer(&before, S, K[1], 2, 1);
        correct(S, &u, K[1], &v, beta, 2, 1);
        answer(&after, S, K[1], 2, 1);
        printf("%4.1f %11.1f %2.0f %11.1f %6.1f\n", beta, before, v, shown(after),
               shown(after - v));
        failed |= fabs(after - v - (1 - beta) * (before - v)) > 1e-12;
    }
}

/* v = 0 and beta = 2 change the sign of a state of one number, beta = 0 leaves it. */
static void print_parity(void)
{
    static const int bits[] = { 1, 0, 1, 1, 0, 1, 0, 0 };
    const double k = 1, v = 0;
    double S = 1, u;
    char states[64] = "";
    printf("[parity]\nbits   ");
    for (int i = 0; i < 8; i++) {
        correct(&S, &u, &k, &v, 2 * bits[i], 1, 1);
        printf("%3d", bits[i]);
        sprintf(states + 3 * i, "%3.0f", S);
    }
    printf("\nS      %s\n", states);
}

/* u by forward substitution: u_i = v_i - sum_{j<i} (k_i.k_j) u_j, compared with the recurrence */
static void print_substitution(void)
{
    double S[2] = { 0 }, u[3], by_state;
    printf("[substitution]\n  i      v  k.k_1  k.k_2      u\n");
    for (int i = 0; i < 3; i++) {
        u[i] = V[i];
        for (int j = 0; j < i; j++)
            u[i] -= dot(K[i], K[j], 2) * u[j];
        correct(S, &by_state, K[i], &V[i], 1, 2, 1);
        failed |= fabs(u[i] - by_state) > 1e-12;
        printf("%3d %6.2f", i + 1, V[i]);
        for (int j = 0; j < 2; j++)
            printf(j < i ? " %6.2f" : "      -", dot(K[i], K[j], 2));
        printf(" %6.2f\n", u[i]);
    }
}

int main(void)
{
    print_writes();
    print_decays();
    print_strengths();
    print_parity();
    print_substitution();
    return failed;
}
