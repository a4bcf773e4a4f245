/* Pictures of spectrograms, by gnuplot. */
#ifndef TAPEGRAD_SPEECH_PICTURE_H
#define TAPEGRAD_SPEECH_PICTURE_H

#include "examples/speech/features.h"

/* An interval in seconds, with its text above the spectrogram, row 0 or above it row 1. */
typedef struct Mark {
    double start, end;
    const char *text;
    int row;
} Mark;

/* Draws the log-mel filter banks against time, with marks [count]: a PNG, or an SVG if the path
 * ends with .svg. False after a caution. */
bool picture_draw(const char *path, const FilterBank *bank, const Wave *wave, const Mark *marks,
                  int64_t count);

#endif
