/* examples/language_model: vocabularies, and streams of text. */
#include "examples/language_model/tokens.h"
#include "tests/language_model.h"

/* --------------------------------------------------------------------------------- vocabularies */

static Vocabulary learned(TokenKind kind, int64_t count, const char *text)
{
    Vocabulary vocabulary;
    Sentence sentence = { "" };
    Source *source = source_of_string(text);
    ck_assert_msg(vocabulary_learn(&vocabulary, kind, count, source, &sentence), "%s",
                  sentence.text);
    ck_assert(source_close(source, &sentence));
    return vocabulary;
}

/* The tokens of the text; asserts that they decode to it. */
static int64_t round_trip(const Vocabulary *vocabulary, const char *text, int32_t *tokens)
{
    Sentence sentence = { "" };
    Source *source = source_of_string(text);
    int64_t count = 0;
    for (int got; (got = vocabulary_encode(vocabulary, source, tokens + count, &sentence)) != 0;) {
        ck_assert_msg(got > 0, "%s", sentence.text);
        count += got;
    }
    ck_assert(source_close(source, &sentence));
    char *decoded = calloc(strlen(text) + MAX_WORD + 1, 1);
    size_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        vocabulary_decode(vocabulary, tokens[i], (uint8_t *)decoded + length);
        length += (size_t)vocabulary->lengths[tokens[i]];
        decoded[length] = 0;
        ck_assert_uint_le(length, strlen(text));
    }
    ck_assert_str_eq(decoded, text);
    free(decoded);
    return count;
}

/* low occurs five times and lowest twice, so l o, lo w and low e s t are joined in this order. */
TEST(pairs_are_merged_by_their_frequency)
{
    Vocabulary vocabulary = learned(TOKENS_PAIRS, 262, "low low low lowest lowest newer");
    ck_assert_int_eq(vocabulary.count, 262);
    int32_t tokens[128];
    static const char *const expected[] = { "lo", "low", " low" };
    for (int i = 0; i < 3; i++) {
        uint8_t bytes[MAX_WORD + 1] = { 0 };
        vocabulary_decode(&vocabulary, BYTES + i, bytes);
        ck_assert_str_eq((const char *)bytes, expected[i]);
    }
    ck_assert_int_eq(round_trip(&vocabulary, " low low", tokens), 2);
    ck_assert(tokens[0] == 258 && tokens[1] == 258);
    vocabulary_free(&vocabulary);
}

/* A text without repetition has no pair to join; a vocabulary may be smaller than requested. */
TEST(merges_end_when_no_pair_repeats)
{
    Vocabulary vocabulary = learned(TOKENS_PAIRS, 1000, "abab");
    ck_assert_int_eq(vocabulary.count, 257); /* ab; ab ab occurs once */
    vocabulary_free(&vocabulary);
}

TEST(tokens_decode_to_their_text)
{
    static const char text[] =
        "Fish & chips: 3.50 pounds,\n\n  na\xc3\xafve caf\xc3\xa9s \xe2\x82\xac"
        "7 \xf0\x9f\x90\x9f 1000 1000 cafes, aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.";
    int32_t tokens[sizeof text];
    int64_t counts[3];
    for (int kind = TOKENS_BYTES; kind <= TOKENS_PAIRS; kind++) {
        Vocabulary vocabulary = learned((TokenKind)kind, 300, text);
        counts[kind] = round_trip(&vocabulary, text, tokens);
        Sentence sentence = { "" };
        Vocabulary again;
        ck_assert(vocabulary_save(&vocabulary, path_of("vocabulary")));
        ck_assert_msg(vocabulary_load(&again, path_of("vocabulary"), &sentence), "%s",
                      sentence.text);
        ck_assert_int_eq(again.count, vocabulary.count);
        ck_assert_int_eq(round_trip(&again, text, tokens), counts[kind]);
        vocabulary_free(&again);
        vocabulary_free(&vocabulary);
    }
    ck_assert_int_eq(counts[TOKENS_BYTES], (int64_t)sizeof text - 1);
    ck_assert_int_eq(counts[TOKENS_CHARACTERS], (int64_t)sizeof text - 1 - 7);
    ck_assert_int_lt(counts[TOKENS_PAIRS], counts[TOKENS_CHARACTERS]);
}

static void assert_refuses(const char *vocabulary, const char *sentence)
{
    Vocabulary loaded;
    Sentence found = { "" };
    write_file("bad", vocabulary, strlen(vocabulary));
    ck_assert_msg(!vocabulary_load(&loaded, path_of("bad"), &found), "%s", vocabulary);
    ck_assert_msg(strstr(found.text, sentence) != NULL, "%s", found.text);
}

TEST(bad_vocabularies_are_refused)
{
    assert_refuses("tapegrad vocabulary bytes 300\n", "300 tokens, expected 256 to 256");
    assert_refuses("tapegrad vocabulary bytes 255\n", "255 tokens, expected 256 to 256");
    assert_refuses("tapegrad vocabulary pairs 258\n97 98\n97 98\n",
                   "tokens before 257 join 97 and 98 too");
    assert_refuses("tapegrad vocabulary pairs 257\n97 256\n", "item 1 of pairs is 256");
    assert_refuses("tapegrad vocabulary pairs 257\n97 98\n97 99\n", "incomplete or too long");
    assert_refuses("tapegrad vocabulary pairs 257\n97\n", "incomplete or too long");
    assert_refuses("tapegrad vocabulary characters 2\n98\n97\n", "item 1 of characters is 97");
    assert_refuses("tapegrad vocabulary words 2\n", "incomplete or too long");
    assert_refuses("tapegrad vocabulary characters 2\n97\n4294967394\n", "incomplete or too long");
}

/* Cut inside its last number, or before the end of the line, which says that the number is whole.
 */
TEST(cut_vocabularies_are_refused)
{
    static const char *const whole[] = { "tapegrad vocabulary pairs 257\n97 116\n",
                                         "tapegrad vocabulary characters 2\n97\n116\n" };
    for (int i = 0; i < 2; i++) {
        char cut[64];
        strcpy(cut, whole[i]);
        for (size_t length = strlen(cut) - 1; length > 0; length--) {
            cut[length] = 0;
            assert_refuses(cut, "expected a vocabulary, as language_model prepare writes it: ");
        }
    }
}

/* -------------------------------------------------------------------------------------- streams */

/* A gzipped text that spans many buffers, with words across their ends. */
TEST(gzipped_texts_have_the_tokens_of_plain_ones)
{
    enum { SIZE = 300000 };
    char *bytes = malloc(SIZE + 1);
    for (int i = 0; i < SIZE; i++)
        bytes[i] = "the cat sat on the mat, and a dog. "[(i * 7 / 5 + i / 1000) % 35];
    bytes[SIZE] = 0;
    write_file("long", bytes, SIZE);
    char command[512];
    snprintf(command, sizeof command, "gzip -kf '%s/long'", directory);
    ck_assert_int_eq(system(command), 0);
    Vocabulary vocabulary = learned(TOKENS_PAIRS, 300, bytes);
    Tokens plain, gzipped;
    Sentence sentence = { "" };
    ck_assert(tokens_read(&plain, &vocabulary, path_of("long"), &sentence));
    ck_assert(tokens_read(&gzipped, &vocabulary, path_of("long.gz"), &sentence));
    ck_assert_int_eq(plain.count, gzipped.count);
    ck_assert(memcmp(plain.data, gzipped.data, (size_t)plain.count * sizeof *plain.data) == 0);
    int32_t *tokens = malloc(SIZE * sizeof *tokens);
    ck_assert_int_eq(round_trip(&vocabulary, bytes, tokens), plain.count);
    for (int64_t i = 0; i < plain.count; i++)
        ck_assert_int_eq(tokens[i], plain.data[i]);
    tokens_free(&plain);
    tokens_free(&gzipped);
    vocabulary_free(&vocabulary);
    free(tokens);
    free(bytes);
}

int main(void)
{
    return run_program_tests("vocabulary", setup);
}
