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

/* A sound file that is read block by block: any format of libsndfile, the mean of its channels,
 * resampled to RATE from a higher rate. The caller closes it; path must live until then. Returns
 * NULL, and the sentence has the reason, for a file that cannot be read, is truncated, has a lower
 * rate or fewer samples than one window. */
typedef struct WaveFile WaveFile;
WaveFile *wave_open(const char *path, Sentence *sentence);
void wave_close(WaveFile *file);

/* The number of samples of RATE. */
int64_t wave_count(const WaveFile *file);

/* Reads the next samples [count]. Returns their number, which is less than count at the end, or -1,
 * and the sentence has the reason, for a file that is truncated or a sample that is not finite. */
int64_t wave_next(WaveFile *file, Real *samples, int64_t count, Sentence *sentence);

/* Reads a whole file. The caller frees the wave with wave_free. Returns false, and the sentence has
 * the reason, where wave_open or wave_next fail. */
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

/* The same while the sound goes on: by mean and variance of the frames so far. Begins as zeros. */
typedef struct Normalizer {
    int64_t frames;
    double sum[FILTERS], squares[FILTERS];
} Normalizer;

/* Normalizes the next frame [FILTERS], in place:
 *   mean = (n0 m0 + sum x) / (n0 + n)    variance = (n0 (v0 + m0^2) + sum x^2) / (n0 + n) - mean^2
 * over the n frames up to this one, and n0 = 100 before them (1 s) of the mean m0 = -7 and variance
 * v0 = 14 of strings of spoken digits. */
void normalize_next(Normalizer *normalizer, Real *frame);

/* The middle frequency of a filter in Hz. */
double filter_frequency(int filter);

#endif
