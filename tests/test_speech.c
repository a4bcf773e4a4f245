/* examples/speech: its features and data, and the program run as a user runs it, on recordings that
 * the test writes. */
#include "examples/speech/stream.h"
#include "tests/programs.h"

#include <math.h>
#include <sndfile.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A model so small that a step takes milliseconds. */
#define TINY                                                                                       \
    "speech train --data @ --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --context 1 "       \
    "--lookahead 1 --batch 4 --dropout 0 --threads 2 --device cpu --strings 6 "

/* ---------------------------------------------------------------------------------- sound files */

typedef struct Sound {
    int format, rate, channels;
} Sound;
static const Sound plain = { SF_FORMAT_PCM_16, RATE, 1 };

/* Writes samples [count] to every channel. */
static void write_sound(const char *name, Sound sound, const double *samples, int64_t count)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    SF_INFO info = { .samplerate = sound.rate,
                     .channels = sound.channels,
                     .format = SF_FORMAT_WAV | sound.format };
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    ck_assert_msg(file != NULL, "%s: %s", path, sf_strerror(NULL));
    for (int64_t i = 0; i < count; i++) {
        double frame[2] = { samples[i], samples[i] };
        ck_assert_int_eq(sf_writef_double(file, frame, 1), 1);
    }
    sf_close(file);
}

enum { TONE = 640 }; /* samples per phoneme */

/* A recording in which every phoneme is a tone; index: a phase. */
static int64_t say(int digit, int index, double *samples)
{
    int32_t phonemes[MAX_PHONEMES];
    const int64_t count = digit_phonemes(digit, phonemes) * TONE;
    for (int64_t i = 0; i < count; i++) {
        const double frequency = 195 + 183 * phonemes[i / TONE];
        samples[i] = 0.5 * sin(index + 2 * M_PI * frequency * (double)i / RATE);
    }
    return count;
}

static void write_recordings(void)
{
    static const int indices[] = { 0, 5, 6, 45 };
    char name[128];
    double samples[MAX_PHONEMES * TONE];
    snprintf(name, sizeof name, "%s/recordings", directory);
    if (mkdir(name, 0700) != 0)
        return; /* an earlier test has written them */
    for (int speaker = 'a'; speaker <= 'c'; speaker++) {
        for (int digit = 0; digit < DIGITS; digit++) {
            for (int i = 0; i < 4; i++) {
                snprintf(name, sizeof name, "recordings/%d_%c_%d.wav", digit, speaker, indices[i]);
                write_sound(name, plain, samples, say(digit, indices[i], samples));
            }
        }
    }
}

static bool reads(const char *name, Wave *wave, Sentence *sentence)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return wave_read(path, wave, sentence);
}

TEST(samples_are_read_from_every_format)
{
    static const struct {
        Sound sound;
        double tolerance;
    } cases[] = {
        { { SF_FORMAT_PCM_16, RATE, 1 }, 6e-5 },
        { { SF_FORMAT_PCM_24, RATE, 1 }, 3e-7 },
        { { SF_FORMAT_FLOAT, RATE, 1 }, 1e-7 },
        { { SF_FORMAT_PCM_24, RATE, 2 }, 3e-7 },
    };
    double samples[300];
    for (int i = 0; i < 300; i++)
        samples[i] = 0.9 * sin(i);
    for (int c = 0; c < 4; c++) {
        Wave wave;
        Sentence sentence;
        write_sound("some.wav", cases[c].sound, samples, 300);
        ck_assert_msg(reads("some.wav", &wave, &sentence), "%s", sentence.text);
        ck_assert_int_eq(wave.count, 300);
        for (int i = 0; i < 300; i++)
            ck_assert_double_eq_tol((double)wave.samples[i], samples[i], cases[c].tolerance);
        wave_free(&wave);
    }
}

/* The channels differ, so that only their mean has the right samples. */
TEST(channels_are_averaged)
{
    char path[160];
    snprintf(path, sizeof path, "%s/stereo.wav", directory);
    SF_INFO info = { .samplerate = RATE, .channels = 2, .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT };
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    double frames[2 * WINDOW];
    for (int i = 0; i < WINDOW; i++) {
        frames[2 * i] = 0.5;
        frames[2 * i + 1] = i / 1000.;
    }
    ck_assert_int_eq(sf_writef_double(file, frames, WINDOW), WINDOW);
    sf_close(file);
    Wave wave;
    Sentence sentence;
    ck_assert(reads("stereo.wav", &wave, &sentence));
    for (int i = 0; i < WINDOW; i++)
        ck_assert_double_eq_tol((double)wave.samples[i], 0.25 + i / 2000., 1e-7);
    wave_free(&wave);
}

static void assert_refused(const char *name, const char *expected)
{
    Wave wave;
    Sentence sentence;
    ck_assert(!reads(name, &wave, &sentence));
    ck_assert_ptr_null(wave.samples);
    ck_assert_msg(strstr(sentence.text, expected), "%s", sentence.text);
}

TEST(bad_sound_files_are_refused)
{
    double samples[1000] = { 0 };
    char path[160];
    write_sound("rate.wav", (Sound){ SF_FORMAT_PCM_16, 7999, 1 }, samples, 1000);
    assert_refused("rate.wav", "rate.wav: 7999 samples per second, expected 8000 to 768000");
    write_sound("short.wav", (Sound){ SF_FORMAT_PCM_16, 44100, 1 }, samples, 1000);
    assert_refused("short.wav", "short.wav: 1000 samples, expected at least 1103");
    write_sound("short.wav", plain, samples, WINDOW - 1);
    assert_refused("short.wav", "short.wav: 199 samples, expected at least 200");
    write_sound("empty.wav", plain, samples, 0);
    assert_refused("empty.wav", "empty.wav: 0 samples, expected at least 200");
    write_sound("cut.wav", plain, samples, 1000);
    snprintf(path, sizeof path, "%s/cut.wav", directory);
    ck_assert_int_eq(truncate(path, 1500), 0);
    assert_refused("cut.wav", "cut.wav: truncated: shorter than its header states");
    for (int size = 0; size < 44; size += 11) {
        ck_assert_int_eq(truncate(path, size), 0);
        assert_refused("cut.wav", "cut.wav: ");
    }
    samples[3] = NAN;
    write_sound("nan.wav", (Sound){ SF_FORMAT_FLOAT, RATE, 1 }, samples, 1000);
    assert_refused("nan.wav", "nan.wav: sample 3 is ");
    assert_refused("missing.wav", "missing.wav: ");
    assert_refused("", "/: ");
}

/* The header of a file of `samples` samples, 44 bytes, then states these sizes of all and of the
 * samples. */
static void write_sizes(const char *name, int samples, uint32_t riff, uint32_t data)
{
    const double zeros[1000] = { 0 };
    char path[160];
    write_sound(name, plain, zeros, samples);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(fseek(file, i < 4 ? 4 + i : 36 + i, SEEK_SET), 0);
        fputc((int)((i < 4 ? riff : data) >> 8 * (i % 4) & 255), file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

/* A pipe's header states no size: ffmpeg's and sox's. Some writers state a wrong one of all. */
TEST(samples_count_not_the_size_of_the_file)
{
    static const struct {
        uint32_t riff, data;
        bool ok;
    } cases[] = {
        { 0xffffffff, 0xffffffff, true },
        { 0x7ffff024, 0x7ffff000, true },
        { 2036 + 8, 2000, true },
        { 2036 + 1, 2000, true },
        { 2036, 2002, false },
        { 0xffffffff, 0x7fffefff, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Wave wave;
        Sentence sentence = { "" };
        write_sizes("sizes.wav", 1000, cases[i].riff, cases[i].data);
        ck_assert_msg(reads("sizes.wav", &wave, &sentence) == cases[i].ok, "%zu: %s", i,
                      sentence.text);
        ck_assert_int_eq(wave.count, cases[i].ok ? 1000 : 0);
        wave_free(&wave);
    }
}

/* A tone of all rates is the same tone after resampling, and so are its features. */
TEST(files_of_higher_rates_are_resampled)
{
    enum { SECONDS = 1, MAX_SAMPLES = 48000 };
    static const int rates[] = { RATE, 16000, 44100, 48000 };
    double *samples = malloc(MAX_SAMPLES * sizeof *samples);
    Real *frames[4];
    FilterBank *bank = filter_bank_new();
    for (int r = 0; r < 4; r++) {
        Wave wave;
        Sentence sentence;
        for (int i = 0; i < rates[r] * SECONDS; i++) {
            const double t = (double)i / rates[r];
            samples[i] = 0.3 * sin(2 * M_PI * 440 * t) + 0.2 * sin(2 * M_PI * 2500 * t) +
                         (rates[r] > RATE ? 0.4 * sin(2 * M_PI * 6000 * t) : 0); /* to be removed */
        }
        write_sound("tone.wav", (Sound){ SF_FORMAT_FLOAT, rates[r], 2 }, samples, rates[r]);
        ck_assert_msg(reads("tone.wav", &wave, &sentence), "%s", sentence.text);
        ck_assert_int_eq(wave.count, RATE * SECONDS);
        for (int i = 100; i < RATE - 100; i++) {
            const double t = (double)i / RATE;
            ck_assert_double_eq_tol((double)wave.samples[i],
                                    0.3 * sin(2 * M_PI * 440 * t) + 0.2 * sin(2 * M_PI * 2500 * t),
                                    r == 0 ? 1e-7 : 2e-3);
        }
        frames[r] = malloc((size_t)frame_count(wave.count) * FILTERS * sizeof(Real));
        log_mel(bank, wave.samples, wave.count, frames[r]);
        wave_free(&wave);
        for (int t = 2; t < frame_count(RATE) - 2; t++) /* an end of the tone has all frequencies */
            for (int f = 0; f < FILTERS; f++) {
                const double energy = exp((double)frames[r][t * FILTERS + f]);
                ck_assert_double_eq_tol(energy, exp((double)frames[0][t * FILTERS + f]), 0.05);
            }
    }
    for (int r = 0; r < 4; r++)
        free(frames[r]);
    filter_bank_free(bank);
    free(samples);
}

/* Blocks of any size give the samples of the whole file. */
TEST(blocks_are_the_whole_file)
{
    double samples[3001];
    for (int i = 0; i < 3001; i++)
        samples[i] = 0.9 * sin(i * i);
    for (int rate = RATE; rate <= 11025; rate += 3025) {
        char path[160];
        Wave wave;
        Sentence sentence;
        Real block[301];
        write_sound("some.wav", (Sound){ SF_FORMAT_FLOAT, rate, 1 }, samples, 3001);
        ck_assert(reads("some.wav", &wave, &sentence));
        ck_assert_int_eq(wave.count, 3001 * RATE / rate);
        snprintf(path, sizeof path, "%s/some.wav", directory);
        WaveFile *file = wave_open(path, &sentence);
        ck_assert_int_eq(wave_count(file), wave.count);
        int64_t done = 0;
        for (int64_t n, size = 1; (n = wave_next(file, block, size, &sentence)) > 0; size = 301) {
            ck_assert_int_eq(n, size < wave.count - done ? size : wave.count - done);
            for (int64_t i = 0; i < n; i++)
                ck_assert(block[i] == wave.samples[done + i]);
            done += n;
        }
        ck_assert_int_eq(done, wave.count);
        wave_close(file);
        wave_free(&wave);
    }
}

/* ------------------------------------------------------------------------------------- features */

TEST(features_equal_the_reference)
{
    enum { SAMPLES = 4000, FRAMES = 48 };
    TensorFile *file = test_vector_file("log_mel.safetensors");
    const Real *wave = test_entry(file, "", "wave", NULL);
    Real out[FRAMES * FILTERS];
    ck_assert_int_eq(frame_count(SAMPLES), FRAMES);
    ck_assert_int_eq(frame_count(WINDOW - 1), 0);
    ck_assert_int_eq(frame_count(WINDOW), 1);
    FilterBank *bank = filter_bank_new();
    log_mel(bank, wave, SAMPLES, out);
    assert_close(out, test_entry(file, "", "out", NULL), FRAMES * FILTERS,
                 sizeof(Real) == 8 ? 1e-12 : 1e-6);
    filter_bank_free(bank);
    tensor_file_close(file);
}

TEST(normalized_filters_have_mean_0_and_variance_1)
{
    enum { FRAMES = 50 };
    Real *frames = test_normal(1, FRAMES * FILTERS);
    for (int t = 0; t < FRAMES; t++)
        frames[t * FILTERS + 7] = -23; /* silence */
    for (int i = 0; i < FRAMES * FILTERS; i++)
        frames[i] = 3 * frames[i] + (Real)(i % FILTERS);
    normalize_frames(frames, FRAMES);
    for (int filter = 0; filter < FILTERS; filter++) {
        double sum = 0, squares = 0;
        for (int t = 0; t < FRAMES; t++) {
            sum += (double)frames[t * FILTERS + filter];
            squares += pow((double)frames[t * FILTERS + filter], 2);
        }
        ck_assert_double_eq_tol(sum / FRAMES, 0, 1e-3);
        ck_assert_double_eq_tol(squares / FRAMES, filter == 7 ? 0 : 1, 1e-5);
    }
}

/* After n frames: mean and variance of these and of 100 frames before. */
TEST(running_normalization_is_that_of_the_past)
{
    enum { FRAMES = 300, F = 5 };
    const Real *frames = test_normal(1, FRAMES * FILTERS);
    Normalizer normalizer = { 0 };
    double sum = 100 * -7., squares = 100 * (14 + 49.);
    for (int t = 0; t < FRAMES; t++) {
        Real frame[FILTERS];
        memcpy(frame, frames + t * FILTERS, sizeof frame);
        const double x = (double)frame[F];
        sum += x;
        squares += x * x;
        const double n = 101 + t, mean = sum / n, variance = squares / n - mean * mean;
        normalize_next(&normalizer, frame);
        ck_assert_double_eq_tol((double)frame[F], (x - mean) / sqrt(variance), 1e-6);
    }
}

/* ------------------------------------------------------------------------------------ streaming */

enum { SOUND = 6037, FRAMES = 73 };

static SpeechOptions options_of(const char *model, const char *attention, const char *causal)
{
    return (SpeechOptions){ .common = { .layers = 2,
                                        .heads = 2,
                                        .head_dim = 4,
                                        .feed_forward = 8,
                                        .attention = attention,
                                        .features = "elu+1" },
                            .model = model,
                            .causal = causal,
                            .hidden = 6,
                            .rounds = 1,
                            .stride = 3,
                            .context = 4,
                            .lookahead = 2 };
}

static Utterance noise(void)
{
    Utterance utterance = { .wave = { SOUND, test_zeros(SOUND) } };
    Random random = random_new(1, 1);
    random_normal(&random, utterance.wave.samples, SOUND);
    return utterance;
}

/* Position p has the frames from stride p - context on; beyond the ends, the end frames. */
TEST(inputs_contain_context_and_lookahead)
{
    Utterance utterance = noise();
    FilterBank *bank = filter_bank_new();
    Real frames[FRAMES * FILTERS];
    for (int stride = 1; stride <= 4; stride++)
        for (int causal = 0; causal < 2; causal++) {
            SpeechOptions options = options_of("transformer", "linear", causal ? "yes" : "no");
            options.stride = stride;
            ck_assert_int_eq(frame_count(SOUND), FRAMES);
            log_mel(bank, utterance.wave.samples, SOUND, frames);
            Normalizer normalizer = { 0 };
            for (int t = 0; causal && t < FRAMES; t++)
                normalize_next(&normalizer, frames + t * FILTERS);
            if (!causal)
                normalize_frames(frames, FRAMES);
            Batch batch = batch_new(&options, bank, &utterance, 1);
            ck_assert_int_eq(batch.positions, (FRAMES + stride - 1) / stride);
            const int stacked = stride + 6;
            ck_assert_int_eq(batch.columns, stacked * FILTERS);
            for (int i = 0; i < batch.positions * stacked; i++) {
                int t = i / stacked * stride - 4 + i % stacked;
                t = t < 0 ? 0 : t < FRAMES ? t : FRAMES - 1;
                ck_assert_mem_eq(batch.inputs + i * FILTERS, frames + t * FILTERS,
                                 FILTERS * sizeof(Real));
            }
            batch_free(&batch);
        }
    filter_bank_free(bank);
}

/* Streamed inputs are the batch's, and the logits those of the forward pass of all positions. */
static void check_stream(const char *model, const char *attention)
{
    const SpeechOptions options = options_of(model, attention, "yes");
    Utterance utterance = noise();
    Params *params = params_new(test_device(), 1);
    Recognizer recognizer = { .options = &options,
                              .params = params,
                              .tape = tape_new(test_device()),
                              .bank = filter_bank_new(),
                              .model = model_new(params, &options, FRAMES) };
    tape_set_recording(recognizer.tape, false);
    tape_set_training(recognizer.tape, false);
    Batch batch = batch_new(&options, recognizer.bank, &utterance, 1);
    Tensor *lengths;
    Real *logits = test_values(model_forward(recognizer.tape, &recognizer.model, &batch, &lengths));
    tape_reset(recognizer.tape);
    Stream stream = stream_new(&recognizer, batch.positions);
    int64_t position = 0;
    for (int64_t i = 0; i < SOUND || position < batch.positions; i += HOP) {
        const int64_t left = SOUND - i;
        if (left > 0 ? !stream_next(&stream, utterance.wave.samples + i, left < HOP ? left : HOP)
                     : !stream_end(&stream))
            continue;
        ck_assert_mem_eq(stream.inputs.values, batch.inputs + position * batch.columns,
                         (size_t)batch.columns * sizeof(Real));
        assert_close(stream.logits, logits + position * SYMBOLS, SYMBOLS, 1e-4);
        position++;
    }
    ck_assert(!stream_end(&stream));
    ck_assert_int_eq(position, batch.positions);
    stream_free(&stream);
    batch_free(&batch);
    tape_free(recognizer.tape);
    params_free(params);
    filter_bank_free(recognizer.bank);
}

TEST(streamed_logits_are_the_forward_pass)
{
    check_stream("transformer", "linear");
    check_stream("transformer", "softmax");
    check_stream("lstm", "linear");
}

/* ----------------------------------------------------------------------------------------- data */

TEST(digits_follow_from_phonemes_with_errors)
{
    int32_t phonemes[DIGITS * MAX_PHONEMES], digits[DIGITS * MAX_PHONEMES];
    int64_t ends[DIGITS * MAX_PHONEMES], n = 0, removed = 0;
    for (int digit = 0; digit < DIGITS; digit++)
        n += digit_phonemes(digit, phonemes + n);
    for (int errors = 0; errors < 2; errors++) {
        ck_assert_int_eq(digits_of_phonemes(phonemes, n, digits, ends), DIGITS);
        for (int digit = 0; digit < DIGITS; digit++)
            ck_assert_int_eq(digits[digit], digit);
        ck_assert_int_eq(ends[0], 4);
        ck_assert_int_eq(ends[7], 27 - removed);
        ck_assert_int_eq(ends[DIGITS - 1], n);
        phonemes[10] = phonemes[11]; /* the R of three */
        removed = 1;                 /* the second phoneme of seven */
        memmove(phonemes + 23, phonemes + 24, (size_t)(n-- - 24) * sizeof *phonemes);
    }
    ck_assert_int_eq(digits_of_phonemes(phonemes, 0, digits, ends), 0);
}

static void check_part(const Corpus *corpus, Part part, int speakers, int recordings)
{
    bool heard[3] = { 0 };
    int count = 0;
    for (int64_t i = 0; i < corpus->part_count[part]; i++)
        heard[corpus->recordings[corpus->part[part][i]].speaker] = true;
    for (int speaker = 0; speaker < 3; speaker++)
        count += heard[speaker];
    ck_assert_int_eq(count, speakers);
    ck_assert_int_eq(corpus->part_count[part], recordings);
}

static const Given none = { .command = &speech_train_command }; /* no options */

TEST(parts_are_apart)
{
    Corpus corpus = corpus_read(&none, directory, false);
    check_part(&corpus, PART_TRAINING, 3, 60);
    check_part(&corpus, PART_VALIDATION, 3, 30);
    check_part(&corpus, PART_TEST, 3, 30);
    corpus_free(&corpus);
    corpus = corpus_read(&none, directory, true);
    check_part(&corpus, PART_TRAINING, 1, 30);
    check_part(&corpus, PART_VALIDATION, 1, 10);
    check_part(&corpus, PART_TEST, 2, 80);
    corpus_free(&corpus);
}

/* Silence and noise between the tones have other signs than they: the power shows the digits. */
TEST(strings_have_their_digits_and_phonemes)
{
    Corpus corpus = corpus_read(&none, directory, false);
    Random random = random_new(1, 1);
    for (int i = 0; i < 100; i++) {
        Utterance utterance = utterance_draw(&corpus, PART_TRAINING, 1 + i % MAX_DIGITS, &random);
        ck_assert_int_eq(utterance.digits, 1 + i % MAX_DIGITS);
        ck_assert(utterance.wave.count <= string_samples(&corpus, utterance.digits));
        int64_t n = 0, loud = 0;
        for (int64_t d = 0; d < utterance.digits; d++) {
            int32_t expected[MAX_PHONEMES];
            const int64_t count = digit_phonemes(utterance.digit[d], expected);
            for (int64_t j = 0; j < count; j++)
                ck_assert_int_eq(utterance.phoneme[n++], expected[j]);
        }
        ck_assert_int_eq(utterance.phonemes, n);
        for (int64_t j = 0; j < utterance.wave.count; j++)
            loud += fabs((double)utterance.wave.samples[j]) > 0.1;
        ck_assert_double_eq_tol((double)loud / (double)(n * TONE), 0.87, 0.02); /* of a sine */
        const int64_t silence = utterance.wave.count - n * TONE;
        ck_assert(silence >= 0 && silence <= (utterance.digits + 1) * RATE * 3 / 10);
        utterance_free(&utterance);
    }
    corpus_free(&corpus);
}

/* ------------------------------------------------------------------------------------- training */

TEST(final_error_is_that_of_the_last_epoch)
{
    assert_runs(TINY
                "--epochs 1 --learning-rate 0.01 --log @/log.csv"); /* 60 / 7.5 / 4 = 2 steps */
    size_t length;
    double error;
    char *text = contents("log.csv", &length), *last = strstr(text, "\n2,");
    ck_assert_msg(last && sscanf(last, "\n2,%*f,%lf", &error) == 1, "%s", text);
    free(text);
    ck_assert_double_eq_tol(number_after("final validation_error="), error, 1e-4);
    ck_assert_double_eq(number_after(" steps="), 2);
}

/* "3 8 5", after 0.25 s of silence each */
static void write_385(void)
{
    double *samples = calloc(20000, sizeof *samples);
    static const int digits[] = { 3, 8, 5 };
    int64_t count = 0;
    for (int i = 0; i < 3; i++) {
        count += 2000;
        count += say(digits[i], 1, samples + count);
    }
    for (int64_t i = 0; i < 20000; i++)
        samples[i] += 0.01 * sin((double)(i * i)); /* noise */
    write_sound("385.wav", plain, samples, count + 2000);
    free(samples);
}

/* The scored strings have the digits of the checkpoint, or others. */
TEST(strings_have_digits_of_the_options)
{
    assert_runs(TINY "--min-digits 2 --max-digits 2 --epochs 1 --save @/two.safetensors");
    ck_assert_double_eq(number_after(" steps="), 8); /* 60 / 2 / 4 */
    ck_assert(number_after(" peak_mib=") > 0);
    assert_runs("speech evaluate --data @ --load @/two.safetensors --strings 100");
    ck_assert_double_eq(number_after("its digits"), 200);
    assert_runs("speech evaluate --data @ --load @/two.safetensors --strings 100 "
                "--min-digits 3 --max-digits 3");
    ck_assert_double_eq(number_after("its digits"), 300);
}

#define LEARNS                                                                                     \
    TINY "--head-dim 16 --feed-forward 64 --clip 1 --quiet --learning-rate 0.02 --patience 1000 "

/* The model that linear attention learns then evaluates and recognizes. */
TEST(learns_evaluates_and_recognizes)
{
    assert_runs(LEARNS "--steps 200 --save @/learned.safetensors");
    const double validation = number_after("validation_error=");
    ck_assert_msg(validation < 10, "%s", output);
    assert_runs("speech evaluate --load @/learned.safetensors --data @ --strings 20 "
                "--threads 2 --beam 5");
    assert_says("20 strings of the standard split, linear attention, ");
    assert_says("decoding     symbols  substitutions  deletions  insertions    error\ngreedy ");
    assert_says("\nbeam 5 ");
    double symbols, edits[3], error;
    ck_assert_int_eq(sscanf(strstr(output, "\ngreedy ") + 8, "%lf %lf %lf %lf %lf", &symbols,
                            &edits[0], &edits[1], &edits[2], &error),
                     5);
    ck_assert_double_eq_tol(error, 100 * (edits[0] + edits[1] + edits[2]) / symbols, 0.006);
    ck_assert_msg(error < 10, "%s", output);

    write_385();
    assert_runs("speech recognize @/385.wav --load @/learned.safetensors --threads 2 %s",
                draws() ? "--plot @/385.png" : "");
    assert_says("digits   3 8 5\nphonemes TH R IY EY T F AY V\n");
    ck_assert_double_eq_tol(strtod(strstr(output, "  start    end\n") + 15, NULL), 0.25, 0.1);
    if (draws()) {
        size_t length;
        char *picture = contents("385.png", &length);
        ck_assert_mem_eq(picture + 1, "PNG", 3);
        free(picture);
    }
}

TEST(every_model_learns)
{
    static const char *const kinds[] = { "--attention softmax", "--attention lsh --rounds 2" };
    for (int i = 0; i < 2; i++) {
        assert_runs(LEARNS "--steps %d %s", SLOW ? 3 : 150, kinds[i]);
        ck_assert_msg(SLOW || number_after("validation_error=") < 50, "%s: %s", kinds[i], output);
    }
    assert_runs("speech train --preset lstm --data @ --layers 1 --hidden 16 --batch 4 --dropout 0 "
                "--threads 2 --device cpu --strings 6 --learning-rate 0.02 --patience 1000 "
                "--steps %d --quiet",
                SLOW ? 3 : 150);
    ck_assert_msg(SLOW || number_after("validation_error=") < 50, "lstm: %s", output);
}

/* The phonemes of a stream are those of recognize, with the digits after their last phoneme. */
TEST(stream_prints_digits_as_it_hears_them)
{
    write_385();
    assert_runs(LEARNS "--causal yes --steps 300 --save @/causal.safetensors");
    ck_assert_msg(number_after("validation_error=") < 15, "%s", output);
    assert_runs("speech stream @/385.wav --load @/causal.safetensors --threads 2");
    double heard[8];
    ck_assert_msg(sscanf(strstr(output, "  heard"),
                         "  heard  found\n%lf TH\n%lf R\n%lf IY\n%*f three\n%lf EY\n%lf T\n"
                         "%*f eight\n%lf F\n%lf AY\n%lf V\n%*f five\n",
                         &heard[0], &heard[1], &heard[2], &heard[3], &heard[4], &heard[5],
                         &heard[6], &heard[7]) == 8 &&
                      strstr(output, "five\n\nlatency"),
                  "%s", output);
    ck_assert_double_eq_tol(heard[0], 0.3, 0.1);
    for (int i = 0; i < 8; i++)
        ck_assert(heard[i] > 0.25 && (i == 0 || heard[i] > heard[i - 1]));
    const double mean = number_after(" mean "), max = number_after(" maximum ");
    ck_assert(0 < mean && mean <= max); /* above the percentile if a block is delayed long */
    ck_assert(0 < number_after(" percentile ") && number_after(" percentile ") <= max);
    ck_assert_double_eq(number_after("look-ahead "), 60); /* 4 frames, in whole blocks */
    ck_assert(number_after("factor ") > 0);
    assert_runs(LEARNS "--steps 1 --save @/both.safetensors");
    ck_assert_int_eq(run("speech stream @/385.wav --load @/both.safetensors"), 2);
    assert_says("both.safetensors: linear attention, expected a causal model: train --preset ");
    assert_runs(LEARNS "--steps 1 --causal yes --attention lsh --save @/lsh.safetensors");
    ck_assert_int_eq(run("speech stream @/385.wav --load @/lsh.safetensors"), 2);
    assert_says("lsh.safetensors: causal LSH attention, which has no decode steps; expected ");
}

/* Its filters have variance 0. */
TEST(digital_silence_is_recognized)
{
    const double samples[RATE] = { 0 };
    write_sound("silence.wav", plain, samples, RATE);
    assert_runs(TINY "--steps 1 --quiet --save @/one.safetensors");
    assert_runs("speech recognize @/silence.wav --load @/one.safetensors --threads 2");
    assert_says("\nphonemes");
}

TEST(missing_gnuplot_is_reported)
{
    char old[4096];
    snprintf(old, sizeof old, "%s", getenv("PATH"));
    setenv("PATH", directory, 1);
    const int status = run("speech features @/recordings/7_a_0.wav --plot @/7.svg");
    setenv("PATH", old, 1);
    ck_assert_int_eq(status, 1);
    assert_says("gnuplot, which draws it, was not found; install gnuplot-nox or omit --plot\n");
}

TEST(spectrogram_is_an_svg)
{
    if (!draws())
        return;
    assert_runs("speech features @/recordings/7_a_0.wav --plot @/7.svg");
    assert_says("7.svg: 38 frames of 40 filters, 0.40 s\n");
    assert_file_says("7.svg", "seconds", "</svg>");
}

TEST(trains_in_bf16)
{
    static const char *const models[] = { "", "--model lstm --hidden 8" };
    for (int i = 0; i < (sizeof(Real) == sizeof(float) ? 2 : 0); i++) {
        assert_runs("speech train --data @ --layers 1 --batch 4 --dropout 0 --threads 2 "
                    "--device cpu --strings 6 --steps 2 --precision bf16 %s",
                    models[i]);
        assert_says("final validation_error=");
    }
}

/* --------------------------------------------------------------------------------------- errors */

TEST(bad_data_are_reported)
{
    char path[160];
    snprintf(path, sizeof path, "%s/few", directory);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    const double samples[WINDOW] = { 0 };
    write_sound("few/1_a_0.wav", plain, samples, WINDOW);
    ck_assert_int_eq(run("speech train --data @/few"), 1);
    assert_says("few: no recordings to train on among its 1\n");
    ck_assert_int_eq(run("speech train --data @/few --split speaker"), 1);
    assert_says("few: 1 speakers, expected more than the 2 held out for the test\n");
    write_sound("few/1_a_5.wav", (Sound){ SF_FORMAT_PCM_16, 4000, 1 }, samples, WINDOW);
    ck_assert_int_eq(run("speech train --data @/few"), 1);
    assert_says("1_a_5.wav: 4000 samples per second, expected 8000 to 768000\n");
    ck_assert_int_eq(run("speech evaluate --data @ --load @/missing"), 1);
    assert_says("missing: No such file or directory");
    ck_assert_int_eq(run("speech features @/rate.wav --plot @/a.png"), 1);
    assert_says("speech: ");
    /* Opening a FIFO would block. */
    snprintf(path, sizeof path, "%s/few/1_a_5.wav", directory);
    ck_assert(unlink(path) == 0 && mkfifo(path, 0600) == 0);
    ck_assert_int_eq(run("speech features @/few/1_a_5.wav --plot @/a.png"), 1);
    assert_says("1_a_5.wav: not a regular file\n");
    ck_assert_int_eq(run("speech train --data @/few"), 1);
    assert_says("1_a_5.wav: not a regular file\n");
}

static const struct {
    const char *arguments, *sentence;
} bad_options[] = {
    { "",
      "speech: no command: expected features, train, evaluate, recognize or stream; see --help\n" },
    { "listen",
      "speech: listen: expected features, train, evaluate, recognize or stream; see --help\n" },
    { "train --attention causal", "--attention causal: expected linear, softmax or lsh\n" },
    { "train --model gru", "speech: --model gru: expected transformer or lstm\n" },
    { "train --split mine", "speech: --split mine: expected standard or speaker\n" },
    { "train --epochs 1 --steps 1", "speech: --steps 1: expected without --epochs 1\n" },
    { "train --rounds 2", "--rounds 2: expected without --attention linear, which has none\n" },
    { "train --hidden 2", "--hidden 2: expected without --model transformer, which has none\n" },
    { "train --preset lstm --heads 2",
      "speech: --heads 2: expected without --model lstm, which has none\n" },
    { "train --min-digits 11 --data x",
      "speech: --min-digits 11: expected at most --max-digits 10\n" },
    { "evaluate", "speech: expected --load FILE, a checkpoint of speech train\n" },
    { "evaluate --layers 2", "unrecognized option '--layers'" },
    { "recognize", "speech: expected a sound file: speech recognize FILE; --help lists" },
    { "recognize --beam 2 a.wav", "speech: expected --load FILE, a checkpoint of" },
    { "recognize a.wav --load a --plot b.jpg",
      "speech: --plot b.jpg: expected a file name without control characters that ends in .png "
      "or .svg\n" },
    { "features a.png --plot a.png", "--plot a.png: expected another file than the argument" },
    { "recognize a.wav", "speech: expected --load FILE, a checkpoint of speech train\n" },
    { "stream", "speech: expected a sound file: speech stream FILE; --help lists" },
    { "stream a.wav", "speech: expected --load FILE, a checkpoint of speech train\n" },
    { "train --causal maybe", "speech: --causal maybe: expected no or yes\n" },
    { "features a.wav", "speech: features: expected --plot FILE, a PNG or an SVG\n" },
    { "features a.wav b.wav", "speech: b.wav: expected an option; --help lists them\n" },
};

TEST(bad_options_are_reported)
{
    for (size_t i = 0; i < sizeof bad_options / sizeof *bad_options; i++) {
        ck_assert_int_eq(run("speech %s", bad_options[i].arguments), 2);
        assert_says(bad_options[i].sentence);
    }
    assert_runs("speech --help");
    assert_says("speech recognize ");
    static const char *const commands[] = { "train", "evaluate", "recognize", "stream",
                                            "features" };
    for (int i = 0; i < 5; i++) {
        assert_runs("speech %s --help", commands[i]);
        assert_says("--help");
        for (const char *line = output; *line; line = strchr(line, '\n') + 1)
            ck_assert_msg(strcspn(line, "\n") <= 80, "more than 80 columns: %s", line);
    }
}

int main(void)
{
    return run_program_tests("speech", write_recordings);
}
