/* Vocabularies: how a text becomes tokens, and tokens become text.
 *   bytes       a token per byte
 *   characters  a token per Unicode character (UTF-8) of the text that the vocabulary was made from
 *   pairs       byte-pair encoding (Sennrich, Haddow and Birch 2016): from bytes on, the most
 *               frequent pair of adjacent tokens becomes a new token, again and again. Pairs do not
 *               cross words: a word is a run of letters, of digits, of white space or of other
 *               bytes, with the space before it. */
#ifndef TAPEGRAD_LANGUAGE_MODEL_VOCABULARY_H
#define TAPEGRAD_LANGUAGE_MODEL_VOCABULARY_H

#include "examples/language_model/source.h"

typedef enum { TOKENS_BYTES, TOKENS_CHARACTERS, TOKENS_PAIRS } TokenKind;
extern const char *const token_kind_names[]; /* by TokenKind */

enum {
    BYTES = 256,
    MAX_VOCABULARY = 65536, /* a token takes two bytes in the file of Tokens */
    MAX_WORD = 64,          /* bytes; longer words are split */
};

typedef struct PairTable PairTable;

typedef struct Vocabulary {
    TokenKind kind;
    int64_t count;     /* of tokens */
    int32_t *items;    /* characters: [count], ascending; pairs: [count - BYTES, 2], the tokens that
                        * token BYTES + i joins; bytes: NULL */
    int32_t *lengths;  /* [count]: the bytes of each token */
    PairTable *merges; /* of pairs: the token that joins two */
} Vocabulary;

/* The number of items of a vocabulary of this kind with count tokens. */
int64_t vocabulary_items(TokenKind kind, int64_t count);

/* From its items, which are copied; the sentence names the first bad one. */
bool vocabulary_of_items(Vocabulary *vocabulary, TokenKind kind, int64_t count,
                         const int32_t *items, Sentence *sentence);
void vocabulary_free(Vocabulary *vocabulary);

/* Learns from all of the source: the characters in it; or merges until there are count tokens or no
 * pair occurs twice. */
bool vocabulary_learn(Vocabulary *vocabulary, TokenKind kind, int64_t count, Source *source,
                      Sentence *sentence);

/* A text file: "tapegrad vocabulary KIND COUNT", then a line per item: a character's code, or the
 * two tokens that are joined. vocabulary_save returns false, with tapegrad_error(), on failure. */
bool vocabulary_save(const Vocabulary *vocabulary, const char *path);
bool vocabulary_load(Vocabulary *vocabulary, const char *path, Sentence *sentence);

/* The tokens of the next byte, character or word; returns their number, 0 at the end, or -1 with
 * the sentence for a character that the vocabulary lacks. */
int vocabulary_encode(const Vocabulary *vocabulary, Source *source, int32_t tokens[MAX_WORD],
                      Sentence *sentence);

/* The bytes of a token, of which there are lengths[token] <= MAX_WORD. */
void vocabulary_decode(const Vocabulary *vocabulary, int32_t token, uint8_t *bytes);

#endif
