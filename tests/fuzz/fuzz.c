/* libFuzzer's entry for all readers; FUZZ chooses one. The seeds are files that the library itself
 * writes, into the folder FUZZ_SEEDS, when the run starts.
 *
 *     file        a safetensors file: what opens, saved again and reopened, is equal
 *     checkpoint  optim_load and params_load
 *     state       nn_transformer_state_load; all three change nothing if they return false; what
 *                 they accept, saved, loaded and saved again, is the same file
 *     idx         IDX files of images, gzipped or not
 *     cifar10     a directory with one of CIFAR-10's files, gzipped or not
 *     vocabulary  vocabularies of language_model; with one that is accepted a text encodes, and
 *                 decodes to itself
 *     options     copy_task's command line, one argument per line */
#include "examples/copy_task/options.h"
#include "examples/images/cifar10.h"
#include "examples/images/idx.h"
#include "examples/language_model/vocabulary.h"

#include <fcntl.h>
#include <getopt.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad.h>
#include <unistd.h>
#include <zlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
_Noreturn void __wrap_exit(int status);
_Noreturn void __real_exit(int status);

#define REQUIRE(claim)                                                                             \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "fuzz: not so: %s: %s\n", #claim, tapegrad_error());                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static char folder[64] = "/dev/shm/fuzz.XXXXXX", given[96], saved[96], again[96];
static const char *chosen, *seeds;

typedef struct Bytes {
    uint8_t *data;
    size_t size;
} Bytes;

static Bytes read_bytes(const char *path)
{
    Bytes bytes = { malloc(1 << 20), 0 };
    FILE *file = fopen(path, "rb");
    REQUIRE(file && bytes.data);
    bytes.size = fread(bytes.data, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void write_bytes(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(data, 1, size, file) == size);
    REQUIRE(fclose(file) == 0);
}

static const char *seed_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", seeds, name);
    return path;
}

/* ------------------------------------------------------------------------------------ any file */

/* The entry's bytes, to be freed; no type has more than 8 per element. */
static void *bytes_of(const TensorFile *file, const FileEntry *entry)
{
    void *bytes = calloc((size_t)shape_count(entry->shape) + 1, 8);
    REQUIRE(bytes && tensor_file_read_bytes(file, entry->name, bytes));
    return bytes;
}

static void fuzz_file(void)
{
    TensorFile *file = tensor_file_open(given);
    if (!file)
        return;
    const int count = tensor_file_count(file);
    FileEntry *entries = calloc((size_t)count + 1, sizeof *entries);
    for (int i = 0; i < count; i++) {
        const FileEntry *entry = tensor_file_entry(file, i);
        entries[i] = *entry;
        entries[i].data = bytes_of(file, entry);
        double *host = malloc(((size_t)shape_count(entry->shape) + 1) * sizeof *host);
        const bool real = tensor_file_read(file, entry->name, entry->shape, (Real *)host);
        const bool whole = tensor_file_read_i32(file, entry->name, entry->shape, (int32_t *)host);
        REQUIRE(!real || !whole);
        free(host);
    }
    REQUIRE(tensor_file_save(entries, count, NULL, 0, saved));
    TensorFile *reopened = tensor_file_open(saved);
    REQUIRE(reopened && tensor_file_count(reopened) == count);
    for (int i = 0; i < count; i++) {
        const FileEntry *entry = tensor_file_find(reopened, entries[i].name);
        REQUIRE(entry && entry->type == entries[i].type);
        REQUIRE(shape_equal(entry->shape, entries[i].shape));
        void *bytes = bytes_of(reopened, entry);
        REQUIRE(memcmp(bytes, entries[i].data, 8 * (size_t)shape_count(entry->shape)) == 0);
        free(bytes);
        free((void *)entries[i].data);
    }
    tensor_file_close(reopened);
    free(entries);
    tensor_file_close(file);
}

/* ------------------------------------------------------------------------------ model and state */

static Tape *tape;
static Params *params;
static Embedding embedding;
static Transformer transformer;
static Optimizer *optimizer;
static TransformerState *state;

static void make_model(void)
{
    Device *device = device_open("cpu");
    params = params_new(device, 1);
    embedding = nn_embedding(params, "embedding", 3, 4);
    transformer = nn_transformer(
        params, "transformer",
        (TransformerConfig){ .layers = 1, .heads = 2, .head_dim = 2, .feed_forward = 5 });
    optimizer = optim_radam(params, optim_adam_config(1e-3));
    tape = tape_new(device);
    const int32_t tokens[] = { 0, 2, 1 };
    Tensor *x = nn_embedding_forward(tape, &embedding, tape_input_i32(tape, tokens, shape(1, 3)));
    tape_backward(
        tape, op_mean(tape, nn_transformer_forward(tape, &transformer, x, (AttentionOptions){ 0 }),
                      ALL_AXES));
    optim_step(optimizer);
    tape_reset(tape);
    state = nn_transformer_state(&transformer, (GenerationConfig){ .max_length = 9 });
    const Real x_values[] = { 1, -1, 2, 0 };
    nn_transformer_step(state, params_constant(params, x_values, shape(1, 4)));
}

static bool save_checkpoint(const char *path)
{
    return optim_save(optimizer, tape, NULL, 0, path);
}
static bool load_checkpoint(const char *path)
{
    return optim_load(optimizer, tape, path);
}
static bool load_weights(const char *path)
{
    return params_load(params, path);
}
static bool save_state(const char *path)
{
    return nn_transformer_state_save(state, path);
}
static bool load_state(const char *path)
{
    return nn_transformer_state_load(state, path);
}

static void assert_saves(bool (*save)(const char *path), Bytes expected)
{
    REQUIRE(save(again));
    const Bytes found = read_bytes(again);
    REQUIRE(found.size == expected.size && memcmp(found.data, expected.data, found.size) == 0);
    free(found.data);
}

/* The saved file is all that may change, so equal files mean equal state. */
static void load_given(bool (*save)(const char *path), bool (*load)(const char *path))
{
    REQUIRE(save(saved));
    const Bytes before = read_bytes(saved);
    if (!load(given)) {
        assert_saves(save, before);
    } else {
        REQUIRE(save(saved));
        const Bytes after = read_bytes(saved);
        REQUIRE(load(saved));
        assert_saves(save, after);
        free(after.data);
        write_bytes(saved, before.data, before.size);
        REQUIRE(load(saved));
        assert_saves(save, before);
    }
    free(before.data);
}

static void fuzz_checkpoint(void)
{
    load_given(save_checkpoint, load_checkpoint);
    load_given(save_checkpoint, load_weights);
}

static void fuzz_state(void)
{
    load_given(save_state, load_state);
}

/* --------------------------------------------------------------------------------------- images */

static void fuzz_idx(void)
{
    Idx idx = { .count = 7 };
    Sentence sentence = { "" };
    if (idx_read(given, &idx, &sentence)) {
        int sum = 0;
        for (int64_t j = 0; j < idx.count * idx.rows * idx.columns; j++)
            sum += idx.bytes[j];
        REQUIRE(sum >= 0);
        idx_free(&idx);
    } else {
        REQUIRE(idx.count == 7 && !idx.bytes && *sentence.text);
    }
}

static void write_idx_seeds(void)
{
    const uint8_t images[] = { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 9, 8, 7, 6 };
    write_bytes(seed_path("images"), images, sizeof images);
    gzFile file = gzopen(seed_path("images.gz"), "wb");
    REQUIRE(file && gzwrite(file, images, sizeof images) == (int)sizeof images);
    REQUIRE(gzclose(file) == Z_OK);
}

static void fuzz_cifar10(void)
{
    Cifar10 images = { .count = 7 };
    Sentence sentence = { "" };
    glob_t files;
    REQUIRE(cifar10_find(folder, false, &files, &sentence));
    if (cifar10_read(&files, &images, &sentence)) {
        int sum = 0;
        REQUIRE(images.count > 0);
        for (int64_t i = 0; i < images.count * CIFAR10_BYTES; i++)
            sum += images.bytes[i];
        REQUIRE(sum >= 0);
        cifar10_free(&images);
    } else {
        REQUIRE(images.count == 7 && !images.bytes && *sentence.text);
    }
    globfree(&files);
}

static void write_cifar10_seeds(void)
{
    uint8_t images[2 * (1 + CIFAR10_BYTES)];
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i % (1 + CIFAR10_BYTES) ? i : i / CIFAR10_BYTES);
    write_bytes(seed_path("images"), images, sizeof images);
    gzFile file = gzopen(seed_path("images.gz"), "wb");
    REQUIRE(file && gzwrite(file, images, sizeof images) == (int)sizeof images);
    REQUIRE(gzclose(file) == Z_OK);
}

/* --------------------------------------------------------------------------------- vocabularies */

static void fuzz_vocabulary(void)
{
    static const char text[] = "the cat, the cat 12";
    Vocabulary vocabulary;
    Sentence sentence = { "" };
    if (!vocabulary_load(&vocabulary, given, &sentence)) {
        REQUIRE(*sentence.text);
        return;
    }
    Source *source = source_of_string(text);
    int32_t tokens[MAX_WORD];
    uint8_t bytes[MAX_WORD];
    size_t at = 0;
    for (int got; (got = vocabulary_encode(&vocabulary, source, tokens, &sentence)) > 0;)
        for (int i = 0; i < got; i++) {
            REQUIRE(tokens[i] >= 0 && tokens[i] < vocabulary.count);
            const size_t length = (size_t)vocabulary.lengths[tokens[i]];
            vocabulary_decode(&vocabulary, tokens[i], bytes);
            REQUIRE(at + length < sizeof text && memcmp(text + at, bytes, length) == 0);
            at += length;
        }
    REQUIRE(at == sizeof text - 1 || vocabulary.kind == TOKENS_CHARACTERS);
    REQUIRE(source_close(source, &sentence));
    vocabulary_free(&vocabulary);
}

static void write_vocabulary_seeds(void)
{
    static const char *const seed[] = { "tapegrad vocabulary bytes 256\n",
                                        "tapegrad vocabulary pairs 258\n104 101\n116 256\n",
                                        "tapegrad vocabulary characters 3\n32\n97\n8364\n" };
    for (int i = 0; i < 3; i++)
        write_bytes(seed_path(token_kind_names[i]), seed[i], strlen(seed[i]));
}

/* -------------------------------------------------------------------------------------- options */

static jmp_buf ended;
static volatile bool parsing;

void __wrap_exit(int status)
{
    if (parsing)
        longjmp(ended, 1);
    __real_exit(status);
}

static void fuzz_options(const uint8_t *data, size_t size)
{
    static char text[4096];
    char *argv[64] = { (char[]){ "copy_task" } };
    int argc = 1;
    if (size >= sizeof text)
        return;
    memcpy(text, data, size);
    text[size] = 0;
    for (char *word = text; word && argc < 63; argc++) {
        argv[argc] = word;
        word = strchr(word, '\n');
        if (word)
            *word++ = 0;
    }
    optind = 0;
    parsing = true;
    if (!setjmp(ended)) {
        const Options options = copy_task_options(argc, argv);
        REQUIRE(options.length >= 1 && options.symbols >= 1 && options.common.layers >= 1);
    }
    parsing = false;
}

/* ---------------------------------------------------------------------------- libFuzzer's calls */

static void clean(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        perror(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    chosen = getenv("FUZZ");
    seeds = getenv("FUZZ_SEEDS");
    if (access("/dev/shm", W_OK) != 0) /* in memory, a save takes microseconds */
        strcpy(folder, "/tmp/fuzz.XXXXXX");
    REQUIRE(chosen && seeds && mkdtemp(folder) && atexit(clean) == 0);
    /* cifar10_find takes a directory, and from it the names test*.bin. */
    snprintf(given, sizeof given, "%s/test.bin", folder);
    snprintf(saved, sizeof saved, "%s/saved", folder);
    snprintf(again, sizeof again, "%s/again", folder);
    make_model();
    const bool of_data = strcmp(chosen, "idx") == 0 || strcmp(chosen, "cifar10") == 0 ||
                         strcmp(chosen, "vocabulary") == 0;
    REQUIRE(of_data || strcmp(chosen, "options") == 0 ||
            (save_checkpoint(seed_path("checkpoint")) && save_state(seed_path("state")) &&
             params_save(params, seed_path("weights"))));
    if (strcmp(chosen, "idx") == 0)
        write_idx_seeds();
    if (strcmp(chosen, "cifar10") == 0)
        write_cifar10_seeds();
    if (strcmp(chosen, "vocabulary") == 0)
        write_vocabulary_seeds();
    const char words[] =
        "--steps\n5\n--layers\n2\n--learning-rate\n1e-3\n--attention\nlsh\n--drop-at"
        "\n0\n--quiet";
    if (strcmp(chosen, "options") == 0)
        write_bytes(seed_path("options"), words, sizeof words - 1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (strcmp(chosen, "options") == 0) {
        fuzz_options(data, size);
        return 0;
    }
    write_bytes(given, data, size);
    (strcmp(chosen, "file") == 0         ? fuzz_file
     : strcmp(chosen, "checkpoint") == 0 ? fuzz_checkpoint
     : strcmp(chosen, "state") == 0      ? fuzz_state
     : strcmp(chosen, "cifar10") == 0    ? fuzz_cifar10
     : strcmp(chosen, "vocabulary") == 0 ? fuzz_vocabulary
                                         : fuzz_idx)();
    return 0;
}

/* Half of the mutations change the header of a safetensors file alone and correct its length. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    uint64_t length = 0;
    if (size > 8)
        memcpy(&length, data, 8);
    if (length == 0 || length > size - 8 || seed % 2 == 0)
        return LLVMFuzzerMutate(data, size, most);
    const size_t rest = size - 8 - length;
    uint8_t *copy = malloc(rest + 1);
    memcpy(copy, data + 8 + length, rest);
    length = LLVMFuzzerMutate(data + 8, length, most - 8 - rest);
    memcpy(data + 8 + length, copy, rest);
    memcpy(data, &length, 8);
    free(copy);
    return 8 + length + rest;
}
