/* Pictures by gnuplot. It reads commands from a file without a name and prints the picture, which
 * replaces the file of --plot once it is whole: no name reaches gnuplot or a shell. */
#ifndef TAPEGRAD_GNUPLOT_H
#define TAPEGRAD_GNUPLOT_H

#include <stdbool.h>
#include <stdio.h>

/* Ends the program, before its work rather than after it, if --plot is given and gnuplot is not
 * installed. NULL is accepted. */
void gnuplot_check(const char *path);

/* A temporary file for gnuplot's commands, which set a terminal, svg or pngcairo, but no output.
 * Ends the program if there can be none. */
FILE *gnuplot_open(void);

/* Closes the file of commands and writes their picture to the path of --plot; on an error a caution
 * says why, the result is false, and an older picture stays. */
bool gnuplot_draw(FILE *commands, const char *path);

/* Prints 'text', as gnuplot quotes it. */
void gnuplot_text(FILE *commands, const char *text);

#endif
