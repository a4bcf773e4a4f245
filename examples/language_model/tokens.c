#include "examples/language_model/tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static FILE *temporary_file(Sentence *sentence)
{
    const char *folder = getenv("TMPDIR");
    char path[1024];
    snprintf(path, sizeof path, "%s/tapegrad-tokens-XXXXXX", folder && *folder ? folder : "/tmp");
    const int descriptor = mkstemp(path);
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "w+b") : NULL;
    if (!file)
        sentence_write(sentence, "%s: %s", path, strerror(errno));
    else
        unlink(path); /* it is freed with the last use */
    return file;
}

/* Writes the source's tokens; returns their number, or -1 with the sentence. */
static int64_t encode(const Vocabulary *vocabulary, Source *source, FILE *file, Sentence *sentence)
{
    int32_t tokens[MAX_WORD];
    int64_t count = 0;
    int got;
    while ((got = vocabulary_encode(vocabulary, source, tokens, sentence)) > 0) {
        uint16_t stored[MAX_WORD];
        for (int i = 0; i < got; i++)
            stored[i] = (uint16_t)tokens[i];
        fwrite(stored, sizeof *stored, (size_t)got, file);
        count += got;
    }
    if (got == 0 && (fflush(file) || ferror(file))) {
        sentence_write(sentence, "the temporary file of %s's tokens: %s", source_name(source),
                       strerror(errno));
        return -1;
    }
    return got < 0 ? -1 : count;
}

static bool map(Tokens *tokens, int64_t count, FILE *file, const char *path, Sentence *sentence)
{
    if (count == 0)
        return sentence_write(sentence, "%s is empty, expected a text", path);
    const size_t size = (size_t)count * sizeof *tokens->data;
    void *memory = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    if (memory == MAP_FAILED)
        return sentence_write(sentence, "%s: mapping its tokens: %s", path, strerror(errno));
    *tokens = (Tokens){ .data = memory, .count = count, .map = memory, .mapped = count };
    return true;
}

bool tokens_read(Tokens *tokens, const Vocabulary *vocabulary, const char *path, Sentence *sentence)
{
    *tokens = (Tokens){ 0 };
    Source *source = source_open(path, sentence);
    if (!source)
        return false;
    FILE *file = temporary_file(sentence);
    const int64_t count = file ? encode(vocabulary, source, file, sentence) : -1;
    Sentence damage;
    bool ok = source_close(source, &damage);
    if (!ok && count >= 0)
        *sentence = damage;
    ok = ok && count >= 0 && map(tokens, count, file, path, sentence);
    if (file)
        fclose(file);
    return ok;
}

void tokens_free(Tokens *tokens)
{
    if (tokens->map)
        munmap((void *)(uintptr_t)tokens->map, (size_t)tokens->mapped * sizeof *tokens->map);
    *tokens = (Tokens){ 0 };
}

Tokens tokens_split(Tokens *tokens, double part)
{
    const int64_t kept = (int64_t)((double)tokens->count * (1 - part));
    const Tokens last = { .data = tokens->data + kept, .count = tokens->count - kept };
    tokens->count = kept;
    return last;
}
