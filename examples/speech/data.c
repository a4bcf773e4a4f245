#include "examples/speech/data.h"
#include "examples/shared/program.h"
#include "examples/speech/decode.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- phonemes */

enum { Z = 1, IH, R, OW, W, AH, N, T, UW, TH, IY, F, AO, AY, V, S, K, EH, EY };

const char *const phoneme_names[SYMBOLS] = {
    "",   "Z",  "IH", "R",  "OW", "W", "AH", "N", "T",  "UW",
    "TH", "IY", "F",  "AO", "AY", "V", "S",  "K", "EH", "EY",
};
const char *const digit_names[DIGITS] = {
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
};

/* Zero is Z IH R OW or Z IY R OW: both speakers and listeners differ, and the targets have one. */
static const int32_t lexicon[DIGITS][MAX_PHONEMES + 1] = {
    { Z, IH, R, OW }, { W, AH, N },    { T, UW },           { TH, R, IY }, { F, AO, R },
    { F, AY, V },     { S, IH, K, S }, { S, EH, V, AH, N }, { EY, T },     { N, AY, N },
};

int64_t digit_phonemes(int digit, int32_t *phonemes)
{
    int64_t count = 0;
    for (; lexicon[digit][count]; count++)
        phonemes[count] = lexicon[digit][count];
    return count;
}

/* fewest_i = min over digits d and j < i of fewest_j + edits(phonemes of d, phonemes j .. i - 1) */
int64_t digits_of_phonemes(const int32_t *phonemes, int64_t n, int32_t *digits, int64_t *ends)
{
    enum { LONGEST = 2 * MAX_PHONEMES };
    int64_t *fewest = allocate(n + 1, sizeof *fewest), *from = allocate(n + 1, sizeof *from);
    int32_t *last = allocate(n + 1, sizeof *last);
    for (int64_t i = 1; i <= n; i++) {
        fewest[i] = INT64_MAX;
        for (int64_t j = i > LONGEST ? i - LONGEST : 0; j < i; j++) {
            for (int32_t d = 0; d < DIGITS; d++) {
                int32_t word[MAX_PHONEMES];
                const int64_t size = digit_phonemes(d, word);
                const int64_t edits =
                    fewest[j] + edits_total(edits_between(word, size, phonemes + j, i - j));
                if (edits < fewest[i]) {
                    fewest[i] = edits;
                    from[i] = j;
                    last[i] = d;
                }
            }
        }
    }
    int64_t count = 0;
    for (int64_t i = n; i > 0; i = from[i])
        count++;
    int64_t k = count;
    for (int64_t i = n; i > 0; i = from[i]) {
        digits[--k] = last[i];
        ends[k] = i;
    }
    free(fewest);
    free(from);
    free(last);
    return count;
}

/* ----------------------------------------------------------------------------------- recordings */

enum { TEST_INDICES = 5, VALIDATION_INDEX = 45, HELD_OUT_SPEAKERS = 2 };

/* A file's name: DIGIT_SPEAKER_INDEX.wav */
typedef struct Name {
    char text[64], speaker[48];
    int digit, index;
} Name;

typedef struct Names {
    Name *names;
    int64_t count, capacity;
} Names;

static bool parse_name(const char *text, Name *name)
{
    int used = 0;
    if (strlen(text) >= sizeof name->text)
        return false;
    strcpy(name->text, text);
    return sscanf(text, "%1d_%47[^_]_%d.wav%n", &name->digit, name->speaker, &name->index, &used) ==
               3 &&
           used == (int)strlen(text) && name->index >= 0 && text[0] >= '0' && text[0] <= '9';
}

static int compare_names(const void *left, const void *right)
{
    const Name *a = left, *b = right;
    const int speaker = strcmp(a->speaker, b->speaker);
    return speaker ? speaker : a->digit != b->digit ? a->digit - b->digit : a->index - b->index;
}

static Names list_names(const char *folder)
{
    Names list = { 0 };
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        Name name;
        if (!parse_name(entry->d_name, &name))
            continue;
        if (list.count == list.capacity) {
            list.capacity = 2 * list.capacity + 1024;
            list.names = realloc(list.names, (size_t)list.capacity * sizeof *list.names);
            if (!list.names)
                fail(EXIT_FAILURE, "out of memory for %lld names", (long long)list.count);
        }
        list.names[list.count++] = name;
    }
    if (directory)
        closedir(directory);
    if (list.count > 0)
        qsort(list.names, (size_t)list.count, sizeof *list.names, compare_names);
    return list;
}

static Part part_of(const Recording *recording, int speakers, bool by_speaker)
{
    const bool test = by_speaker ? recording->speaker >= speakers - HELD_OUT_SPEAKERS
                                 : recording->index < TEST_INDICES;
    return test                                   ? PART_TEST
           : recording->index >= VALIDATION_INDEX ? PART_VALIDATION
                                                  : PART_TRAINING;
}

static void split(Corpus *corpus, const char *folder, bool by_speaker)
{
    static const char *const names[PARTS] = { "train on", "validate on", "test on" };
    if (by_speaker && corpus->speakers <= HELD_OUT_SPEAKERS)
        fail(EXIT_FAILURE,
             "--data %s: %d speakers, expected more than the %d held out for the test", folder,
             corpus->speakers, HELD_OUT_SPEAKERS);
    for (int part = 0; part < PARTS; part++)
        corpus->part[part] = allocate(corpus->count, sizeof(int32_t));
    for (int32_t i = 0; i < corpus->count; i++) {
        const Part part = part_of(&corpus->recordings[i], corpus->speakers, by_speaker);
        corpus->part[part][corpus->part_count[part]++] = i;
    }
    for (int part = 0; part < PARTS; part++) {
        if (corpus->part_count[part] == 0)
            fail(EXIT_FAILURE, "--data %s: no recordings to %s among its %lld", folder, names[part],
                 (long long)corpus->count);
    }
}

static Corpus read_recordings(const Given *given, const char *folder, const Names *list)
{
    Corpus corpus = { .recordings = allocate(list->count, sizeof(Recording)),
                      .count = list->count };
    for (int64_t i = 0; i < list->count; i++) {
        const Name *name = &list->names[i];
        if (i == 0 || strcmp(name->speaker, list->names[i - 1].speaker))
            corpus.speakers++;
        corpus.recordings[i] = (Recording){ .digit = name->digit,
                                            .speaker = corpus.speakers - 1,
                                            .index = name->index };
        char path[4096 + sizeof name->text + 1];
        Sentence sentence;
        snprintf(path, sizeof path, "%s/%s", folder, name->text);
        options_check_input(given, path);
        if (!wave_read(path, &corpus.recordings[i].wave, &sentence))
            fail(EXIT_FAILURE, "--data %s", sentence.text);
    }
    return corpus;
}

Corpus corpus_read(const Given *given, const char *folder, bool by_speaker)
{
    char inside[4096];
    snprintf(inside, sizeof inside, "%s/recordings", folder);
    Names list = list_names(inside);
    if (list.count == 0) {
        snprintf(inside, sizeof inside, "%s", folder);
        list = list_names(folder);
    }
    if (list.count == 0)
        fail(EXIT_FAILURE,
             "--data %s: no recordings named DIGIT_SPEAKER_INDEX.wav in it or in its recordings/; "
             "the Free Spoken Digit Dataset has them: "
             "github.com/Jakobovski/free-spoken-digit-dataset",
             folder);
    Corpus corpus = read_recordings(given, inside, &list);
    split(&corpus, folder, by_speaker);
    free(list.names);
    return corpus;
}

void corpus_free(Corpus *corpus)
{
    for (int64_t i = 0; i < corpus->count; i++)
        wave_free(&corpus->recordings[i].wave);
    for (int part = 0; part < PARTS; part++)
        free(corpus->part[part]);
    free(corpus->recordings);
}

/* -------------------------------------------------------------------------------------- strings */

enum { LONGEST_SILENCE = 3 * RATE / 10 };

/* The recordings of the part that have the speaker of one drawn at random: [start, end). */
static void draw_speaker(const Corpus *corpus, Part part, Random *random, int64_t *start,
                         int64_t *end)
{
    const int32_t *numbers = corpus->part[part];
    const int64_t count = corpus->part_count[part];
    *start = *end = random_integer(random, 0, count);
    const int speaker = corpus->recordings[numbers[*start]].speaker;
    while (*start > 0 && corpus->recordings[numbers[*start - 1]].speaker == speaker)
        (*start)--;
    while (*end < count && corpus->recordings[numbers[*end]].speaker == speaker)
        (*end)++;
}

/* White noise `decibels` below the mean power of the samples. */
static void add_noise(Wave *wave, double decibels, Random *random)
{
    Real *noise = allocate(wave->count, sizeof *noise);
    double power = 0;
    for (int64_t i = 0; i < wave->count; i++)
        power += (double)wave->samples[i] * (double)wave->samples[i] / (double)wave->count;
    const double scale = sqrt(power) * pow(10, -decibels / 20);
    random_normal(random, noise, wave->count);
    for (int64_t i = 0; i < wave->count; i++)
        wave->samples[i] += (Real)(scale * (double)noise[i]);
    free(noise);
}

Utterance utterance_draw(const Corpus *corpus, Part part, int64_t digits, Random *random)
{
    Utterance utterance = { .digits = digits };
    int64_t start, end, offsets[MAX_DIGITS], length = 0;
    const Recording *chosen[MAX_DIGITS];
    draw_speaker(corpus, part, random, &start, &end);
    for (int64_t i = 0; i < utterance.digits; i++) {
        chosen[i] = &corpus->recordings[corpus->part[part][random_integer(random, start, end)]];
        utterance.digit[i] = chosen[i]->digit;
        utterance.phonemes +=
            digit_phonemes(chosen[i]->digit, utterance.phoneme + utterance.phonemes);
        offsets[i] = length + random_integer(random, 0, LONGEST_SILENCE);
        length = offsets[i] + chosen[i]->wave.count;
    }
    length += random_integer(random, 0, LONGEST_SILENCE);
    utterance.wave = (Wave){ length, allocate(length, sizeof(Real)) };
    for (int64_t i = 0; i < utterance.digits; i++)
        memcpy(utterance.wave.samples + offsets[i], chosen[i]->wave.samples,
               (size_t)chosen[i]->wave.count * sizeof(Real));
    add_noise(&utterance.wave, (double)random_integer(random, 30, 51), random);
    return utterance;
}

void utterance_free(Utterance *utterance)
{
    wave_free(&utterance->wave);
}

int64_t string_samples(const Corpus *corpus, int64_t digits)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < corpus->count; i++) {
        const int64_t count = corpus->recordings[i].wave.count;
        longest = count > longest ? count : longest;
    }
    return digits * (LONGEST_SILENCE + longest) + LONGEST_SILENCE;
}
