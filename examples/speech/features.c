#include "examples/speech/features.h"
#include "examples/shared/program.h"

#include <complex.h> /* before fftw3.h, whose complex numbers then are C's */
#include <fftw3.h>
#include <math.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- sound files */

/* libsndfile reads a WAV file that was cut off without an error; its RIFF header has the size. */
static bool whole_riff(const char *path)
{
    unsigned char header[8] = { 0 };
    FILE *file = fopen(path, "rb");
    if (!file || fread(header, 1, 8, file) != 8 || memcmp(header, "RIFF", 4)) {
        if (file)
            fclose(file);
        return true; /* another format, for libsndfile to judge */
    }
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    fclose(file);
    const uint32_t riff = (uint32_t)header[4] | (uint32_t)header[5] << 8 |
                          (uint32_t)header[6] << 16 | (uint32_t)header[7] << 24;
    return size >= 8 + (long)riff;
}

static bool check_format(const char *path, const SF_INFO *info, Sentence *sentence)
{
    if (info->samplerate != RATE)
        return sentence_write(sentence,
                              "%s: %d samples per second, expected %d; sox can convert it", path,
                              info->samplerate, RATE);
    if (!whole_riff(path))
        return sentence_write(sentence, "%s: truncated: shorter than its header states", path);
    if (info->frames < WINDOW)
        return sentence_write(sentence, "%s: %lld samples, expected at least %d", path,
                              (long long)info->frames, WINDOW);
    if (info->frames > (int64_t)RATE * 3600)
        return sentence_write(sentence, "%s: %lld samples, expected at most an hour", path,
                              (long long)info->frames);
    return true;
}

/* The mean of the channels [count, channels]. */
static bool mix(const char *path, const double *channels, int count, Wave *wave, Sentence *sentence)
{
    for (int64_t i = 0; i < wave->count; i++) {
        double sum = 0;
        for (int c = 0; c < count; c++)
            sum += channels[i * count + c];
        if (!isfinite(sum))
            return sentence_write(sentence, "%s: sample %lld is %g", path, (long long)i, sum);
        wave->samples[i] = (Real)(sum / count);
    }
    return true;
}

bool wave_read(const char *path, Wave *wave, Sentence *sentence)
{
    SF_INFO info = { 0 };
    *wave = (Wave){ 0 };
    SNDFILE *file = sf_open(path, SFM_READ, &info);
    if (!file)
        return sentence_write(sentence, "%s: %s", path, sf_strerror(NULL));
    bool good = check_format(path, &info, sentence);
    if (good) {
        double *channels = allocate(info.frames * info.channels, sizeof *channels);
        *wave = (Wave){ info.frames, allocate(info.frames, sizeof(Real)) };
        if (sf_readf_double(file, channels, info.frames) != info.frames)
            good = sentence_write(sentence, "%s: truncated: shorter than its header states", path);
        good = good && mix(path, channels, info.channels, wave, sentence);
        free(channels);
    }
    sf_close(file);
    if (!good)
        wave_free(wave);
    return good;
}

void wave_free(Wave *wave)
{
    free(wave->samples);
    *wave = (Wave){ 0 };
}

/* ------------------------------------------------------------------------------------- features */

enum { FFT = 256, BINS = FFT / 2 + 1 };

struct FilterBank {
    fftw_plan plan;
    double window[WINDOW];
    double weights[FILTERS][BINS];
    int start[FILTERS], end[FILTERS]; /* the bins of nonzero weight */
};

/* The frequency of point i of FILTERS + 2, equally spaced in mel from 0 to RATE / 2: a filter rises
 * from point i to i + 1 and falls to i + 2. */
static double point_frequency(int i)
{
    const double highest = 2595 * log10(1 + RATE / 2 / 700.);
    return 700 * (pow(10, highest * i / (FILTERS + 1) / 2595) - 1);
}

double filter_frequency(int filter)
{
    return point_frequency(filter + 1);
}

static void set_filter(FilterBank *bank, int filter)
{
    const double low = point_frequency(filter), middle = point_frequency(filter + 1),
                 high = point_frequency(filter + 2);
    for (int k = 0; k < BINS; k++) {
        const double f = (double)k * RATE / FFT;
        const double weight =
            fmax(0, fmin((f - low) / (middle - low), (high - f) / (high - middle)));
        bank->weights[filter][k] = weight;
        if (weight > 0) {
            bank->start[filter] = bank->end[filter] ? bank->start[filter] : k;
            bank->end[filter] = k + 1;
        }
    }
}

FilterBank *filter_bank_new(void)
{
    FilterBank *bank = allocate(1, sizeof *bank);
    double in[FFT];
    fftw_complex out[BINS];
    /* FFTW_ESTIMATE measures nothing: two runs compute the same. */
    bank->plan = fftw_plan_dft_r2c_1d(FFT, in, out, FFTW_ESTIMATE | FFTW_UNALIGNED);
    for (int i = 0; i < WINDOW; i++)
        bank->window[i] = 0.5 - 0.5 * cos(2 * M_PI * i / WINDOW);
    for (int filter = 0; filter < FILTERS; filter++)
        set_filter(bank, filter);
    return bank;
}

void filter_bank_free(FilterBank *bank)
{
    if (bank) {
        fftw_destroy_plan(bank->plan);
        fftw_cleanup();
    }
    free(bank);
}

int64_t frame_count(int64_t samples)
{
    return samples < WINDOW ? 0 : 1 + (samples - WINDOW) / HOP;
}

void log_mel(const FilterBank *bank, const Real *samples, int64_t count, Real *out)
{
    for (int64_t t = 0; t < frame_count(count); t++) {
        double in[FFT] = { 0 }, power[BINS];
        fftw_complex spectrum[BINS];
        for (int i = 0; i < WINDOW; i++)
            in[i] = bank->window[i] * (double)samples[t * HOP + i];
        fftw_execute_dft_r2c(bank->plan, in, spectrum);
        for (int k = 0; k < BINS; k++)
            power[k] =
                creal(spectrum[k]) * creal(spectrum[k]) + cimag(spectrum[k]) * cimag(spectrum[k]);
        for (int filter = 0; filter < FILTERS; filter++) {
            double energy = 0;
            for (int k = bank->start[filter]; k < bank->end[filter]; k++)
                energy += bank->weights[filter][k] * power[k];
            out[t * FILTERS + filter] = (Real)log(fmax(energy, 1e-10));
        }
    }
}

void normalize_frames(Real *frames, int64_t count)
{
    for (int filter = 0; filter < FILTERS; filter++) {
        double mean = 0, variance = 0;
        for (int64_t t = 0; t < count; t++)
            mean += (double)frames[t * FILTERS + filter] / (double)count;
        for (int64_t t = 0; t < count; t++)
            variance += pow((double)frames[t * FILTERS + filter] - mean, 2) / (double)count;
        for (int64_t t = 0; t < count; t++) {
            Real *x = &frames[t * FILTERS + filter];
            *x = (Real)(((double)*x - mean) / sqrt(variance + 1e-8)); /* silence has variance 0 */
        }
    }
}
