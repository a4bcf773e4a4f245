/* Pictures by gnuplot, which reads its commands from a pipe. */
#ifndef TAPEGRAD_GNUPLOT_H
#define TAPEGRAD_GNUPLOT_H

#include <stdio.h>

/* Ends the program, before its work rather than after it, if --plot is given and gnuplot is not
 * installed. NULL is accepted. */
void gnuplot_check(const char *path);

/* A pipe to gnuplot, and its end, for the picture of --plot at this path; they end the program on
 * errors. */
FILE *gnuplot_open(const char *path);
void gnuplot_close(FILE *gnuplot, const char *path);

/* Prints 'text', as gnuplot quotes it. */
void gnuplot_text(FILE *gnuplot, const char *text);

#endif
