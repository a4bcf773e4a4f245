/* Time of the chunked form of causal linear attention against the positions per chunk, by length
 * and size of a head, beside the form that FORM_BEST takes, as in Linear Transformers Are Faster
 * (Buckman and Gelada 2024): TEXT.csv, drawn in TEXT.svg. */
#include "bench/figure.h"
#include "bench/forms.h"
#include "ops/cpu/attention/linear/tuned.h"

#include <stdlib.h>

enum { HEADS = 8, MIN_CHUNK = 4, MAX_CHUNK = 256, LENGTH_STEP = 4 };
static const int head_dims[] = { 32, 64, 128 };
enum { PANELS = sizeof head_dims / sizeof *head_dims };

/* A row per chunk; the chunk 0 stands for FORM_BEST. */
static void measure(const BenchOptions *options, int head_dim, int64_t length, FILE *table)
{
    printf("%4d %6lld", head_dim, (long long)length);
    for (int chunk = 0; chunk <= MAX_CHUNK && chunk <= length;
         chunk = chunk ? 2 * chunk : MIN_CHUNK) {
        const AttentionForm form = chunk ? FORM_CHUNKED : FORM_BEST;
        const double ms = form_time(options, shape(1, length, HEADS, head_dim), form, chunk);
        fprintf(table, "%d,%lld,%d,%.6g,%d,\"%s\"\n", head_dim, (long long)length, chunk, ms,
                chunk == tuned_for(head_dim).chunk, bench_where(options).text);
        printf(" %9.3f", ms);
        fflush(stdout);
    }
    printf("\n");
}

static void measure_all(const BenchOptions *options, int64_t shortest, int64_t longest, FILE *table)
{
    fprintf(table, "head_dim,length,chunk,ms,default,where\n");
    printf("causal linear attention, %d heads, forward and backward, %s, minimum in ms, of the "
           "chunked\nform by positions per chunk\n%4s %6s %9s",
           HEADS, bench_where(options).text, "D", "N", "best form");
    for (int chunk = MIN_CHUNK; chunk <= MAX_CHUNK; chunk *= 2)
        printf(" %9d", chunk);
    printf("\n");
    for (int i = 0; i < PANELS; i++)
        for (int64_t length = shortest; length <= longest; length *= LENGTH_STEP)
            measure(options, head_dims[i], length, table);
}

/* Of each length a curve over its chunks, a dashed line at the best form, a circle at the default
 * chunk. */
static void draw(const char *path, const char *output, const char *program)
{
    FILE *gnuplot = figure_gnuplot(output, program, path, "csv", 1180, 480);
    if (!gnuplot)
        return;
    fprintf(gnuplot,
            "set datafile separator ','\ntable = '<cat -- \"$TABLE\"'\n"
            "lengths = system(\"awk -F, 'NR > 1 && NF > 5 && !seen[$2]++ { print $2 }' "
            "<\\\"$TABLE\\\"\")\n"
            "if (!words(lengths)) { print system('printf %%s \"$TABLE\"').' has no row of this "
            "figure'; "
            "exit status 1 }\n"
            "where = system(\"tail -n 1 <\\\"$TABLE\\\" | cut -d'\\\"' -f2\")\n"
            "colors = '#2166ac #1b7837 #e08214 #b2182b #762a83'\n"
            "color(i) = word(colors, (i - 1) %% words(colors) + 1)\n"
            "per(d, i) = column(1) == d && column(2) == word(lengths, i) + 0\\\n"
            "    ? 1e3 * column(4) / column(2) : NaN\n"
            "stats table using (1e3 * $4 / $2) nooutput\n"
            "set yrange [STATS_min/1.2:STATS_max*1.2]\n"
            "set ytics (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)\n"
            "set logscale x 2\nset logscale y 10\nset xrange [%d/1.3:%d*1.3]\nset xtics 4\n"
            "set xlabel 'positions per chunk'\n"
            "set key at screen 0.84,0.8 left top reverse Left samplen 2 spacing 1.2 font ',13'\n"
            "set multiplot layout 1,%d margins 0.085,0.82,0.17,0.79 spacing 0.04,0\n"
            "set label 1 'Causal linear attention in chunks, %d heads, forward and backward' at "
            "screen 0.44,0.965 center font ',17'\n"
            "set label 2 where at screen 0.44,0.905 center textcolor '#555555'\n"
            "set ylabel 'time per position, microseconds'\n",
            MIN_CHUNK, MAX_CHUNK, PANELS, HEADS);
    for (int panel = 0; panel < PANELS; panel++) {
        const int D = head_dims[panel];
        fprintf(gnuplot,
                "set title 'heads of %d'\n"
                "plot for [i=1:words(lengths)] table using ($3 > 0 ? $3 : NaN):(per(%d, i)) with "
                "linespoints linewidth 2 pointtype 7 pointsize 0.6 linecolor rgb color(i) title "
                "'N = '.word(lengths, i), "
                "for [i=1:words(lengths)] table using ($3 == 0 ? %d : NaN):(per(%d, i)):(%d):(0) "
                "with vectors nohead linewidth 1.5 dashtype 2 linecolor rgb color(i) title "
                "'N = '.word(lengths, i).', best form', "
                "for [i=1:words(lengths)] table using ($5 == 1 ? $3 : NaN):(per(%d, i)) with "
                "points pointtype 6 pointsize 1.6 linewidth 2 linecolor rgb color(i) notitle, "
                "NaN with points pointtype 6 pointsize 1.6 linewidth 2 linecolor '#333333' title "
                "'chunk by default'\n"
                "unset ylabel\nunset label\nunset key\n",
                D, D, MIN_CHUNK, D, MAX_CHUNK - MIN_CHUNK, D);
    }
    fprintf(gnuplot, "unset multiplot\n");
    figure_close(output, gnuplot);
    printf("%s.svg\n", output);
}

int main(int argc, char **argv)
{
    static int64_t shortest = 256, longest = 4096;
    static const char *output = "chunks", *drawn;
    const BenchOption more[] = {
        { "output", "write TEXT.csv and TEXT.svg", NULL, 0, &output },
        { "draw", "no measurement: draw the SVG of --output from this table (TEXT.csv)", NULL, 0,
          &drawn },
        { "shortest", "first length", &shortest, 1, NULL },
        { "longest", "last length; each is 4 times the previous one", &longest, 1, NULL },
        { 0 },
    };
    BenchOptions options = bench_begin_with(
        argc, argv, "causal linear attention in chunks: time against their size", more);
    if (device_is_cuda(options.device)) {
        fprintf(stderr, "--device is %s, expected plain or cpu: on CUDA a chunk has 64 positions\n",
                device_name(options.device));
        return 2;
    }
    if (drawn) {
        draw(drawn, output, argv[0]);
        return EXIT_SUCCESS;
    }
    char path[4096];
    FILE *table = figure_open(output, "csv", path);
    measure_all(&options, shortest, longest, table);
    figure_close_table(table, path);
    draw(path, output, argv[0]);
    bench_end(&options);
    return EXIT_SUCCESS;
}
