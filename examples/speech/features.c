#include "examples/speech/features.h"
#include "examples/shared/program.h"

#include <complex.h> /* before fftw3.h, whose complex numbers then are C's */
#include <fftw3.h>
#include <math.h>
#include <samplerate.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---------------------------------------------------------------------------------- sound files */

static int64_t little_endian(const uint8_t bytes[4])
{
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (int64_t)bytes[3] << 24;
}

/* The end of a WAV file's samples by the header of their chunk; 0: it states none, since the writer
 * to a pipe does not know it and states 0xffffffff or a size near 2^31, or the file has another
 * format. */
static int64_t stated_end(FILE *file)
{
    enum { CHUNK = 8, RIFF = 12, UNKNOWN = 0x7ffff000 };
    uint8_t header[RIFF];
    if (fread(header, 1, RIFF, file) != RIFF || memcmp(header, "RIFF", 4))
        return 0;
    while (fread(header, 1, CHUNK, file) == CHUNK) {
        const int64_t size = little_endian(header + 4);
        if (!memcmp(header, "data", 4))
            return size < UNKNOWN ? ftell(file) + size : 0;
        if (fseek(file, size + size % 2, SEEK_CUR))
            return 0;
    }
    return 0;
}

/* libsndfile reads a WAV file that was truncated without an error. */
static bool is_truncated(const char *path)
{
    FILE *file = fopen(path, "rb");
    const int64_t end = file ? stated_end(file) : 0;
    const bool truncated = file && fseek(file, 0, SEEK_END) == 0 && ftell(file) < end;
    if (file)
        fclose(file);
    return truncated;
}

enum { HIGHEST_RATE = 768000 };

static bool check_format(const char *path, const SF_INFO *info, Sentence *sentence)
{
    const int64_t rate = info->samplerate, least = (WINDOW * rate + RATE - 1) / RATE;
    if (rate < RATE || rate > HIGHEST_RATE)
        return sentence_write(sentence, "%s: %lld samples per second, expected %d to %d", path,
                              (long long)rate, RATE, HIGHEST_RATE);
    if (is_truncated(path))
        return sentence_write(sentence, "%s: truncated: shorter than its header states", path);
    if (info->frames < least)
        return sentence_write(sentence, "%s: %lld samples, expected at least %lld", path,
                              (long long)info->frames, (long long)least);
    if (info->frames > rate * 3600)
        return sentence_write(sentence, "%s: %lld samples, expected at most an hour", path,
                              (long long)info->frames);
    return true;
}

enum { BLOCK = 256 }; /* samples of the file that are read together */

struct WaveFile {
    const char *path;
    SNDFILE *file;
    SF_INFO info;
    float *channels;        /* [BLOCK, channels] */
    float mixed[BLOCK];     /* their mean */
    SRC_STATE *resampler;   /* NULL: the file has RATE */
    int64_t done, returned; /* samples of the file, and of RATE */
    Sentence sentence;      /* of a failure, or "" */
};

/* Reads the next samples of the file, their mean into mixed; returns their number, 0 at the end and
 * after a failure. */
static int64_t read_block(WaveFile *file, int64_t count)
{
    const int channels = file->info.channels;
    const int64_t n = sf_readf_float(file->file, file->channels, count < BLOCK ? count : BLOCK);
    if (n == 0 && file->done < file->info.frames)
        sentence_write(&file->sentence, "%s: truncated: shorter than its header states",
                       file->path);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int c = 0; c < channels; c++)
            sum += (double)file->channels[i * channels + c];
        if (!isfinite(sum)) {
            sentence_write(&file->sentence, "%s: sample %lld is %g", file->path,
                           (long long)(file->done + i), sum);
            return 0;
        }
        file->mixed[i] = (float)(sum / channels);
    }
    file->done += n;
    return n;
}

/* The resampler's source. */
static long next_block(void *context, float **samples)
{
    WaveFile *file = context;
    *samples = file->mixed;
    return (long)read_block(file, BLOCK);
}

WaveFile *wave_open(const char *path, Sentence *sentence)
{
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) { /* opening a FIFO would block */
        sentence_write(sentence, "%s: not a regular file", path);
        return NULL;
    }
    WaveFile *file = allocate(1, sizeof *file);
    file->path = path;
    file->file = sf_open(path, SFM_READ, &file->info);
    if (!file->file)
        sentence_write(sentence, "%s: %s", path, sf_strerror(NULL));
    if (!file->file || !check_format(path, &file->info, sentence)) {
        wave_close(file);
        return NULL;
    }
    file->channels = allocate(BLOCK * file->info.channels, sizeof *file->channels);
    if (file->info.samplerate != RATE) {
        int error;
        file->resampler = src_callback_new(next_block, SRC_SINC_MEDIUM_QUALITY, 1, &error, file);
        if (!file->resampler)
            fail(EXIT_FAILURE, "%s: %s", path, src_strerror(error));
    }
    return file;
}

void wave_close(WaveFile *file)
{
    if (file->file)
        sf_close(file->file);
    src_delete(file->resampler);
    free(file->channels);
    free(file);
}

int64_t wave_count(const WaveFile *file)
{
    return file->info.frames * RATE / file->info.samplerate;
}

/* Up to count samples; 0 at the end. */
static int64_t read_some(WaveFile *file, Real *samples, int64_t count)
{
    const double ratio = (double)RATE / file->info.samplerate;
    float resampled[BLOCK];
    count = count < BLOCK ? count : BLOCK;
    const int64_t n = file->resampler
                          ? src_callback_read(file->resampler, ratio, (long)count, resampled)
                          : read_block(file, count);
    for (int64_t i = 0; i < n; i++)
        samples[i] = (Real)(file->resampler ? resampled[i] : file->mixed[i]);
    return n;
}

int64_t wave_next(WaveFile *file, Real *samples, int64_t count, Sentence *sentence)
{
    const int64_t left = wave_count(file) - file->returned;
    count = count < left ? count : left;
    for (int64_t done = 0, n; done < count; done += n) {
        n = read_some(file, samples + done, count - done);
        if (*file->sentence.text) {
            *sentence = file->sentence;
            return -1;
        }
        if (n <= 0) { /* the resampler may end a sample early */
            memset(samples + done, 0, (size_t)(count - done) * sizeof *samples);
            break;
        }
    }
    file->returned += count;
    return count;
}

bool wave_read(const char *path, Wave *wave, Sentence *sentence)
{
    *wave = (Wave){ 0 };
    WaveFile *file = wave_open(path, sentence);
    if (!file)
        return false;
    *wave = (Wave){ wave_count(file), allocate(wave_count(file), sizeof(Real)) };
    const bool ok = wave_next(file, wave->samples, wave->count, sentence) == wave->count;
    wave_close(file);
    if (!ok)
        wave_free(wave);
    return ok;
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

void normalize_next(Normalizer *normalizer, Real *frame)
{
    static const double n0 = 100, m0 = -7, v0 = 14;
    const double n = n0 + (double)++normalizer->frames;
    for (int filter = 0; filter < FILTERS; filter++) {
        const double x = (double)frame[filter];
        normalizer->sum[filter] += x;
        normalizer->squares[filter] += x * x;
        const double mean = (n0 * m0 + normalizer->sum[filter]) / n;
        const double square = (n0 * (v0 + m0 * m0) + normalizer->squares[filter]) / n;
        frame[filter] = (Real)((x - mean) / sqrt(square - mean * mean));
    }
}
