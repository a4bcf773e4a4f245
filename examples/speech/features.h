/* Sound files, and their features: log-mel filter banks, one row of FILTERS values per frame. */
#ifndef TAPEGRAD_SPEECH_FEATURES_H
#define TAPEGRAD_SPEECH_FEATURES_H

#include "examples/shared/sentence.h"

#include <tapegrad.h>

enum {
    RATE = 8000,  /* samples per second */
    WINDOW = 200, /* samples per frame: 25 ms */
    HOP = 80,     /* samples from one frame to the next: 10 ms */
    FILTERS = 40, /* mel filters from 0 to RATE / 2 */
};

/* Mono samples in [-1, 1]. */
typedef struct Wave {
    int64_t count;
    Real *samples;
} Wave;

/* Reads a sound file of RATE in any format of libsndfile, the mean of its channels. The caller
 * frees it with wave_free. Returns false, and the sentence has the reason, for a file that cannot
 * be read, is truncated, has another rate, fewer samples than one window, or a sample that is not
 * finite. */
bool wave_read(const char *path, Wave *wave, Sentence *sentence);
void wave_free(Wave *wave);

/* The tables of the features. Several threads may use one. */
typedef struct FilterBank FilterBank;
FilterBank *filter_bank_new(void);
void filter_bank_free(FilterBank *bank);

/* The number of whole windows in a number of samples. */
int64_t frame_count(int64_t samples);

/* out [frame_count(count), FILTERS] = ln max(1e-10, energy of the filter): the squared magnitudes
 * of an FFT of 256 samples of a periodic Hann window, summed by triangles that are equally spaced
 * in mel, 2595 log10(1 + f / 700), and linear in f. */
void log_mel(const FilterBank *bank, const Real *samples, int64_t count, Real *out);

/* Shifts and scales every filter of an utterance [frames, FILTERS] to mean 0 and variance 1. */
void normalize_frames(Real *frames, int64_t count);

/* The middle frequency of a filter in Hz. */
double filter_frequency(int filter);

#endif
