/* Files of the image programs of examples/: reading IDX and CIFAR-10, writing PNG. */
#include "examples/images/cifar10.h"
#include "examples/images/idx.h"
#include "examples/images/image.h"
#include "tests/folder.h"

#include <errno.h>
#include <png.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static void begin(void)
{
    begin_folder("file");
}

/* mode: "wb", or "ab" to append another gzip member. */
static void write_gzipped(const char *name, const char *mode, const void *bytes, size_t size)
{
    gzFile file = gzopen(name, mode);
    ck_assert_ptr_nonnull(file);
    if (size > 0)
        ck_assert_int_eq(gzwrite(file, bytes, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(file), Z_OK);
}

/* --------------------------------------------------------------------------------- valid files */

enum { HEADER = 16, COUNT = 3, ROWS = 2, COLUMNS = 5, DATA = COUNT * ROWS * COLUMNS };
#define IMAGES_HEADER "\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x05"
#define LABELS_HEADER "\0\0\x08\x01\0\0\0\x07"

/* Three images of 2 x 5: 0, 1, 2, ... */
static const uint8_t *valid_images(void)
{
    static uint8_t bytes[HEADER + DATA];
    memcpy(bytes, IMAGES_HEADER, HEADER);
    for (int i = 0; i < DATA; i++)
        bytes[HEADER + i] = (uint8_t)i;
    return bytes;
}

static Idx read_valid(void)
{
    Idx idx;
    Sentence sentence;
    ck_assert_msg(idx_read(path, &idx, &sentence), "%s", sentence.text);
    return idx;
}

static void assert_valid_images(Idx idx)
{
    ck_assert_int_eq(idx.count, COUNT);
    ck_assert_int_eq(idx.rows, ROWS);
    ck_assert_int_eq(idx.columns, COLUMNS);
    ck_assert_mem_eq(idx.bytes, valid_images() + HEADER, DATA);
    idx_free(&idx);
    ck_assert_ptr_null(idx.bytes);
}

TEST(images_plain_and_gzipped)
{
    write_plain(path, valid_images(), HEADER + DATA);
    assert_valid_images(read_valid());
    write_gzipped(path, "wb", valid_images(), HEADER + DATA);
    assert_valid_images(read_valid());
}

/* More than the reader's buffer, and no multiple of it: 5000 images of 28 x 28. */
TEST(many_images)
{
    size_t data = (size_t)5000 * 28 * 28;
    uint8_t *bytes = malloc(HEADER + data);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, "\0\0\x08\x03\0\0\x13\x88\0\0\0\x1c\0\0\0\x1c", HEADER);
    for (size_t i = 0; i < data; i++)
        bytes[HEADER + i] = (uint8_t)(i * i >> 7);
    for (int gzipped = 0; gzipped < 2; gzipped++) {
        if (gzipped)
            write_gzipped(path, "wb", bytes, HEADER + data);
        else
            write_plain(path, bytes, HEADER + data);
        Idx idx = read_valid();
        ck_assert_int_eq(idx.count, 5000);
        ck_assert_int_eq(idx.rows * idx.columns, 28 * 28);
        ck_assert(memcmp(idx.bytes, bytes + HEADER, data) == 0);
        idx_free(&idx);
    }
    free(bytes);
}

static bool read_mnist(bool training, Idx *idx, Sentence *sentence)
{
    char *found = idx_find_mnist(folder, training, sentence);
    const bool ok = found && idx_read(found, idx, sentence);
    free(found);
    return ok;
}

/* Both names, with .gz and without; the name without is preferred, and one without a dot. */
TEST(mnist_by_its_names)
{
    static const char *const names[][2] = {
        { "t10k-images.idx3-ubyte", "train-images.idx3-ubyte" },
        { "t10k-images-idx3-ubyte", "train-images-idx3-ubyte" },
    };
    for (int i = 0; i < 4; i++) {
        const int training = i % 2;
        uint8_t bytes[] = "\0\0\x08\x03\0\0\0\1\0\0\0\1\0\0\0\1 ";
        for (int gzipped = 1; gzipped >= 0; gzipped--) {
            bytes[16] = (uint8_t)(2 * i + gzipped);
            Text name = text("%s/%s%s", folder, names[i / 2][training], gzipped ? ".gz" : "");
            if (gzipped)
                write_gzipped(name.text, "wb", bytes, 17);
            else
                write_plain(name.text, bytes, 17);
            Idx idx;
            Sentence sentence;
            ck_assert_msg(read_mnist(training, &idx, &sentence), "%s", sentence.text);
            ck_assert_int_eq(idx.count, 1);
            ck_assert_int_eq(idx.bytes[0], 2 * i + gzipped);
            idx_free(&idx);
        }
    }
}

/* --------------------------------------------------------------------------------------- damage */

/* Fails unless the file is refused with "PATH: " and this sentence, and idx is unchanged. */
static void assert_refused(const char *expected)
{
    Idx idx = { .count = 77 };
    Sentence sentence;
    ck_assert_msg(!idx_read(path, &idx, &sentence), "no error, expected \"%s\"", expected);
    ck_assert_str_eq(sentence.text, text("%s: %s", path, expected).text);
    ck_assert_int_eq(idx.count, 77);
    ck_assert_ptr_null(idx.bytes);
}

#define BYTES(text) text, sizeof text - 1
#define SIZES(axes)                                                                                \
    "its sizes are " axes "; expected 1 or more each, and 4294967296 bytes in all at most"
static const struct Damaged {
    const char *bytes;
    size_t size;
    const char *sentence;
} damaged[] = {
    { BYTES(""), "is empty; expected an IDX file of images" },
    { BYTES("\0\0\x08"), "ends after 3 bytes; expected a header of 16" },
    { BYTES("\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0"), "ends after 15 bytes; expected a header of 16" },
    { BYTES("\x89PNG\r\n"), "begins with 0x89504e47; expected 0x00000803, an IDX file of images" },
    { BYTES(LABELS_HEADER "1234567"),
      "begins with 0x00000801; expected 0x00000803, an IDX file of images" },
    { BYTES("\3\x08\0\0\3\0\0\0\2\0\0\0\5\0\0\0"),
      "begins with 0x03080000; expected 0x00000803, an IDX file of images" },
    { BYTES("\0\0\x08\3\0\0\0\1\0\0\0\0\0\0\0\1"), SIZES("1 x 0 x 1") },
    { BYTES("\0\0\x08\3\xff\xff\xff\xff\0\0\0\x1c\0\0\0\x1c"), SIZES("4294967295 x 28 x 28") },
    { BYTES("\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
      SIZES("4294967295 x 4294967295 x 4294967295") },
    { BYTES("\0\0\x08\3\x80\0\0\0\x80\0\0\0\0\0\0\4"), SIZES("2147483648 x 2147483648 x 4") },
    { BYTES("\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\2x"),
      "its data end after 1 bytes; expected 2 by its header" },
    { BYTES("\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\2xyz"),
      "continues after its data; expected 2 bytes of data by its header" },
};

TEST(damage_is_named)
{
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        write_plain(path, damaged[i].bytes, damaged[i].size);
        assert_refused(damaged[i].sentence);
        write_gzipped(path, "wb", damaged[i].bytes, damaged[i].size);
        assert_refused(damaged[i].sentence);
    }
}

/* A header may declare 4 GiB; memory is allocated as the data arrive. Here it may
 * grow by 64 MiB. */
TEST(claimed_sizes_allocate_nothing)
{
    write_plain(path, "\0\0\x08\3\xff\xff\xff\xff\0\0\0\1\0\0\0\1 ", 17);
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages = 0;
    ck_assert(statm != NULL && fscanf(statm, "%ld", &pages) == 1);
    fclose(statm);
    struct rlimit old, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &old), 0);
    limit =
        (struct rlimit){ (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64 << 20), old.rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    assert_refused("its data end after 1 bytes; expected 4294967295 by its header");
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &old), 0);
}

#define ZLIB_SAYS "expected gzipped data without damage, but zlib says: "
TEST(gzip_damage_is_named)
{
    write_gzipped(path, "wb", valid_images(), HEADER + DATA);
    size_t size;
    uint8_t *bytes = read_plain(path, &size);
    bytes[size - 8] ^= 1; /* first byte of the checksum; the length follows */
    write_plain(path, bytes, size);
    assert_refused(ZLIB_SAYS "incorrect data check");
    bytes[size - 8] ^= 1;
    bytes[size - 4] ^= 1;
    write_plain(path, bytes, size);
    assert_refused(ZLIB_SAYS "incorrect length check");
    bytes[size - 4] ^= 1;
    bytes[2] = 9; /* the method, which is always 8 */
    write_plain(path, bytes, size);
    assert_refused(ZLIB_SAYS "unknown compression method");
    bytes[2] = 8;
    write_plain(path, bytes, size - 1);
    assert_refused(ZLIB_SAYS "unexpected end of file");
    write_plain(path, bytes, size);
    write_gzipped(path, "ab", "more", 4);
    assert_refused("continues after its data; expected 30 bytes of data by its header");
    free(bytes);
}

#define OTHER_NAMES                                                                                \
    ", with or without .gz; expected the directory of the MNIST database of handwritten digits "   \
    "(LeCun, Cortes and Burges), whose files of images are usually named "                         \
    "train-images-idx3-ubyte and t10k-images-idx3-ubyte"
TEST(missing_files_are_named)
{
    Sentence sentence;
    ck_assert_ptr_null(idx_find_mnist(folder, true, &sentence));
    ck_assert_str_eq(sentence.text,
                     text("%s: there is no train-images-idx3-ubyte%s", folder, OTHER_NAMES).text);
    ck_assert_ptr_null(idx_find_mnist("/none", false, &sentence));
    ck_assert_str_eq(sentence.text,
                     text("/none: there is no t10k-images-idx3-ubyte%s", OTHER_NAMES).text);
}

TEST(special_files_are_named)
{
    snprintf(path, sizeof path, "%s/t10k-images-idx3-ubyte", folder);
    assert_refused(text("cannot be read: %s", strerror(ENOENT)).text);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    assert_refused("is a directory; expected an IDX file");
    Idx idx;
    Sentence sentence;
    ck_assert(!read_mnist(false, &idx, &sentence));
    ck_assert_str_eq(sentence.text, text("%s: is a directory; expected an IDX file", path).text);
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    assert_refused("is not a regular file; expected an IDX file");
    ck_assert_int_eq(unlink(path), 0);

    /* The superuser may read anything, and drops its rights for this. */
    write_plain(path, valid_images(), HEADER + DATA);
    uid_t user = geteuid();
    ck_assert_int_eq(chmod(path, 0), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert(user != 0 || seteuid(65534) == 0);
    assert_refused(text("cannot be read: %s", strerror(EACCES)).text);
    ck_assert(user != 0 || seteuid(user) == 0);
}

TEST(every_truncation_is_refused)
{
    for (int gzipped = 0; gzipped < 2; gzipped++) {
        if (gzipped)
            write_gzipped(path, "wb", valid_images(), HEADER + DATA);
        else
            write_plain(path, valid_images(), HEADER + DATA);
        size_t size;
        uint8_t *bytes = read_plain(path, &size);
        for (size_t length = 0; length < size; length++) {
            write_plain(path, bytes, length);
            Idx idx;
            Sentence sentence;
            ck_assert_msg(!idx_read(path, &idx, &sentence),
                          "the first %zu of %zu bytes were accepted", length, size);
            ck_assert_ptr_nonnull(strstr(sentence.text, path));
        }
        free(bytes);
    }
}

static size_t pick(Random *random, size_t below)
{
    return (size_t)random_integer(random, 0, (int64_t)below);
}

/* Writes the bytes with some of them changed; one file in four is also cut or extended. */
static void write_mutated(Random *random, const uint8_t *valid, size_t size)
{
    uint8_t bytes[256] = { 0 };
    ck_assert_uint_lt(size, sizeof bytes);
    memcpy(bytes, valid, size);
    for (size_t changes = 1 + pick(random, 4); changes > 0; changes--)
        bytes[pick(random, size)] ^= (uint8_t)(1 << pick(random, 8));
    write_plain(path, bytes, pick(random, 4) == 0 ? pick(random, sizeof bytes) : size);
}

/* Gzipped files: the original images, or an error. */
TEST(mutations_of_gzipped_files_are_found)
{
    write_gzipped(path, "wb", valid_images(), HEADER + DATA);
    size_t size;
    uint8_t *valid = read_plain(path, &size);
    Random random = random_new(1, random_stream("gzipped"));
    enum { TRIALS = 6000 };
    int accepted = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        write_mutated(&random, valid, size);
        Idx idx;
        Sentence sentence;
        if (idx_read(path, &idx, &sentence)) {
            assert_valid_images(idx);
            accepted++;
        } else {
            ck_assert_ptr_nonnull(strstr(sentence.text, path));
        }
    }
    ck_assert(accepted > 0 && accepted < TRIALS); /* gzip's date and similar fields may change */
    free(valid);
}

/* Plain files: all that the file declares, or an error. */
TEST(mutations_of_plain_files_are_survived)
{
    Random random = random_new(1, random_stream("plain"));
    enum { TRIALS = 6000 };
    int accepted = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        write_mutated(&random, valid_images(), HEADER + DATA);
        Idx idx;
        Sentence sentence;
        if (idx_read(path, &idx, &sentence)) {
            size_t size;
            uint8_t *bytes = read_plain(path, &size);
            ck_assert_uint_eq(size, (size_t)(HEADER + idx.count * idx.rows * idx.columns));
            ck_assert_mem_eq(idx.bytes, bytes + HEADER, size - HEADER);
            free(bytes);
            idx_free(&idx);
            accepted++;
        } else {
            ck_assert_ptr_nonnull(strstr(sentence.text, path));
        }
    }
    ck_assert(accepted > 0 && accepted < TRIALS);
}

/* ------------------------------------------------------------------------------------- CIFAR-10 */
enum { PLANE = 1024, RECORD = 1 + 3 * PLANE };

/* Records first, first + 1, ...: the label is the index mod 10, and the values of a channel at
 * place p are index + 100 channel + p mod 7. */
static const uint8_t *cifar10_records(int first, int count)
{
    static uint8_t bytes[20 * RECORD];
    for (int i = 0; i < count; i++)
        for (int k = 0; k < RECORD; k++)
            bytes[i * RECORD + k] =
                (uint8_t)(k == 0 ? (first + i) % 10
                                 : first + i + (k - 1) / PLANE * 100 + (k - 1) % PLANE % 7);
    return bytes;
}

static bool read_cifar10(bool training, Cifar10 *images, Sentence *sentence)
{
    glob_t files;
    if (!cifar10_find(folder, training, &files, sentence))
        return false;
    const bool ok = cifar10_read(&files, images, sentence);
    globfree(&files);
    return ok;
}

static void assert_cifar10(bool training, int first, int count)
{
    Cifar10 images;
    Sentence sentence;
    ck_assert_msg(read_cifar10(training, &images, &sentence), "%s", sentence.text);
    ck_assert_int_eq(images.count, count);
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < CIFAR10_BYTES; k++)
            ck_assert_int_eq(images.bytes[i * CIFAR10_BYTES + k],
                             (uint8_t)(first + i + k % 3 * 100 + k / 3 % 7));
    }
    cifar10_free(&images);
    ck_assert_ptr_null(images.bytes);
}

static void in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
}

/* All batches in the order of their names, gzipped or not; a gzipped copy is not read again. */
TEST(cifar10_by_its_names)
{
    in_folder("data_batch_1.bin");
    write_plain(path, cifar10_records(0, 7), 7 * RECORD);
    in_folder("data_batch_2.bin");
    write_plain(path, cifar10_records(7, 2), 2 * RECORD);
    in_folder("data_batch_2.bin.gz");
    write_gzipped(path, "wb", cifar10_records(7, 2), 2 * RECORD);
    in_folder("data_batch_3.bin.gz");
    write_gzipped(path, "wb", cifar10_records(9, 1), RECORD);
    in_folder("test_batch.bin.gz");
    write_gzipped(path, "wb", cifar10_records(30, 20), 20 * RECORD);
    assert_cifar10(true, 0, 10);
    assert_cifar10(false, 30, 20);
    files_in_folder(true);
    in_folder("train-2500.bin.gz");
    write_gzipped(path, "wb", cifar10_records(3, 4), 4 * RECORD);
    assert_cifar10(true, 3, 4);
}

static void assert_cifar10_refused(const char *sentence_after_path)
{
    Cifar10 images = { .count = -1 };
    Sentence sentence;
    ck_assert(!read_cifar10(false, &images, &sentence));
    ck_assert_str_eq(sentence.text, text("%s: %s", path, sentence_after_path).text);
    ck_assert_int_eq(images.count, -1);
}

TEST(damaged_files_of_cifar10_are_refused)
{
    in_folder("test_batch.bin");
    write_plain(path, "", 0);
    assert_cifar10_refused("ends after 0 bytes; expected one or more records of 3073");
    write_plain(path, cifar10_records(0, 3), 3 * RECORD - 1);
    assert_cifar10_refused("ends after 9218 bytes; expected one or more records of 3073");
    uint8_t *wrong = malloc(3 * RECORD);
    ck_assert_ptr_nonnull(wrong);
    memcpy(wrong, cifar10_records(0, 3), 3 * RECORD);
    wrong[2 * RECORD] = 10;
    write_plain(path, wrong, 3 * RECORD);
    assert_cifar10_refused("the label of image 2 is 10; expected 0 to 9");
    free(wrong);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    assert_cifar10_refused("is a directory; expected a file of CIFAR-10");
    ck_assert_int_eq(rmdir(path), 0);
    in_folder("test_batch.bin.gz");
    write_gzipped(path, "wb", cifar10_records(0, 3), 3 * RECORD);
    size_t size;
    uint8_t *bytes = read_plain(path, &size);
    write_plain(path, bytes, size - 5);
    free(bytes);
    assert_cifar10_refused(
        "expected gzipped data without damage, but zlib says: unexpected end of file");
}

TEST(missing_files_of_cifar10_are_named)
{
    for (int training = 0; training < 2; training++) {
        glob_t files;
        Sentence sentence;
        ck_assert(!cifar10_find("/no[n]e", training, &files, &sentence));
        ck_assert_str_eq(
            sentence.text,
            text("/no[n]e: there is no %s, with or without .gz; expected the directory "
                 "of CIFAR-10's binary files (Krizhevsky 2009), which are usually "
                 "named data_batch_1.bin to data_batch_5.bin and test_batch.bin",
                 training ? "data_batch_*.bin" : "test*.bin")
                .text);
    }
}

/* ------------------------------------------------------------------------------------------ PNG */

/* The gray bytes of a PNG; the caller frees them. */
static uint8_t *read_png(int64_t height, int64_t width, int64_t channels)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    ck_assert_msg(png_image_begin_read_from_file(&image, path), "%s", image.message);
    ck_assert_int_eq(image.height, height);
    ck_assert_int_eq(image.width, width);
    ck_assert_uint_eq(image.format, /* without alpha, palette, 16 bits */
                      channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB);
    uint8_t *pixels = malloc((size_t)(height * width * channels));
    ck_assert_ptr_nonnull(pixels);
    ck_assert_msg(png_image_finish_read(&image, NULL, pixels, 0, NULL), "%s", image.message);
    return pixels;
}

static void write_grid(ImageGrid grid)
{
    Sentence sentence;
    ck_assert_msg(image_write_png(path, grid, &sentence), "%s", sentence.text);
}

/* Writes the grid, reads it back and compares it with a picture drawn image by image. */
static void check_grid(ImageGrid grid)
{
    int64_t height = grid.rows * (grid.height * grid.scale + grid.margin) + grid.margin;
    int64_t width = grid.columns * (grid.width * grid.scale + grid.margin) + grid.margin;
    write_grid(grid);
    const size_t size = (size_t)(height * width * grid.channels);
    uint8_t *pixels = read_png(height, width, grid.channels), *drawn = malloc(size);
    ck_assert_ptr_nonnull(drawn);
    memset(drawn, grid.background, size);
    const uint8_t *pixel = grid.pixels;
    for (int64_t row = 0; row < grid.rows; row++)
        for (int64_t column = 0; column < grid.columns; column++)
            for (int64_t y = 0; y < grid.height; y++)
                for (int64_t x = 0; x < grid.width; x++, pixel += grid.channels)
                    for (int64_t i = 0; i < grid.scale * grid.scale; i++) {
                        int64_t top = grid.margin + row * (grid.height * grid.scale + grid.margin);
                        int64_t left =
                            grid.margin + column * (grid.width * grid.scale + grid.margin);
                        int64_t at = (top + y * grid.scale + i / grid.scale) * width + left +
                                     x * grid.scale + i % grid.scale;
                        memcpy(drawn + at * grid.channels, pixel, (size_t)grid.channels);
                    }
    ck_assert(memcmp(pixels, drawn, size) == 0);
    free(drawn);
    free(pixels);
}

/* 10000 random bytes. */
static const uint8_t *noise(void)
{
    static uint8_t bytes[10000];
    Random random = random_new(1, random_stream("noise"));
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_integer(&random, 0, 256);
    return bytes;
}

TEST(pictures_are_read_back)
{
    check_grid((ImageGrid){ 1, 1, 1, 1, 1, noise(), .scale = 1 });
    check_grid((ImageGrid){ 1, 1, 28, 28, 1, noise(), .scale = 1, .margin = 3, .background = 255 });
    check_grid((ImageGrid){ 3, 4, 28, 28, 1, noise(), .scale = 2, .margin = 2, .background = 128 });
    check_grid((ImageGrid){ 2, 5, 3, 7, 1, noise(), .scale = 3 });
    check_grid((ImageGrid){ 2, 5, 3, 7, 3, noise(), .scale = 2, .margin = 3, .background = 255 });
    check_grid((ImageGrid){ 5, 1, 2, 1, 1, noise(), .scale = 1, .margin = 10, .background = 9 });
    ck_assert_int_eq(files_in_folder(false), 1);
}

/* A picture has the permissions that umask allows, like other programs' files. */
TEST(pictures_may_be_read_by_others)
{
    mode_t old = umask(022);
    write_grid((ImageGrid){ 1, 1, 1, 1, 1, noise(), .scale = 1 });
    struct stat status;
    ck_assert_int_eq(stat(path, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0644);
    umask(old);
}

/* A path without a directory. */
TEST(a_picture_replaces_an_older_one)
{
    ck_assert_int_eq(chdir(folder), 0);
    strcpy(path, "picture.png");
    check_grid((ImageGrid){ 1, 2, 3, 4, 1, noise(), .scale = 1 });
    ck_assert_int_eq(chdir("/"), 0);
}

static void assert_picture_refused(ImageGrid grid, const char *expected)
{
    Sentence sentence;
    ck_assert(!image_write_png(path, grid, &sentence));
    ck_assert_str_eq(sentence.text, text("%s: %s", path, expected).text);
}

TEST(pictures_that_cannot_be_written)
{
    snprintf(path, sizeof path, "%s/none/picture.png", folder);
    ImageGrid small = { 1, 1, 2, 2, 1, noise(), .scale = 1 };
    assert_picture_refused(
        small, text("tensor_file_write: %s: cannot create a temporary file beside it: %s", path,
                    strerror(ENOENT))
                   .text);
    snprintf(path, sizeof path, "%s", folder);
    assert_picture_refused(
        small, text("tensor_file_write: %s: it exists and is not a regular file", path).text);
    ck_assert_int_eq(files_in_folder(false), 0);
}

/* A full disk: the process may write at most 4096 bytes per file. */
TEST(failing_write_leaves_the_old_picture)
{
    check_grid((ImageGrid){ 1, 1, 2, 2, 1, noise(), .scale = 1 });
    size_t before, after;
    uint8_t *old_bytes = read_plain(path, &before);
    struct rlimit old, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){ .rlim_cur = 4096, .rlim_max = old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_picture_refused(
        (ImageGrid){ 1, 1, 100, 100, 1, noise(), .scale = 1 },
        text("tensor_file_write: %s: cannot write: %s", path, strerror(EFBIG)).text);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    uint8_t *new_bytes = read_plain(path, &after);
    ck_assert_uint_eq(before, after);
    ck_assert_mem_eq(old_bytes, new_bytes, before);
    ck_assert_int_eq(files_in_folder(false), 1);
    free(old_bytes);
    free(new_bytes);
}

TEST(invalid_grids_are_refused)
{
#define NO_PICTURE(sizes) sizes ": expected a picture of 1 to 1000000 pixels per side"
    assert_picture_refused((ImageGrid){ 0, 1, 2, 3, 1, noise(), .scale = 1 },
                           NO_PICTURE("0 x 1 images of 2 x 3, scaled by 1, with margins of 0"));
    assert_picture_refused((ImageGrid){ 1, 1, 2, 3, 2, noise(), .scale = 1 },
                           "channels is 2: expected 1 or 3");
    assert_picture_refused((ImageGrid){ 1, 1, 2, 3, 1, noise(), .scale = 0 },
                           NO_PICTURE("1 x 1 images of 2 x 3, scaled by 0, with margins of 0"));
    assert_picture_refused((ImageGrid){ 1, 1, 2, 3, 1, noise(), .scale = 1, .margin = -1 },
                           NO_PICTURE("1 x 1 images of 2 x 3, scaled by 1, with margins of -1"));
    assert_picture_refused(
        (ImageGrid){ 1, 1, 1, 1, 1, noise(), .scale = 1000001 },
        NO_PICTURE("1 x 1 images of 1 x 1, scaled by 1000001, with margins of 0"));
    assert_picture_refused(
        (ImageGrid){ 1, 100, 1, 100, 1, noise(), .scale = 101 },
        NO_PICTURE("1 x 100 images of 1 x 100, scaled by 101, with margins of 0"));
    assert_picture_refused(
        (ImageGrid){ INT64_MAX, 1, INT64_MAX, 1, 1, noise(), .scale = INT64_MAX },
        NO_PICTURE("9223372036854775807 x 1 images of 9223372036854775807 x 1, scaled by "
                   "9223372036854775807, with margins of 0"));
}

int main(void)
{
    return test_main("pictures", begin, end_folder);
}
