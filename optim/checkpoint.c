/* Checkpoints: an optimizer, its weights and a tape's generator in one safetensors file, whose
 * contents optim/optim.h describes. A part is one flat buffer: the weights, or what the optimizer's
 * kind has files hold as them, and its other states. */
#include "optim/internal.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FileParts parts_of(const Optimizer *optimizer)
{
    const OptimizerKind *kind = optimizer->kind;
    Params *params = optimizer->params;
    FileParts parts = { 1,
                        { { "", params_flat_values(params)->data, { 0, params->flat_count } } } };
    if (kind->start && optimizer->steps == 0)
        kind->start(optimizer);
    for (int i = 0; i < optimizer->state_count; i++) {
        const FilePart part = { kind->states[i], optimizer->states[i], optimizer->range };
        if (part.prefix)
            parts.list[part.prefix[0] ? parts.count++ : 0] = part;
    }
    return parts;
}

/* The parts of which each process has its own range become whole in the process that writes the
 * file, in blocks of the caller. False when memory is exhausted, or without ok, in some process. */
static bool collect_parts(const Params *params, FileParts *parts, Block *blocks[MAX_FILE_PARTS],
                          bool ok)
{
    const Shards *shards = params->shards;
    if (!shards)
        return ok;
    const size_t bytes = (size_t)params->flat_count * sizeof(Real);
    for (int i = 0; ok && shards->rank == 0 && i < parts->count; i++)
        if (parts->list[i].data != params->flat_values.data) {
            blocks[i] = device_allocate(params->device, bytes);
            ok = blocks[i] ||
                 error_report("optim_save: %s", device_exhausted(params->device, bytes).text);
        }
    if (!shards->agree(ok, 0))
        return false;
    for (int i = 0; i < parts->count; i++) {
        FilePart *part = &parts->list[i];
        if (part->data == params->flat_values.data)
            continue;
        Real *whole = blocks[i] ? blocks[i]->data : NULL;
        shards->collect(params, whole, part->data);
        *part = (FilePart){ part->prefix, whole, { 0, params->flat_count } };
    }
    return true;
}

/* ------------------------------------------------------------------------------------- metadata */
#define OWN_KEYS "tapegrad."
enum { MAX_TEXTS = 24, TEXT_BYTES = 40 };

typedef struct Texts {
    int count;
    FileMetadata *list;
    char values[MAX_TEXTS][TEXT_BYTES];
} Texts;

__attribute__((format(printf, 3, 4))) static void add(Texts *texts, const char *key,
                                                      const char *format, ...)
{
    char *value = texts->values[texts->count];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(value, TEXT_BYTES, format, arguments);
    va_end(arguments);
    texts->list[texts->count++] = (FileMetadata){ key, value };
}

/* The exact value as a hexadecimal constant of C with an integer mantissa: %a would print the
 * locale's decimal point. */
static void add_number(Texts *texts, const char *key, double number)
{
    int exponent = 0;
    double fraction = isfinite(number) ? frexp(number, &exponent) : 0;
    int64_t mantissa = (int64_t)ldexp(fabs(fraction), 53);
    for (exponent -= 53; mantissa && mantissa % 2 == 0; exponent++)
        mantissa /= 2;
    const char *sign = signbit(number) ? "-" : "";
    if (isfinite(number))
        add(texts, key, "%s0x%" PRIx64 "p%d", sign, (uint64_t)mantissa, mantissa ? exponent : 0);
    else
        add(texts, key, "%s%s", sign, isnan(number) ? "nan" : "inf");
}

/* A number of the kind that checkpoints keep */
static double *own_number(const Optimizer *optimizer, int i)
{
    return (double *)((char *)optimizer->own + optimizer->kind->numbers[i].offset);
}

/* First the entries that optim_load reads, then those that inform people and other programs. */
static void add_all(Texts *texts, const Optimizer *optimizer, const Tape *tape)
{
    static const char *const schedules[] = { [SCHEDULE_CONSTANT] = "constant",
                                             [SCHEDULE_DROPS] = "drops",
                                             [SCHEDULE_COSINE] = "cosine",
                                             [SCHEDULE_PLATEAU] = "plateau" };
    add(texts, OWN_KEYS "optimizer", "%s", optimizer->kind->name);
    add(texts, OWN_KEYS "steps", "%" PRId64, optimizer->steps);
    add_number(texts, OWN_KEYS "learning_rate", optimizer->learning_rate);
    for (int i = 0; i < OPTIM_NUMBERS && optimizer->kind->numbers[i].key; i++)
        add_number(texts, optimizer->kind->numbers[i].key, *own_number(optimizer, i));
    add_number(texts, OWN_KEYS "plateau.best", optimizer->plateau.best);
    add(texts, OWN_KEYS "plateau.bad", "%" PRId64, optimizer->plateau.bad);
    add_number(texts, OWN_KEYS "plateau.factor", optimizer->plateau.factor);
    if (tape) {
        const Random random = tape_random(tape);
        add(texts, OWN_KEYS "random.seed", "%" PRIu64, random.seed);
        add(texts, OWN_KEYS "random.stream", "%" PRIu64, random.stream);
        add(texts, OWN_KEYS "random.counter", "%" PRIu64, random.counter);
    }
    add(texts, OWN_KEYS "schedule", "%s", schedules[optimizer->schedule.kind]);
    add_number(texts, OWN_KEYS "momentum", (double)optimizer->momentum);
    add(texts, OWN_KEYS "nesterov", "%d", optimizer->nesterov);
    add_number(texts, OWN_KEYS "beta1", (double)optimizer->beta1);
    add_number(texts, OWN_KEYS "beta2", (double)optimizer->beta2);
    add_number(texts, OWN_KEYS "eps", (double)optimizer->eps);
    add_number(texts, OWN_KEYS "weight_decay", optimizer->weight_decay);
}

/* --------------------------------------------------------------------------------------- saving */
bool optim_save(Optimizer *optimizer, Tape *tape, const FileMetadata *texts, int text_count,
                const char *path)
{
    optim_need("optim_save", optimizer);
    bool ok = text_count >= 0 || error_report("optim_save: %s: there are %d texts, expected 0 or "
                                              "more",
                                              path, text_count);
    ok = ok && (texts || !text_count || error_report("optim_save: %s: texts is NULL", path));
    for (int i = 0; ok && i < text_count; i++)
        if (texts[i].key && strncmp(texts[i].key, OWN_KEYS, strlen(OWN_KEYS)) == 0)
            ok = error_report("optim_save: %s: the key \"%.80s\" starts with \"" OWN_KEYS
                              "\", which is reserved",
                              path, texts[i].key);
    const size_t bytes = (size_t)(MAX_TEXTS + (ok ? text_count : 0)) * sizeof(FileMetadata);
    Params *params = optimizer->params;
    Texts all = { .list = memory_allocate(bytes) };
    if (!all.list)
        ok = error_report("optim_save: %s", device_exhausted(optimizer->device, bytes).text);
    FileParts parts = parts_of(optimizer);
    Block *blocks[MAX_FILE_PARTS] = { NULL };
    ok = collect_parts(params, &parts, blocks, ok);
    if (ok)
        add_all(&all, optimizer, tape);
    for (int i = 0; ok && i < text_count; i++)
        all.list[all.count++] = texts[i];
    if (ok && (!params->shards || params->shards->rank == 0))
        ok = params_save_parts("optim_save", params, &parts, all.list, all.count, path);
    for (int i = 0; i < MAX_FILE_PARTS; i++)
        device_free(params->device, blocks[i]);
    free(all.list);
    return params->shards ? params->shards->agree(ok, optimizer->steps) : ok;
}

/* -------------------------------------------------------------------------------------- loading */
typedef struct Reader {
    const TensorFile *file;
    const char *path;
} Reader;

static bool read_text(Reader reader, const char *key, const char **text)
{
    *text = tensor_file_metadata(reader.file, key);
    return *text || error_report("optim_load: %s: there is no metadata \"%s\"", reader.path, key);
}

/* An integer from 0 to max. */
static bool read_whole(Reader reader, const char *key, uint64_t max, uint64_t *whole)
{
    const char *text;
    if (!read_text(reader, key, &text))
        return false;
    char *end;
    errno = 0;
    *whole = strtoull(text, &end, 10);
    const bool digits = strspn(text, "0123456789") == strlen(text) && text[0];
    return (digits && errno == 0 && *whole <= max) ||
           error_report("optim_load: %s: %s is \"%.40s\", expected an integer from 0 to %" PRIu64,
                        reader.path, key, text, max);
}

static bool read_count(Reader reader, const char *key, int64_t *count)
{
    return read_whole(reader, key, INT64_MAX / 2, (uint64_t *)count);
}

/* A number from low to high. */
static bool read_number(Reader reader, const char *key, double low, double high, double *number)
{
    const char *text;
    if (!read_text(reader, key, &text))
        return false;
    char *end;
    *number = strtod(text, &end);
    return (end != text && *end == 0 && *number >= low && *number <= high) ||
           error_report("optim_load: %s: %s is \"%.40s\", expected a number from %g to %g",
                        reader.path, key, text, low, high);
}

static bool read_kind(Reader reader, const char *kind)
{
    const char *text = tensor_file_metadata(reader.file, OWN_KEYS "optimizer");
    if (!text)
        return error_report("optim_load: %s: there is no metadata \"" OWN_KEYS
                            "optimizer\": it is not a "
                            "checkpoint of optim_save; params_load reads weights alone",
                            reader.path);
    return strcmp(text, kind) == 0 ||
           error_report("optim_load: %s: it was saved from the optimizer %.40s; this one is %s",
                        reader.path, text, kind);
}

/* numbers: those of the optimizer's kind */
static bool read_numbers(Reader reader, Optimizer *optimizer, double numbers[OPTIM_NUMBERS])
{
    const double largest = sizeof(Real) == sizeof(double) ? DBL_MAX : (double)FLT_MAX;
    if (!read_count(reader, OWN_KEYS "steps", &optimizer->steps) ||
        !read_number(reader, OWN_KEYS "learning_rate", 0, largest, &optimizer->learning_rate))
        return false;
    for (int i = 0; i < OPTIM_NUMBERS && optimizer->kind->numbers[i].key; i++)
        if (!read_number(reader, optimizer->kind->numbers[i].key, 0, DBL_MAX, &numbers[i]))
            return false;
    Plateau *plateau = &optimizer->plateau;
    return read_number(reader, OWN_KEYS "plateau.best", -INFINITY, INFINITY, &plateau->best) &&
           read_count(reader, OWN_KEYS "plateau.bad", &plateau->bad) &&
           read_number(reader, OWN_KEYS "plateau.factor", 0, 1, &plateau->factor);
}

static bool read_random(Reader reader, Random *random)
{
    if (!tensor_file_metadata(reader.file, OWN_KEYS "random.seed"))
        return error_report("optim_load: %s: there is no metadata \"" OWN_KEYS
                            "random.seed\": it was "
                            "saved without a tape; load it with NULL for the tape",
                            reader.path);
    return read_whole(reader, OWN_KEYS "random.seed", UINT64_MAX, &random->seed) &&
           read_whole(reader, OWN_KEYS "random.stream", UINT64_MAX, &random->stream) &&
           read_whole(reader, OWN_KEYS "random.counter", UINT64_MAX, &random->counter);
}

/* Reads the metadata into copies and the parts last, so that a failure changes nothing. */
bool optim_load(Optimizer *optimizer, Tape *tape, const char *path)
{
    optim_need("optim_load", optimizer);
    const FileParts parts = parts_of(optimizer);
    Optimizer loaded = *optimizer;
    double numbers[OPTIM_NUMBERS];
    Random random;
    TensorFile *file = tensor_file_open(path);
    const Reader reader = { file, path };
    const bool ok = file && read_kind(reader, optimizer->kind->name) &&
                    read_numbers(reader, &loaded, numbers) &&
                    (!tape || read_random(reader, &random)) &&
                    params_load_parts("optim_load", optimizer->params, &parts, NULL, file, path);
    tensor_file_close(file);
    const Shards *shards = optimizer->params->shards;
    if (shards ? !shards->agree(ok, loaded.steps) : !ok)
        return false;
    *optimizer = loaded;
    for (int i = 0; i < OPTIM_NUMBERS && optimizer->kind->numbers[i].key; i++)
        *own_number(optimizer, i) = numbers[i];
    if (optimizer->kind->set_weights)
        optim_set_weights(optimizer);
    if (tape)
        tape_set_random(tape, random);
    params_zero_gradients(optimizer->params);
    return true;
}
