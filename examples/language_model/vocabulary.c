#include "examples/language_model/vocabulary.h"
#include "examples/shared/program.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const token_kind_names[] = {
    [TOKENS_BYTES] = "bytes", [TOKENS_CHARACTERS] = "characters", [TOKENS_PAIRS] = "pairs", NULL
};

/* ------------------------------------------------------------------------------ tables of pairs */

/* Open addressing; key 0 is free, since keys are pairs plus 1. */
typedef struct Pair {
    uint64_t key;
    int64_t value;
} Pair;

struct PairTable {
    Pair *pairs;
    uint64_t size, used; /* size: a power of 2 */
};

static PairTable *pairs_new(uint64_t size)
{
    PairTable *table = allocate(1, sizeof *table);
    table->size = size;
    table->pairs = allocate((int64_t)size, sizeof *table->pairs);
    return table;
}

static void pairs_free(PairTable *table)
{
    if (table)
        free(table->pairs);
    free(table);
}

static uint64_t pair_key(int32_t a, int32_t b)
{
    return ((uint64_t)a << 16 | (uint64_t)b) + 1;
}

/* The slot of the key, or the free one where it belongs. */
static Pair *pair_find(const PairTable *table, uint64_t key)
{
    uint64_t at = key * 0x9e3779b97f4a7c15u >> 20;
    while (table->pairs[at & (table->size - 1)].key != key &&
           table->pairs[at & (table->size - 1)].key != 0)
        at++;
    return &table->pairs[at & (table->size - 1)];
}

static void pair_add(PairTable *table, uint64_t key, int64_t value)
{
    if (2 * table->used >= table->size) {
        PairTable *larger = pairs_new(2 * table->size);
        for (uint64_t i = 0; i < table->size; i++)
            if (table->pairs[i].key)
                pair_add(larger, table->pairs[i].key, table->pairs[i].value);
        free(table->pairs);
        *table = *larger;
        free(larger);
    }
    Pair *pair = pair_find(table, key);
    table->used += pair->key == 0;
    pair->key = key;
    pair->value += value;
}

/* -------------------------------------------------------------------------- vocabularies, files */

int64_t vocabulary_items(TokenKind kind, int64_t count)
{
    return kind == TOKENS_BYTES ? 0 : kind == TOKENS_CHARACTERS ? count : 2 * (count - BYTES);
}

static int character_length(int32_t code)
{
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

static bool item_ok(TokenKind kind, int64_t i, const int32_t *items)
{
    if (kind == TOKENS_CHARACTERS)
        return items[i] >= 0 && items[i] <= 0x10ffff && (i == 0 || items[i] > items[i - 1]);
    return items[i] >= 0 && items[i] < BYTES + i / 2;
}

bool vocabulary_of_items(Vocabulary *vocabulary, TokenKind kind, int64_t count,
                         const int32_t *items, Sentence *sentence)
{
    const int64_t min = kind == TOKENS_CHARACTERS ? 1 : BYTES;
    const int64_t max = kind == TOKENS_BYTES ? BYTES : MAX_VOCABULARY;
    *vocabulary = (Vocabulary){ .kind = kind, .count = count };
    if (count < min || count > max)
        return sentence_write(sentence, "%lld tokens, expected %lld to %lld", (long long)count,
                              (long long)min, (long long)max);
    const int64_t n = vocabulary_items(kind, count);
    vocabulary->items = allocate(n + 1, sizeof *vocabulary->items);
    vocabulary->lengths = allocate(count, sizeof *vocabulary->lengths);
    vocabulary->merges = pairs_new(BYTES);
    for (int64_t i = 0; i < n; i++) {
        vocabulary->items[i] = items[i];
        if (item_ok(kind, i, items))
            continue;
        vocabulary_free(vocabulary);
        return sentence_write(sentence, "item %lld of %s is %d, which is out of range or order",
                              (long long)i, token_kind_names[kind], items[i]);
    }
    for (int32_t token = 0; token < count; token++) {
        const int32_t *pair = token < BYTES ? NULL : items + 2 * (token - BYTES);
        if (kind == TOKENS_CHARACTERS) {
            vocabulary->lengths[token] = character_length(items[token]);
        } else if (token < BYTES) {
            vocabulary->lengths[token] = 1;
        } else if (pair_find(vocabulary->merges, pair_key(pair[0], pair[1]))->key) {
            vocabulary_free(vocabulary);
            return sentence_write(sentence, "tokens before %d join %d and %d too", token, pair[0],
                                  pair[1]);
        } else {
            pair_add(vocabulary->merges, pair_key(pair[0], pair[1]), token);
            vocabulary->lengths[token] =
                vocabulary->lengths[pair[0]] + vocabulary->lengths[pair[1]];
        }
        if (vocabulary->lengths[token] <= MAX_WORD)
            continue;
        vocabulary_free(vocabulary);
        return sentence_write(sentence, "token %d has more than %d bytes", token, MAX_WORD);
    }
    return true;
}

void vocabulary_free(Vocabulary *vocabulary)
{
    free(vocabulary->items);
    free(vocabulary->lengths);
    pairs_free(vocabulary->merges);
    *vocabulary = (Vocabulary){ 0 };
}

bool vocabulary_save(const Vocabulary *vocabulary, const char *path)
{
    const int64_t n = vocabulary_items(vocabulary->kind, vocabulary->count);
    char *bytes;
    size_t size;
    FILE *file = open_memstream(&bytes, &size);
    if (!file)
        fail(EXIT_FAILURE, "out of memory for the vocabulary %s", path);
    fprintf(file, "tapegrad vocabulary %s %lld\n", token_kind_names[vocabulary->kind],
            (long long)vocabulary->count);
    for (int64_t i = 0; i < n; i++)
        fprintf(file, "%d%c", vocabulary->items[i],
                vocabulary->kind == TOKENS_PAIRS && i % 2 == 0 ? ' ' : '\n');
    if (fclose(file))
        fail(EXIT_FAILURE, "out of memory for the vocabulary %s", path);
    const bool ok = tensor_file_write(path, bytes, (int64_t)size);
    free(bytes);
    return ok;
}

bool vocabulary_load(Vocabulary *vocabulary, const char *path, Sentence *sentence)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return sentence_write(sentence, "%s: %s", path, strerror(errno));
    char name[16] = "";
    long long count = 0;
    TokenKind kind = TOKENS_BYTES;
    bool ok = fscanf(file, "tapegrad vocabulary %15s %lld\n", name, &count) == 2;
    while (token_kind_names[kind] && strcmp(name, token_kind_names[kind]))
        kind++;
    ok = ok && token_kind_names[kind] && count >= 1 && count <= MAX_VOCABULARY;
    const int64_t n = ok ? vocabulary_items(kind, count) : 0;
    int32_t *items = allocate(n > 0 ? n : 1, sizeof *items);
    for (int64_t i = 0; ok && i < n; i++) { /* without its end the last number may be another */
        char end = 0;
        ok = fscanf(file, "%9d%c ", &items[i], &end) == 2 && isspace((unsigned char)end);
    }
    ok = ok && getc(file) == EOF;
    fclose(file);
    Sentence reason = { "it is no such file, incomplete or too long" };
    ok = ok && vocabulary_of_items(vocabulary, kind, count, items, &reason);
    free(items);
    return ok || sentence_write(sentence,
                                "%s: expected a vocabulary, as language_model prepare writes it: "
                                "%.200s",
                                path, reason.text);
}

/* ---------------------------------------------------------------------------- characters, words */

/* The next character's code, -1 at the end, or -2 for bytes that are not UTF-8. */
static int32_t next_character(Source *source)
{
    const int first = source_next(source);
    if (first < 0x80)
        return first;
    const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    int32_t code = first & (0x3f >> more);
    for (int i = 0; i < more; i++) {
        if ((source_peek(source) & 0xc0) != 0x80 || source_peek(source) < 0)
            return -2;
        code = code << 6 | (source_next(source) & 0x3f);
    }
    const bool ok = first >= 0xc0 && first < 0xf8 && character_length(code) == more + 1;
    return ok && code <= 0x10ffff ? code : -2;
}

static bool not_a_text(const Source *source, Sentence *sentence)
{
    return sentence_write(sentence,
                          "%s: the bytes before position %lld are not UTF-8; expected --tokens "
                          "bytes or pairs for such a text",
                          source_name(source), (long long)source_position(source));
}

/* Words are runs of one of these classes; a space begins a word. */
static int class_of(int byte)
{
    return byte >= 0x80 || isalpha(byte) ? 1 : isdigit(byte) ? 2 : isspace(byte) ? 3 : 4;
}

/* The bytes of the next word; returns their number, 0 at the end. */
static int next_word(Source *source, uint8_t word[MAX_WORD])
{
    int length = 0;
    for (int byte; length < MAX_WORD && (byte = source_peek(source)) >= 0; length++) {
        const int before = length > 0 ? word[length - 1] : ' ';
        const bool joined =
            before == ' ' ? class_of(byte) != 3 : class_of(byte) == class_of(before);
        if (length > 0 && (byte == ' ' || !joined))
            break;
        word[length] = (uint8_t)source_next(source);
    }
    return length;
}

/* ------------------------------------------------------------------------------------- learning */

/* Every word once, with the number of its occurrences; its tokens are bytes at first. */
typedef struct Word {
    int64_t first; /* in Words.tokens */
    int64_t count;
    int length;
} Word;

typedef struct Words {
    Word *words;
    int32_t *tokens;
    int64_t count, capacity, used, tokens_capacity;
    int64_t *table; /* open addressing: indices of words + 1 */
    uint64_t size;
} Words;

static void *grown(void *memory, int64_t *capacity, int64_t needed, size_t size)
{
    if (needed <= *capacity)
        return memory;
    *capacity = 2 * needed;
    memory = realloc(memory, (size_t)*capacity * size);
    if (!memory)
        fail(EXIT_FAILURE, "out of memory for the words of a text");
    return memory;
}

static int64_t *word_slot(const Words *words, const int32_t *tokens, int length)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (int i = 0; i < length; i++)
        hash = (hash ^ (uint64_t)tokens[i]) * 0x100000001b3u;
    for (uint64_t at = hash ^ hash >> 29;; at++) {
        int64_t *slot = &words->table[at & (words->size - 1)];
        const Word *word = *slot ? &words->words[*slot - 1] : NULL;
        if (!word || (word->length == length && !memcmp(words->tokens + word->first, tokens,
                                                        (size_t)length * sizeof *tokens)))
            return slot;
    }
}

static void words_grow(Words *words)
{
    words->size = words->size ? 2 * words->size : 1 << 12;
    free(words->table);
    words->table = allocate((int64_t)words->size, sizeof *words->table);
    for (int64_t i = 0; i < words->count; i++)
        *word_slot(words, words->tokens + words->words[i].first, words->words[i].length) = i + 1;
}

static Words words_of(Source *source)
{
    Words words = { 0 };
    uint8_t bytes[MAX_WORD];
    for (int length; (length = next_word(source, bytes)) > 0;) {
        int32_t tokens[MAX_WORD];
        for (int i = 0; i < length; i++)
            tokens[i] = bytes[i];
        if (2 * (uint64_t)words.count >= words.size)
            words_grow(&words);
        int64_t *slot = word_slot(&words, tokens, length);
        if (*slot == 0) {
            words.words = grown(words.words, &words.capacity, words.count + 1, sizeof(Word));
            words.tokens = grown(words.tokens, &words.tokens_capacity, words.used + length,
                                 sizeof *words.tokens);
            memcpy(words.tokens + words.used, tokens, (size_t)length * sizeof *tokens);
            words.words[words.count] = (Word){ .first = words.used, .length = length };
            words.used += length;
            *slot = ++words.count;
        }
        words.words[*slot - 1].count++;
    }
    return words;
}

static void count_pairs(const Words *words, const Word *word, PairTable *counts, int64_t sign)
{
    const int32_t *tokens = words->tokens + word->first;
    for (int i = 0; i + 1 < word->length; i++)
        pair_add(counts, pair_key(tokens[i], tokens[i + 1]), sign * word->count);
}

/* Joins a and b to the token wherever they meet in the tokens; returns their new number. */
static int join(int32_t *tokens, int length, int32_t a, int32_t b, int32_t token)
{
    int out = 0;
    for (int i = 0; i < length; i++, out++) {
        const bool meet = i + 1 < length && tokens[i] == a && tokens[i + 1] == b;
        tokens[out] = meet ? token : tokens[i];
        i += meet;
    }
    return out;
}

/* The most frequent pair, of equal ones the one of the smallest key; its value is 0 if there is
 * none. */
static Pair most_frequent(const PairTable *counts)
{
    Pair best = { 0 };
    for (uint64_t i = 0; i < counts->size; i++) {
        const Pair pair = counts->pairs[i];
        if (pair.value > best.value || (pair.value == best.value && pair.key < best.key))
            best = pair;
    }
    return best;
}

/* Fills items with merges until there are count tokens; returns how many there are. */
static int64_t learn_pairs(int32_t *items, int64_t count, Words *words)
{
    PairTable *counts = pairs_new(1 << 16);
    for (int64_t w = 0; w < words->count; w++)
        count_pairs(words, &words->words[w], counts, 1);
    int32_t token = BYTES;
    for (; token < count; token++) {
        const Pair best = most_frequent(counts);
        if (best.value < 2)
            break;
        const int32_t a = (int32_t)((best.key - 1) >> 16), b = (int32_t)((best.key - 1) & 0xffff);
        items[2 * (token - BYTES)] = a;
        items[2 * (token - BYTES) + 1] = b;
        for (int64_t w = 0; w < words->count; w++) {
            Word *word = &words->words[w];
            int32_t *tokens = words->tokens + word->first;
            bool meet = false;
            for (int i = 0; i + 1 < word->length; i++)
                meet |= tokens[i] == a && tokens[i + 1] == b;
            if (!meet)
                continue;
            count_pairs(words, word, counts, -1);
            word->length = join(tokens, word->length, a, b, token);
            count_pairs(words, word, counts, 1);
        }
    }
    pairs_free(counts);
    return token;
}

/* The characters of the source in ascending order; returns their number or, with the sentence, -1.
 */
static int64_t learn_characters(int32_t *items, Source *source, Sentence *sentence)
{
    enum { CODES = 0x110000 };
    bool *occurs = allocate(CODES, sizeof *occurs);
    int64_t count = 0;
    int32_t code;
    while ((code = next_character(source)) >= 0)
        occurs[code] = true;
    for (int32_t i = 0; i < CODES && count <= MAX_VOCABULARY; i++)
        if (occurs[i] && count++ < MAX_VOCABULARY)
            items[count - 1] = i;
    free(occurs);
    if (code == -2)
        not_a_text(source, sentence);
    return code == -2 ? -1 : count;
}

bool vocabulary_learn(Vocabulary *vocabulary, TokenKind kind, int64_t count, Source *source,
                      Sentence *sentence)
{
    int32_t *items = allocate(2 * MAX_VOCABULARY, sizeof *items);
    if (kind == TOKENS_BYTES)
        count = BYTES;
    if (kind == TOKENS_CHARACTERS)
        count = learn_characters(items, source, sentence);
    if (kind == TOKENS_PAIRS) {
        Words words = words_of(source);
        count = learn_pairs(items, count, &words);
        free(words.words);
        free(words.tokens);
        free(words.table);
    }
    Sentence reason;
    bool ok = count >= 0;
    if (ok && !vocabulary_of_items(vocabulary, kind, count, items, &reason))
        ok = sentence_write(sentence, "%s: %.200s", source_name(source), reason.text);
    free(items);
    return ok;
}

/* --------------------------------------------------------------------------- encoding, decoding */

static int encode_character(const Vocabulary *vocabulary, Source *source, int32_t *token,
                            Sentence *sentence)
{
    const int32_t code = next_character(source);
    if (code == -1)
        return 0;
    if (code == -2)
        return not_a_text(source, sentence) - 1;
    int64_t low = 0, high = vocabulary->count;
    while (low + 1 < high) { /* items[low] <= code < items[high], unless code < items[0] */
        const int64_t middle = (low + high) / 2;
        *(vocabulary->items[middle] <= code ? &low : &high) = middle;
    }
    *token = (int32_t)low;
    if (vocabulary->items[low] == code)
        return 1;
    return sentence_write(sentence,
                          "%s: the vocabulary has no character U+%04X, which ends at byte %lld; "
                          "expected characters of the text that it was made from",
                          source_name(source), (unsigned)code, (long long)source_position(source)) -
           1;
}

/* Merges in the order in which they were learned. */
static int encode_word(const Vocabulary *vocabulary, Source *source, int32_t tokens[MAX_WORD])
{
    uint8_t word[MAX_WORD];
    int length = next_word(source, word);
    for (int i = 0; i < length; i++)
        tokens[i] = word[i];
    for (;;) {
        int64_t first = MAX_VOCABULARY;
        for (int i = 0; i + 1 < length; i++) {
            const Pair *pair = pair_find(vocabulary->merges, pair_key(tokens[i], tokens[i + 1]));
            if (pair->key && pair->value < first)
                first = pair->value;
        }
        if (first == MAX_VOCABULARY)
            return length;
        const int32_t *pair = vocabulary->items + 2 * (first - BYTES);
        length = join(tokens, length, pair[0], pair[1], (int32_t)first);
    }
}

int vocabulary_encode(const Vocabulary *vocabulary, Source *source, int32_t tokens[MAX_WORD],
                      Sentence *sentence)
{
    if (vocabulary->kind == TOKENS_CHARACTERS)
        return encode_character(vocabulary, source, tokens, sentence);
    if (vocabulary->kind == TOKENS_PAIRS)
        return encode_word(vocabulary, source, tokens);
    tokens[0] = source_next(source);
    return tokens[0] >= 0;
}

void vocabulary_decode(const Vocabulary *vocabulary, int32_t token, uint8_t *bytes)
{
    if (vocabulary->kind == TOKENS_CHARACTERS) {
        const int32_t code = vocabulary->items[token];
        const int more = vocabulary->lengths[token] - 1;
        bytes[0] = (uint8_t)(more ? (~(0x7f >> more) & 0xff) | code >> 6 * more : code);
        for (int i = 1; i <= more; i++)
            bytes[i] = (uint8_t)(0x80 | (code >> 6 * (more - i) & 0x3f));
    } else if (token < BYTES) {
        bytes[0] = (uint8_t)token;
    } else {
        const int32_t *pair = vocabulary->items + 2 * ((int64_t)token - BYTES);
        vocabulary_decode(vocabulary, pair[0], bytes);
        vocabulary_decode(vocabulary, pair[1], bytes + vocabulary->lengths[pair[0]]);
    }
}
