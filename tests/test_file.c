#include "tests/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------- damaged files */
#define FILE_NAME "file.safetensors"

static void begin(void)
{
    begin_folder(FILE_NAME);
}

/* Writes a header of this length, then data_bytes bytes of data: 0, 1, 2, ... */
static void write_file(const char *header, size_t length, size_t data_bytes)
{
    unsigned char *bytes = malloc(8 + length + data_bytes);
    ck_assert_ptr_nonnull(bytes);
    uint64_t field = length;
    memcpy(bytes, &field, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    write_plain(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

static TensorFile *open_file(void)
{
    TensorFile *file = tensor_file_open(path);
    ck_assert_msg(file != NULL, "%s", tapegrad_error());
    return file;
}

/* Fails unless the last error is "FUNCTION: PATH: " and this sentence. */
static void assert_error(const char *function, const char *expected)
{
    ck_assert_str_eq(tapegrad_error(), text("%s: %s: %s", function, path, expected).text);
}

static void assert_refused(const char *expected)
{
    ck_assert_msg(!tensor_file_open(path), "no error, expected \"%s\"", expected);
    assert_error("tensor_file_open", expected);
}

static void assert_save_refused(const FileEntry *entries, int entry_count,
                                const FileMetadata *metadata, int metadata_count,
                                const char *expected)
{
    ck_assert(!tensor_file_save(entries, entry_count, metadata, metadata_count, path));
    assert_error("tensor_file_save", expected);
}

/* The same for a path that cannot be written, as tensor_file_can_save reports before the work. */
static void assert_place_refused(const char *expected)
{
    const float one = 1;
    const FileEntry entry = { "x", FILE_F32, shape_scalar(), &one };
    assert_save_refused(&entry, 1, NULL, 0, expected);
    ck_assert(!tensor_file_can_save(path));
    assert_error("tensor_file_can_save", expected);
    ck_assert(!tensor_file_write(path, "x", 1));
    assert_error("tensor_file_write", expected);
}

/* One entry, "x", of `count` doubles that are all `value`. */
static bool save_constant(double value, int64_t count)
{
    double *data = malloc((size_t)count * sizeof *data);
    ck_assert_ptr_nonnull(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = value;
    FileEntry entry = { "x", FILE_F64, shape(count), data };
    bool ok = tensor_file_save(&entry, 1, NULL, 0, path);
    free(data);
    return ok;
}

/* Fails unless the folder holds what save_constant wrote, and `files` files in all. */
static void assert_constant(double value, int64_t count, int files)
{
    TensorFile *file = open_file();
    Real *data = malloc((size_t)count * sizeof *data);
    ck_assert_ptr_nonnull(data);
    ck_assert_msg(tensor_file_read(file, "x", shape(count), data), "%s", tapegrad_error());
    for (int64_t i = 0; i < count; i++)
        if ((double)data[i] != value)
            ck_abort_msg("element %lld is %g, expected %g", (long long)i, (double)data[i], value);
    free(data);
    tensor_file_close(file);
    ck_assert_int_eq(files_in_folder(false), files);
}

/* ---------------------------------------------------------------------------------- round trips */

/* The format's names, in the order of FileType, and bits per element. */
static const struct {
    const char *name;
    size_t bits;
} types[FILE_TYPES] = { { "F32", 32 },        { "F64", 64 },    { "I32", 32 },
                        { "I64", 64 },        { "F16", 16 },    { "BF16", 16 },
                        { "BOOL", 8 },        { "U8", 8 },      { "I8", 8 },
                        { "U16", 16 },        { "I16", 16 },    { "U32", 32 },
                        { "U64", 64 },        { "C64", 64 },    { "F8_E5M2", 8 },
                        { "F8_E4M3", 8 },     { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 },
                        { "F8_E5M2FNUZ", 8 }, { "F6_E2M3", 6 }, { "F6_E3M2", 6 },
                        { "F4", 4 } };
enum { F6_E2M3 = FILE_TYPES - 3 }; /* a scalar of the types before takes whole bytes */

TEST(all_types_and_ranks)
{
    const Shape shapes[] = { shape(4),
                             shape(1, 8),
                             shape(4, 1, 2),
                             shape(2, 3, 1, 2),
                             { .rank = 2, .size = { 3, 0 } },
                             shape_scalar() };
    enum { SHAPES = sizeof shapes / sizeof *shapes, COUNT = (SHAPES - 1) * FILE_TYPES + F6_E2M3 };
    static Text names[COUNT];
    static unsigned char bytes[COUNT][96];
    FileEntry entries[COUNT];
    for (int i = 0; i < COUNT; i++) {
        for (int j = 0; j < 96; j++)
            bytes[i][j] = (unsigned char)(7 * i + 13 * j);
        names[i] = text("%c%d", 'z' - i % 26, i);
        entries[i] = (FileEntry){ names[i].text, (FileType)(i % FILE_TYPES), shapes[i / FILE_TYPES],
                                  bytes[i] };
    }
    ck_assert_msg(tensor_file_save(entries, COUNT, NULL, 0, path), "%s", tapegrad_error());
    size_t size;
    char *header = (char *)read_plain(path, &size) + 8; /* ends before the first zero of the data */
    TensorFile *file = open_file();
    ck_assert_int_eq(tensor_file_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        const FileEntry *found = tensor_file_find(file, names[i].text);
        ck_assert_ptr_nonnull(found);
        ck_assert_int_eq(found->type, entries[i].type);
        ck_assert(shape_equal(found->shape, entries[i].shape));
        const Text declared =
            text("\"%s\":{\"dtype\":\"%s\"", names[i].text, types[found->type].name);
        ck_assert_ptr_nonnull(strstr(header, declared.text));
        const size_t bits = (size_t)shape_count(found->shape) * types[found->type].bits;
        unsigned char read[96] = { 0 }; /* bytes that the type does not have stay 0 */
        ck_assert(tensor_file_read_bytes(file, names[i].text, read));
        memset(bytes[i] + bits / 8, 0, 96 - bits / 8);
        ck_assert_mem_eq(read, bytes[i], 96);
        ck_assert_str_eq(tensor_file_entry(file, i)->name, names[i].text);
        ck_assert_ptr_null(found->data);
    }
    ck_assert_ptr_null(tensor_file_find(file, "none"));
    ck_assert_ptr_null(tensor_file_find(file, ""));
    assert_raises("tensor_file_find: the name is NULL", tensor_file_find(file, NULL));
    assert_raises("tensor_file_metadata: the name is NULL", tensor_file_metadata(file, NULL));
    assert_raises("tensor_file_read: the name is NULL",
                  ck_assert(tensor_file_read(file, NULL, shape(1), &(Real){ 0 })));
    ck_assert(!tensor_file_read_bytes(file, "none", bytes));
    assert_error("tensor_file_read_bytes", "there is no entry \"none\"");
    tensor_file_close(file);
    free(header - 8);
}

/* The exact bytes, so that other programs can read them. */
TEST(bytes_on_the_disk)
{
    const float x[] = { 1, -2 };
    const int64_t n[] = { 258 };
    const FileEntry entries[] = { { "x", FILE_F32, shape(2, 1), x },
                                  { "n", FILE_I64, shape_scalar(), n } };
    const FileMetadata metadata = { "step", "7" };
    ck_assert(tensor_file_save(entries, 2, &metadata, 1, path));
    static const char expected[] =
        "\x90\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"step\":\"7\"},"
        "\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[8,16]}}       "
        "\0\0\x80\x3f\0\0\0\xc0\x02\x01\0\0\0\0\0\0";
    size_t size;
    unsigned char *bytes = read_plain(path, &size);
    ck_assert_uint_eq(size, sizeof expected - 1);
    ck_assert_mem_eq(bytes, expected, size);
    free(bytes);
}

TEST(no_entries)
{
    ck_assert(tensor_file_save(NULL, 0, NULL, 0, path));
    TensorFile *file = open_file();
    ck_assert_int_eq(tensor_file_count(file), 0);
    ck_assert_ptr_null(tensor_file_find(file, "x"));
    ck_assert_ptr_null(tensor_file_metadata(file, "x"));
    tensor_file_close(file);
    write_file("{\"__metadata__\":{}}", 19, 0);
    file = open_file();
    ck_assert_int_eq(tensor_file_count(file), 0);
    ck_assert_ptr_null(tensor_file_metadata(file, "x"));
    tensor_file_close(file);
    tensor_file_close(NULL);
}

TEST(metadata_and_odd_names)
{
    const FileMetadata metadata[] = { { "step", "1200" },
                                      { "quote \" and \\", "line\nline\ttab\x01" },
                                      { "", "the empty key" },
                                      { "empty", "" },
                                      { "gr\xc3\xbc\xc3\x9f", "\xe2\x82\xac \xf0\x9f\x98\x80" } };
    const float one = 1;
    const FileEntry entries[] = { { "caf\xc3\xa9 \"\\/\n", FILE_F32, shape_scalar(), &one },
                                  { "dtype", FILE_F32, shape_scalar(), &one } };
    ck_assert(tensor_file_save(entries, 2, metadata, 5, path));
    TensorFile *file = open_file();
    for (int i = 0; i < 5; i++)
        ck_assert_str_eq(tensor_file_metadata(file, metadata[i].key), metadata[i].value);
    ck_assert_ptr_null(tensor_file_metadata(file, "steps"));
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_nonnull(tensor_file_find(file, entries[i].name));
    tensor_file_close(file);
}

TEST(many_entries)
{
    enum { COUNT = 3000 };
    static Text names[COUNT];
    static int32_t values[COUNT];
    static FileEntry entries[COUNT];
    for (int i = 0; i < COUNT; i++) {
        names[i] = text("layers.%d.weight", i * 7919 % COUNT);
        values[i] = i;
        entries[i] = (FileEntry){ names[i].text, FILE_I32, shape(1), &values[i] };
    }
    ck_assert(tensor_file_save(entries, COUNT, NULL, 0, path));
    TensorFile *file = open_file();
    for (int32_t i = 0, value; i < COUNT; i++) {
        ck_assert(tensor_file_read_i32(file, names[i].text, shape(1), &value));
        ck_assert_int_eq(value, i);
    }
    tensor_file_close(file);
}

/* Features that other programs may use and ours does not: spaces, escapes, entries in another order
 * than their data, unaligned data. */
TEST(files_of_others)
{
    static const char header[] =
        "{ \"b\\u00e9\" :\t{\"shape\": [1, 2],\r\n\"data_offsets\":[4,20],\"dtype\":\"F64\"},"
        "\"a\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]}} ";
    write_file(header, sizeof header - 1, 20);
    TensorFile *file = open_file();
    ck_assert_int_eq(tensor_file_count(file), 2);
    ck_assert_str_eq(tensor_file_entry(file, 0)->name, "a");
    ck_assert_str_eq(tensor_file_entry(file, 1)->name, "b\xc3\xa9");
    int32_t integer;
    ck_assert(tensor_file_read_i32(file, "a", shape_scalar(), &integer));
    ck_assert_int_eq(integer, 0x03020100);
    Real numbers[2];
    ck_assert(tensor_file_read(file, "b\xc3\xa9", shape(1, 2), numbers));
    uint64_t bits = 0x0b0a090807060504;
    double first;
    memcpy(&first, &bits, 8);
    ck_assert(numbers[0] == (Real)first);
    tensor_file_close(file);
}

/* Another program wrote the project's reference vectors. */
TEST(reference_vectors_open)
{
    DIR *directory = opendir("tests/data");
    ck_assert_ptr_nonnull(directory);
    int opened = 0;
    for (struct dirent *item; (item = readdir(directory)) != NULL;) {
        if (strstr(item->d_name, ".safetensors") == NULL)
            continue;
        TensorFile *file = tensor_file_open(text("tests/data/%s", item->d_name).text);
        ck_assert_msg(file != NULL, "%s", tapegrad_error());
        ck_assert_int_gt(tensor_file_count(file), 0);
        tensor_file_close(file);
        opened++;
    }
    closedir(directory);
    ck_assert_int_gt(opened, 0);
}

/* ---------------------------------------------------------------------------------- conversions */

static TensorFile *conversions(void)
{
    static const float f32[] = { 0.5f, -INFINITY };
    static const double f64[] = { 1.0 / 3, NAN }, wide[] = { 1, 1e300 };
    static const int32_t i32[] = { INT32_MIN, INT32_MAX };
    static const int64_t i64[] = { INT32_MIN, INT32_MAX }, high[] = { 5, (int64_t)INT32_MAX + 1 },
                         low[] = { (int64_t)INT32_MIN - 1, 5 };
    /* 1, -2, the smallest and the largest subnormal, the largest, infinity, NaN; 1/3 rounded */
    static const uint16_t f16[] = {
        0x3c00, 0xc000, 0x0001, 0x83ff, 0x7bff, 0xfc00, 0x7e00, 0x3555
    };
    static const uint16_t bf16[] = { 0x3f80, 0xc000, 0x0001, 0xff80, 0x7fc0, 0x3eab };
    const FileEntry entries[] = {
        { "f16", FILE_F16, shape(8), f16 },   { "bf16", FILE_BF16, shape(6), bf16 },
        { "f32", FILE_F32, shape(2), f32 },   { "f64", FILE_F64, shape(2), f64 },
        { "wide", FILE_F64, shape(2), wide }, { "i32", FILE_I32, shape(2), i32 },
        { "i64", FILE_I64, shape(2), i64 },   { "high", FILE_I64, shape(2), high },
        { "low", FILE_I64, shape(2), low }
    };
    ck_assert(tensor_file_save(entries, 9, NULL, 0, path));
    return open_file();
}

TEST(conversions_that_fit)
{
    TensorFile *file = conversions();
    Real numbers[2];
    ck_assert(tensor_file_read(file, "f32", shape(2), numbers));
    ck_assert(numbers[0] == (Real)0.5 && isinf(numbers[1]) && numbers[1] < 0);
    ck_assert(tensor_file_read(file, "f64", shape(2), numbers));
    ck_assert(numbers[0] == (Real)(1.0 / 3) && isnan(numbers[1]));
    const double f16[] = {
        1, -2, ldexp(1, -24), -ldexp(1023, -24), 65504, -INFINITY, 0, 0x555p-12
    };
    const double bf16[] = { 1, -2, ldexp(1, -133), -INFINITY, 0, 0xabp-9 };
    Real halves[8];
    ck_assert(tensor_file_read(file, "f16", shape(8), halves));
    for (int i = 0; i < 8; i++)
        ck_assert(i == 6 ? isnan(halves[i]) : halves[i] == (Real)f16[i]);
    ck_assert(tensor_file_read(file, "bf16", shape(6), halves));
    for (int i = 0; i < 6; i++)
        ck_assert(i == 4 ? isnan(halves[i]) : halves[i] == (Real)bf16[i]);
    int32_t integers[2];
    ck_assert(tensor_file_read_i32(file, "i32", shape(2), integers));
    ck_assert(integers[0] == INT32_MIN && integers[1] == INT32_MAX);
    integers[0] = integers[1] = 0;
    ck_assert(tensor_file_read_i32(file, "i64", shape(2), integers));
    ck_assert(integers[0] == INT32_MIN && integers[1] == INT32_MAX);
    tensor_file_close(file);
}

#define READ "tensor_file_read"
#define READ_I32 "tensor_file_read_i32"
#define PAIR                                                                                       \
    {                                                                                              \
        1,                                                                                         \
        {                                                                                          \
            2                                                                                      \
        }                                                                                          \
    }

TEST(conversions_that_do_not_fit)
{
    static const struct {
        const char *function, *name;
        Shape shape;
        const char *sentence;
    } cases[] = {
        { READ, "i64", PAIR, "entry \"i64\" is of type I64, expected F16, BF16, F32 or F64" },
        { READ_I32, "f32", PAIR, "entry \"f32\" is of type F32, expected I32 or I64" },
        { READ, "f64", { 2, { 2, 1 } }, "entry \"f64\" has shape [2], expected [2,1]" },
        { READ_I32, "i32", { 0 }, "entry \"i32\" has shape [2], expected []" },
        { READ_I32, "high", PAIR,
          "entry \"high\": element 1 is 2147483648, which does not fit 32 bits" },
        { READ_I32, "low", PAIR,
          "entry \"low\": element 0 is -2147483649, which does not fit 32 bits" },
        { READ, "none", PAIR, "there is no entry \"none\"" },
        { READ_I32, "F32", PAIR, "there is no entry \"F32\"" },
#ifndef TAPEGRAD_DOUBLE
        { READ, "wide", PAIR, "entry \"wide\": element 1 is 1e+300, which does not fit a float" },
#endif
    };
    TensorFile *file = conversions();
    Real numbers[2];
    int32_t integers[2];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ck_assert(!(strcmp(cases[c].function, READ) == 0
                        ? tensor_file_read(file, cases[c].name, cases[c].shape, numbers)
                        : tensor_file_read_i32(file, cases[c].name, cases[c].shape, integers)));
        assert_error(cases[c].function, cases[c].sentence);
    }
#ifdef TAPEGRAD_DOUBLE
    ck_assert(tensor_file_read(file, "wide", shape(2), numbers) && numbers[1] == 1e300);
#endif
    const Shape deep = { .rank = 6 };
    assert_raises("shape: 6 sizes were given, expected at most 4",
                  ck_assert(tensor_file_read(file, "f64", deep, numbers)));
    assert_raises("shape: 6 sizes were given, expected at most 4",
                  ck_assert(tensor_file_read_i32(file, "i32", deep, integers)));
    for (int index = -1; index < 10; index += 10)
        assert_raises(
            text("tensor_file_entry: %s: there is no entry %d; there are 9", path, index).text,
            tensor_file_entry(file, index));
    tensor_file_close(file);
}

/* --------------------------------------------------------------------------------------- saving */

TEST(saving_replaces)
{
    ck_assert(save_constant(1, 1000));
    assert_constant(1, 1000, 1);
    ck_assert(save_constant(2, 10));
    assert_constant(2, 10, 1);
    /* The temporary file of another save in progress is no obstacle and stays. */
    const int other = open(text("%s.tmp.0", path).text, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_eq(flock(other, LOCK_EX), 0);
    ck_assert_msg(save_constant(3, 10), "%s", tapegrad_error());
    assert_constant(3, 10, 2);
    /* A path without a folder names a file in the current folder. */
    ck_assert_int_eq(chdir(folder), 0);
    const float one = 1;
    FileEntry entry = { "x", FILE_F32, shape_scalar(), &one };
    ck_assert_msg(tensor_file_save(&entry, 1, NULL, 0, "here"), "%s", tapegrad_error());
    ck_assert_int_eq(files_in_folder(false), 3);
}

/* A full disk: the process may write at most 4096 bytes per file. */
TEST(failing_save_leaves_the_old_file)
{
    ck_assert(save_constant(1, 100));
    struct rlimit old, limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){ .rlim_cur = 4096, .rlim_max = old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    bool ok = save_constant(2, 100000);
    ck_assert(tensor_file_can_save(path)); /* which writes a byte */
    limit.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert(!tensor_file_can_save(path));
    assert_error("tensor_file_can_save", text("cannot write: %s", strerror(EFBIG)).text);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 4096, old.rlim_max }), 0);
    ok = ok || save_constant(2, 100000);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert(!ok);
    assert_error("tensor_file_save", text("cannot write: %s", strerror(EFBIG)).text);
    assert_constant(1, 100, 1);
}

/* The same with a process that is killed while writing. */
static void kill_a_save(void)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 4096, 4096 });
        signal(SIGXFSZ, SIG_DFL);
        save_constant(2, 100000);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
}

TEST(killed_save_leaves_the_old_file)
{
    ck_assert(save_constant(1, 100));
    kill_a_save();
    assert_constant(1, 100, 2); /* and the incomplete temporary file, */
    ck_assert_msg(save_constant(2, 100), "%s", tapegrad_error());
    assert_constant(2, 100, 1); /* which the next save removes */
}

/* As the user nobody, if the tests run as the superuser, who may write any file. */
TEST(killed_save_of_a_read_only_file_is_removed_too)
{
    struct stat status;
    const uid_t user = geteuid();
    ck_assert(save_constant(1, 100));
    ck_assert(chmod(path, 0444) == 0 && chmod(folder, 0777) == 0);
    ck_assert(user != 0 || seteuid(65534) == 0);
    kill_a_save();
    const bool ok = save_constant(2, 100);
    ck_assert(user != 0 || seteuid(0) == 0);
    ck_assert_int_eq(chmod(folder, 0700), 0);
    ck_assert_msg(ok, "%s", tapegrad_error());
    assert_constant(2, 100, 1);
    ck_assert(stat(path, &status) == 0 && (status.st_mode & 07777) == 0444);
}

TEST(permissions_and_symbolic_links_stay)
{
    struct stat status;
    char target[sizeof path], name[sizeof path];
    const mode_t mask = umask(077);
    strcpy(target, path);
    snprintf(name, sizeof name, "%s/link", folder);
    ck_assert(save_constant(1, 10));
    ck_assert(stat(target, &status) == 0 && (status.st_mode & 07777) == 0600);
    ck_assert_int_eq(chmod(target, 0664), 0);
    ck_assert_int_eq(symlink(FILE_NAME, name), 0);
    strcpy(path, name);
    ck_assert_msg(save_constant(2, 10), "%s", tapegrad_error());
    ck_assert(lstat(name, &status) == 0 && S_ISLNK(status.st_mode));
    ck_assert(lstat(target, &status) == 0 && status.st_mode == (S_IFREG | 0664));
    assert_constant(2, 10, 2);
    ck_assert_int_eq(unlink(target), 0);
    ck_assert(!save_constant(3, 10));
    assert_error("tensor_file_save",
                 text("cannot follow its symbolic links: %s", strerror(ENOENT)).text);
    umask(mask);
}

/* The first calls after a test sets this fail as if a signal had interrupted them. */
static int interruptions;

static bool is_interrupted(void)
{
    errno = EINTR;
    return interruptions-- > 0;
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    return is_interrupted() ? -1 : syscall(SYS_write, descriptor, bytes, count > 100 ? 100 : count);
}

ssize_t pread(int descriptor, void *bytes, size_t count, off_t from)
{
    return is_interrupted() ? -1 : syscall(SYS_pread64, descriptor, bytes, count, from);
}

/* The errors of file systems that flush nothing (EINVAL) or refuse permissions; 0: none. */
static int fsync_error, fchmod_error;

static int renames_interrupted;

int rename(const char *from, const char *to)
{
    errno = EINTR;
    return renames_interrupted-- > 0 ? -1 : (int)syscall(SYS_rename, from, to);
}

int fsync(int descriptor)
{
    if (is_interrupted())
        return -1;
    errno = fsync_error;
    return fsync_error ? -1 : (int)syscall(SYS_fsync, descriptor);
}

int fchmod(int descriptor, mode_t mode)
{
    errno = fchmod_error;
    return fchmod_error ? -1 : (int)syscall(SYS_fchmod, descriptor, mode);
}

/* A test's other save, which comes between the creation of a temporary file and its lock: it
 * takes the file for one that a killed process left, and writes its own under the same name. */
static bool other_save;
static int other_descriptor;

int flock(int descriptor, int operation)
{
    const Text temporary = text("%s.tmp.0", path);
    if (other_save) {
        other_save = false;
        ck_assert_int_eq(unlink(temporary.text), 0);
        other_descriptor = open(temporary.text, O_WRONLY | O_CREAT | O_EXCL, 0600);
        ck_assert_int_eq(flock(other_descriptor, LOCK_EX), 0);
        ck_assert_int_eq(write(other_descriptor, "half", 4), 4);
    }
    return (int)syscall(SYS_flock, descriptor, operation);
}

TEST(saves_to_one_path_do_not_mix)
{
    ck_assert(save_constant(1, 100));
    other_save = true;
    ck_assert_msg(save_constant(2, 100), "%s", tapegrad_error());
    ck_assert(!other_save);
    assert_constant(2, 100, 2); /* and the other save's temporary file, */
    size_t size;
    unsigned char *half = read_plain(text("%s.tmp.0", path).text, &size);
    ck_assert(size == 4 && !memcmp(half, "half", 4)); /* which stays */
    free(half);
    close(other_descriptor);
}

TEST(interrupted_calls_are_repeated)
{
    for (int n = 0; n < 8; n++) {
        interruptions = renames_interrupted = n;
        ck_assert_msg(save_constant(n, 20), "%d: %s", n, tapegrad_error());
        interruptions = n;
        assert_constant(n, 20, 1);
    }
}

/* The longest names, of characters of 3 bytes; the path becomes such a name. */
static void name_of_length(int length)
{
    snprintf(path, sizeof path, "%s/", folder);
    char *name = strchr(path, 0);
    memcpy(name, text("%0*d", length, 0).text, (size_t)length + 1);
    for (int i = length % 3; i < length; i += 3)
        memcpy(name + i, "\xe2\x82\xac", 3);
}

TEST(a_name_is_not_too_long_for_the_suffix_of_the_temporary_file)
{
    for (int length = 255; length >= 247; length--) {
        name_of_length(length);
        ck_assert_msg(tensor_file_can_save(path), "%d: %s", length, tapegrad_error());
        ck_assert_msg(save_constant(1, 10), "%d: %s", length, tapegrad_error());
        ck_assert_msg(save_constant(2, 10), "%d: %s", length, tapegrad_error());
        assert_constant(2, 10, 1);
        ck_assert_int_eq(unlink(path), 0);
    }
}

TEST(a_killed_save_of_a_long_name_splits_no_character)
{
    for (int length = 253; length <= 255; length++) {
        name_of_length(length);
        kill_a_save();
        DIR *directory = opendir(folder);
        for (struct dirent *item; (item = readdir(directory)) != NULL;) {
            const char *suffix = strstr(item->d_name, ".tmp.");
            ck_assert(!suffix || memcmp(suffix - 3, "\xe2\x82\xac", 3) == 0);
        }
        closedir(directory);
        ck_assert_int_eq(files_in_folder(false), 1);
        ck_assert(save_constant(3, 10));
        ck_assert_int_eq(files_in_folder(false), 1);
        ck_assert_int_eq(unlink(path), 0);
    }
}

/* The superuser's save of another user's file; a hard link keeps what it leads to. */
TEST(the_owner_stays_and_hard_links_part)
{
    struct stat status;
    const bool superuser = geteuid() == 0;
    ck_assert(save_constant(1, 10));
    ck_assert(!superuser || chown(path, 65534, 65533) == 0);
    ck_assert_int_eq(link(path, text("%s/link", folder).text), 0);
    ck_assert_msg(save_constant(2, 10), "%s", tapegrad_error());
    assert_constant(2, 10, 2);
    ck_assert(stat(path, &status) == 0 && (!superuser || status.st_uid == 65534) &&
              (!superuser || status.st_gid == 65533));
    snprintf(path, sizeof path, "%s/link", folder);
    assert_constant(1, 10, 2);
}

TEST(places_that_cannot_be_written)
{
    char place[sizeof path];
    strcpy(place, path);

    snprintf(path, sizeof path, "%s/none/file", folder);
    assert_place_refused(
        text("cannot create a temporary file beside it: %s", strerror(ENOENT)).text);
    snprintf(path, sizeof path, "%s/", folder);
    memcpy(strchr(path, 0), text("%0256d", 0).text, 257);
    assert_place_refused(strerror(ENAMETOOLONG));

    const Text irregular[] = { text("%s/folder", folder), text("%s/pipe", folder),
                               text("/dev/zero") };
    ck_assert_int_eq(mkdir(irregular[0].text, 0700), 0);
    ck_assert_int_eq(mkfifo(irregular[1].text, 0600), 0);
    for (int i = 0; i < 3; i++) {
        strcpy(path, irregular[i].text);
        assert_place_refused("it exists and is not a regular file");
        assert_refused("not a regular file");
    }
    ck_assert_int_eq(unlink(irregular[1].text), 0);

    /* The superuser may write anywhere, and drops its rights for this. */
    strcpy(path, place);
    ck_assert(save_constant(1, 100) && tensor_file_can_save(path));
    assert_constant(1, 100, 2);
    uid_t user = geteuid();
    ck_assert_int_eq(chmod(folder, 0555), 0);
    ck_assert(user != 0 || seteuid(65534) == 0);
    bool ok = save_constant(2, 100);
    ck_assert(user != 0 || seteuid(0) == 0);
    ck_assert_int_eq(chmod(folder, 0700), 0);
    ck_assert(!ok);
    assert_error("tensor_file_save",
                 text("cannot create a temporary file beside it: %s", strerror(EACCES)).text);
    assert_constant(1, 100, 2);
}

/* A trial meets the errors of a save, and leaves nothing. */
static void assert_saves(int error)
{
    const bool possible = tensor_file_can_save(path);
    ck_assert_msg(possible == !error, "%s", tapegrad_error());
    if (error)
        assert_error("tensor_file_can_save", text("cannot write: %s", strerror(error)).text);
    ck_assert_msg(save_constant(2, 100) == !error, "%s", tapegrad_error());
    if (error)
        assert_error("tensor_file_save", text("cannot write: %s", strerror(error)).text);
    assert_constant(error ? 1 : 2, 100, 1);
    ck_assert(save_constant(1, 100) == !error);
}

TEST(file_systems_that_lack_a_call_are_no_error)
{
    ck_assert(save_constant(1, 100));
    static const int refused[] = { EPERM, ENOSYS, EOPNOTSUPP };
    for (int i = 0; i < 3; i++) {
        fchmod_error = refused[i];
        assert_saves(0);
    }
    fsync_error = EINVAL;
    assert_saves(0);
    fsync_error = ENOSPC;
    assert_saves(ENOSPC);
}

/* As the user nobody, if the tests run as the superuser, which may read any folder. */
TEST(folders_that_cannot_be_read)
{
    const uid_t user = geteuid();
    ck_assert_int_eq(chmod(folder, 0333), 0);
    ck_assert(user != 0 || seteuid(65534) == 0);
    const bool possible = tensor_file_can_save(path), ok = possible && save_constant(1, 100);
    ck_assert(user != 0 || seteuid(0) == 0);
    ck_assert_int_eq(chmod(folder, 0700), 0);
    ck_assert_msg(ok, "%s", tapegrad_error());
    assert_constant(1, 100, 1);
}

TEST(missing_paths_and_files_are_reported)
{
    Real numbers[1];
    int32_t integers[1];
    ck_assert(!tensor_file_save(NULL, 0, NULL, 0, NULL));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_save: the path is NULL");
    ck_assert(!tensor_file_can_save(NULL));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_can_save: the path is NULL");
    ck_assert_ptr_null(tensor_file_open(NULL));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_open: the path is NULL");
#define NO_FILE "the file is NULL: did tensor_file_open fail?"
    assert_raises("tensor_file_count: " NO_FILE, tensor_file_count(NULL));
    assert_raises("tensor_file_entry: " NO_FILE, tensor_file_entry(NULL, 0));
    ck_assert(!tensor_file_save(NULL, 1, NULL, 0, "x.safetensors"));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_save: entries is NULL");
    ck_assert(!tensor_file_save(NULL, 0, NULL, 2, "x.safetensors"));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_save: metadata is NULL");
    assert_raises("tensor_file_find: " NO_FILE, tensor_file_find(NULL, "a"));
    assert_raises("tensor_file_metadata: " NO_FILE, tensor_file_metadata(NULL, "a"));
    assert_raises("tensor_file_read: " NO_FILE,
                  ck_assert(tensor_file_read(NULL, "a", shape(1), numbers)));
    assert_raises("tensor_file_read_i32: " NO_FILE,
                  ck_assert(tensor_file_read_i32(NULL, "a", shape(1), integers)));
}

TEST(requests_that_are_refused)
{
    ck_assert(save_constant(1, 100));
    const float one[4] = { 1, 1, 1, 1 };
    const Shape scalar = shape_scalar(), zero = { .rank = 2, .size = { 2, -1 } },
                deep = { .rank = 5, .size = { 1, 1, 1, 1 } }, negative = { .rank = -1 },
                huge = { .rank = 2, .size = { (int64_t)1 << 30, (int64_t)1 << 30 } };
    const struct {
        FileEntry entry;
        const char *sentence;
    } cases[] = {
        { { NULL, FILE_F32, scalar, one }, "an entry's name is empty" },
        { { "", FILE_F32, scalar, one }, "an entry's name is empty" },
        { { "__metadata__", FILE_F32, scalar, one },
          "an entry is named __metadata__, which the format reserves" },
        { { "a\xff", FILE_F32, scalar, one }, "the name \"a\xff\" is not UTF-8" },
        { { "x", (FileType)22, scalar, one }, "entry \"x\" has an unknown FileType: 22" },
        { { "x", FILE_F32, zero, one }, "entry \"x\" has an invalid shape" },
        { { "x", FILE_F32, deep, one }, "entry \"x\" has an invalid shape" },
        { { "x", FILE_F32, negative, one }, "entry \"x\" has an invalid shape" },
        { { "x", FILE_F32, huge, one }, "entry \"x\" has an invalid shape" },
        { { "x", FILE_F32, scalar, NULL }, "entry \"x\" has no data" },
        { { "same", FILE_F32, scalar, one }, "the name \"same\" appears twice" },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const FileEntry entries[] = { { "same", FILE_I32, scalar, one }, cases[c].entry };
        assert_save_refused(entries, 2, NULL, 0, cases[c].sentence);
    }
    const struct {
        FileMetadata metadata[3];
        const char *sentence;
    } metadata[] = {
        { { { "b", "1" }, { "a", "2" }, { "b", "3" } }, "the metadata's key \"b\" appears twice" },
        { { { "b", NULL } }, "a key or value of the metadata is NULL" },
        { { { NULL, "b" } }, "a key or value of the metadata is NULL" },
        { { { "b", "\x80" } }, "the metadata of the key \"b\" are not UTF-8" },
    };
    for (int c = 0; c < 4; c++)
        assert_save_refused(NULL, 0, metadata[c].metadata, 3, metadata[c].sentence);
    assert_save_refused(NULL, -1, NULL, 0,
                        "there are -1 entries and 0 metadata strings, expected 0 or more");
    assert_save_refused(NULL, 0, NULL, -2,
                        "there are 0 entries and -2 metadata strings, expected 0 or more");
    assert_constant(1, 100, 1);
}

/* --------------------------------------------------------------------------------- broken files */

#define F32_AT(begin, end)                                                                         \
    "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"
#define SHAPED(shape) "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0,8]}}"
#define TYPED(type) "{\"a\":{\"dtype\":" type ",\"shape\":[2],\"data_offsets\":[0,8]}}"
#define PLACED(offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}}"
#define NO_ENTRY(name) "entry \"" name "\": not an object of dtype, shape and data_offsets"
#define TOO_LARGE(shape) "entry \"a\": " shape " of F32 is too large or takes no whole bytes"
#define TAKES(offsets, what, bytes)                                                                \
    "entry \"a\": data_offsets is " offsets ", but " what " takes " bytes " bytes"
#define NO_SIZE(axis) "entry \"a\": axis " #axis " of the shape is not a whole number of 0 or more"
#define NO_OFFSETS "entry \"a\": data_offsets is not a list of two whole numbers"
#define NO_TYPE(type) "entry \"a\": the dtype \"" type "\" is none of the format"
#define SIZED(type, shape, bytes)                                                                  \
    "{\"a\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[0," #bytes "]}}"
#define EMPTY_AT(offset)                                                                           \
    "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[" #offset "," #offset "]}"
#define SIXTY "123456789012345678901234567890123456789012345678901234567890"

#define ROW(sentence, data_bytes, format, ...)                                                     \
    {                                                                                              \
        sentence, data_bytes, format,                                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* Headers with one verdict, made from the values in place of %s. The reference reader, safetensors
 * 0.8.0, gives the same verdict on all up to the last groups, which it accepts. */
static const struct {
    const char *sentence; /* NULL: the file is valid */
    size_t data_bytes;
    const char *format, *values[20];
} headers[] = {
    ROW(NULL, 0, "%s", "{} \t\r\n", SIZED("F32", "[0]", 0), SIZED("F32", "[2,0]", 0),
        SIZED("BOOL", "[0,3,0]", 0)),
    ROW(NULL, 3, "%s", SIZED("F6_E2M3", "[4]", 3), SIZED("F6_E3M2", "[2,2]", 3)),
    ROW(NULL, 8, "%s", PLACED("[0,8]"),
        "{\"\\u00e9\\u20ac\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\"\\\\\":" F32_AT(0, 8) "}",
        "{\"a\":" F32_AT(0, 8) ",\"b\":" EMPTY_AT(8) ",\"c\":" EMPTY_AT(0) "}"),
    ROW(NULL, 8, SHAPED("%s"), "[1,1,1,1,2]", "[1,1,1,1,1,2,1,1,1,1]", "[ 2 ]"),
    /* not JSON, or not an object */
    ROW("the header does not begin with {", 0, "%s", "", "[]", "\xef\xbb\xbf{}"),
    ROW("the header is not valid JSON near byte 1", 0, "%s", "{", "{,}"),
    ROW("the header is not valid JSON near byte 2", 0, "%s", "{}{}", "{}\v"),
    ROW("the header is not valid JSON near byte 2", 0, "{\"%s\":1}", "\\ud800", "\\udc00\\ud800",
        "\\ud800\\u0041", "\\u00g0", "\\x"),
    ROW("the header is not valid JSON near byte 3", 0, "{\"a%s", "", "\\", "\x01\":1}", "\n\":1}"),
    ROW("the header is not valid JSON near byte 4", 0, "%s", "{\"1\","),
    ROW("the header is not valid JSON near byte 54", 8, "{\"a\":" F32_AT(0, 8) ",%s", "}"),
    ROW("the header is not valid JSON near byte 56", 8, "{\"a\":" F32_AT(0, 8) ",%s",
        "\"b\tc\":1}"),
    ROW("the header has a NUL character inside a string at byte 3", 0, "%s", "{\"a\\u0000\":1}"),
    /* not UTF-8: lone, missing, overlong, surrogate, beyond the last, no lead byte */
    ROW("the header is not UTF-8 at byte 2", 0, "{\"%s\":1}", "\xc3", "\xe2\x82", "\xc0\xaf",
        "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff"),
    ROW("the header is not UTF-8 at byte 2", 0, "%s", "{\"\xf0\x9f\x98"),
    ROW("the header is not UTF-8 at byte 3", 0, "%s", "{\"a\x80\":1}"),
    /* names */
    ROW("an entry's name is empty", 0, "%s", "{\"\":1}"),
    ROW("the name \"a\" appears twice", 16, "{\"%s\":" F32_AT(0, 8) ",\"a\":" F32_AT(8, 16) "}",
        "a", "\\u0061"),
    ROW(NO_ENTRY("\\u0000"), 0, "%s", "{\"\\\\u0000\":1}"),
    ROW(NO_ENTRY(SIXTY "..."), 0, "%s", "{\"" SIXTY "1\":1}"),
    ROW(NO_ENTRY("a\?\?"), 0, "%s", "{\"a\\u001b\\n\":1}"),
    /* members of an entry */
    ROW(NO_ENTRY("a"), 8, "{\"a\":%s}", "1", "null", "[]", "{}",
        "{\"dtype\":\"F32\",\"shape\":[2]}", "{\"dtype\":\"F32\",\"data_offsets\":[0,8]}",
        "{\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"DTYPE\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}"),
    ROW("entry \"a\": the dtype is not a string", 8, TYPED("%s"), "1", "null"),
    ROW(NO_TYPE("F128"), 8, TYPED("%s"), "\"F128\""),
    ROW(NO_TYPE("f32"), 8, TYPED("%s"), "\"f32\""),
    ROW(NO_TYPE(""), 8, TYPED("%s"), "\"\""),
    ROW("entry \"a\": the shape is not a list", 8, SHAPED("%s"), "2", "{\"b\":2}"),
    ROW(NO_SIZE(0), 8, SHAPED("%s"), "[2.0]", "[2.]", "[2e0]", "[2E0]", "[02]", "[+2]",
        "[2.0000000000000001]", "[-2]", "[\"2\"]", "[true]", "[9007199254740992]", "[1e999]",
        "[-0]"),
    ROW(NO_SIZE(1), 8, SHAPED("%s"), "[2,]", "[1,2.5]"),
    ROW("entry \"a\": the header is not valid JSON near byte 30", 8, SHAPED("%s"), "[0x2]"),
    ROW(TOO_LARGE("[2147483648,2147483648,4]"), 8, SHAPED("%s"), "[2147483648,2147483648,4]"),
    ROW(TOO_LARGE("[2251799813685248]"), 8, SHAPED("%s"), "[2251799813685248]"),
    ROW(TOO_LARGE("[4294967296,4294967296]"), 8, SHAPED("%s"), "[4294967296,4294967296]"),
    ROW(TOO_LARGE("[-1]"), 8, SHAPED("%s"), "[4294967296,4294967296,1,1,1,0]"),
    ROW("entry \"a\": [3] of F4 is too large or takes no whole bytes", 2, "%s",
        SIZED("F4", "[3]", 2)),
    ROW(NO_OFFSETS, 8, PLACED("%s"), "8", "[]", "[0]", "[0,8,8]", "[-8,0]", "[-0,8]", "[00,8]",
        "[0.0,8]", "[0,8.]", "[0,8e0]", "[0,7.5]", "[\"0\",8]", "[0,9007199254740992]",
        "[0,18446744073709551624]", "{\"0\":0,\"8\":8}"),
    /* members that contradict each other, or the data */
    ROW(TAKES("[0,8]", "[2] of U8", "2"), 8, "%s", SIZED("U8", "[2]", 8)),
    ROW(TAKES("[0,8]", "[3] of F32", "12"), 8, SHAPED("%s"), "[1,1,1,1,3]"),
    ROW(TAKES("[0,8]", "[0] of F32", "0"), 8, SHAPED("%s"), "[0]"),
    ROW(TAKES("[0,8]", "[] of F32", "4"), 8, SHAPED("%s"), "[]"),
    ROW(TAKES("[0,8]", "[2] of I64", "16"), 8, TYPED("%s"), "\"I64\""),
    ROW(TAKES("[8,0]", "[2] of F32", "8"), 8, PLACED("%s"), "[8,0]"),
    ROW(TAKES("[0,4]", "[2] of F32", "8"), 8, PLACED("%s"), "[0,4]"),
    ROW(TAKES("[0,0]", "[2] of F32", "8"), 8, PLACED("%s"), "[0,0]"),
    ROW("entry \"a\": the data end at 8, but the file holds 7 bytes of data", 7, PLACED("%s"),
        "[0,8]"),
    ROW("entry \"a\": the data end at 9007199254740991, but the file holds 8 bytes of data", 8,
        PLACED("%s"), "[0,9007199254740991]"),
    ROW("the data of \"a\" and \"b\" overlap", 8, "%s",
        "{\"a\":" F32_AT(0, 8) ",\"b\":" EMPTY_AT(4) "}"),
    ROW("the data of \"a\" and \"b\" overlap", 12, "%s",
        "{\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(4, 12) "}",
        "{\"b\":" F32_AT(4, 12) ",\"a\":" F32_AT(0, 8) "}"),
    ROW("bytes 8 to 11 of the data belong to no entry", 20, "%s",
        "{\"a\":" F32_AT(0, 8) ",\"b\":" F32_AT(12, 20) "}"),
    ROW("bytes 0 to 3 of the data belong to no entry", 12, PLACED("%s"), "[4,12]"),
    ROW("bytes 8 to 8 of the data belong to no entry", 9, PLACED("%s"), "[0,8]"),
    ROW("bytes 0 to 2 of the data belong to no entry", 3, "%s", "{}"),
    /* metadata */
    ROW("__metadata__ is not an object", 0, "{\"__metadata__\":%s}", "1", "[\"a\"]"),
    ROW("__metadata__: the value of \"a\" is not a string", 0, "{\"__metadata__\":%s}", "{\"a\":1}",
        "{\"b\":\"\",\"a\":{}}"),
    ROW("__metadata__ appears twice", 0, "%s", "{\"__metadata__\":{},\"__metadata__\":{}}"),
    /* The reference reader accepts these: of names or keys that appear twice, the last one. */
    ROW("the header does not begin with {", 0, "%s", " {}"),
    ROW("an entry's name is empty", 8, "%s", "{\"\":" F32_AT(0, 8) "}"),
    ROW("the header has a NUL character inside a string at byte 3", 8, "%s",
        "{\"a\\u0000\":" F32_AT(0, 8) "}"),
    ROW("the header has a NUL character inside a string at byte 23", 0, "%s",
        "{\"__metadata__\":{\"a\":\"b\\u0000\"}}"),
    ROW("the name \"a\" appears twice", 8, "%s", "{\"a\":" F32_AT(0, 8) ",\"a\":" F32_AT(0, 8) "}"),
    ROW(NO_ENTRY("a"), 8, "{\"a\":%s}",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}",
        "[\"F32\",[2],[0,8]]"),
    ROW("__metadata__ is not an object", 0, "{\"__metadata__\":%s}", "null"),
    ROW("the metadata's key \"a\" appears twice", 0, "{\"__metadata__\":%s}",
        "{\"a\":\"\",\"b\":\"\",\"a\":\"\"}"),
};

TEST(broken_headers_are_reported)
{
    for (size_t c = 0; c < sizeof headers / sizeof *headers; c++)
        for (const char *const *value = headers[c].values; *value; value++) {
            const char *format = headers[c].format, *place = strstr(format, "%s");
            const Text header = text("%.*s%s%s", (int)(place - format), format, *value, place + 2);
            write_file(header.text, strlen(header.text), headers[c].data_bytes);
            if (headers[c].sentence)
                assert_refused(headers[c].sentence);
            else
                tensor_file_close(open_file());
        }
}

/* A zero byte in the header, and unbounded nesting. */
TEST(headers_that_strain_the_parser)
{
    write_file("{}\0{}", 5, 0);
    assert_refused("the header is not UTF-8 at byte 2");
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH + 5);
    ck_assert_ptr_nonnull(deep);
    memcpy(deep, "{\"a\":", 5);
    memset(deep + 5, '[', DEPTH);
    write_file(deep, DEPTH + 5, 0);
    assert_refused("entry \"a\": not an object of dtype, shape and data_offsets");
    free(deep);
}

#ifdef __has_feature /* clang has no __SANITIZE_ADDRESS__ */
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = true }; /* freed memory is not reused */
#else
enum { SANITIZED = false };
#endif

static int64_t memory_peak(void)
{
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return (int64_t)usage.ru_maxrss * 1024;
}

/* Headers of 10 MB: a long list, many entries, many short metadata, many braces. */
TEST(a_bad_header_takes_little_memory)
{
    enum { LENGTH = 10000000 };
    static const char *const starts[] = { "{\"a\":{\"shape\":[1", "{",
                                          "{\"__metadata__\":{\"\":\"\"", "{\"a\":{" };
    static const char *const repeated[] = {
        ",1", "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", ",\"\":\"\"",
        "\"a\":{"
    };
    char *header = malloc(LENGTH + 8 + 100);
    ck_assert_ptr_nonnull(header);
    memset(header, ' ', LENGTH + 8 + 100);
    const int64_t before = memory_peak();
    for (int i = 0; i < 4; i++) {
        const uint64_t length = LENGTH;
        memcpy(header, &length, 8);
        char *end = stpcpy(header + 8, starts[i]);
        while (end < header + 8 + LENGTH)
            end = stpcpy(end, repeated[i]);
        write_plain(path, header, 8 + LENGTH);
        ck_assert_ptr_null(tensor_file_open(path));
        const int64_t taken = memory_peak() - before;
        ck_assert_msg(SANITIZED || taken < 8 * LENGTH, "header %d took %lld bytes", i,
                      (long long)taken);
    }
    free(header);
}

TEST(broken_lengths_are_reported)
{
    assert_refused(strerror(ENOENT));
    static const struct {
        const char *bytes;
        size_t size;
        const char *sentence;
    } cases[] = {
        { "", 0, "the file has 0 bytes; the header's length alone takes 8" },
        { "\2\0\0\0\0\0\0", 7, "the file has 7 bytes; the header's length alone takes 8" },
        { "\3\0\0\0\0\0\0\0{}", 10, "the header's length is 3, but 2 bytes follow" },
        { "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10,
          "the header's length is 18446744073709551615, but 2 bytes follow" },
    };
    for (int c = 0; c < 4; c++) {
        write_plain(path, cases[c].bytes, cases[c].size);
        assert_refused(cases[c].sentence);
    }
    /* A sparse file with a header one byte above the limit occupies no disk space. */
    write_plain(path, "\x01\xe1\xf5\x05\0\0\0\0{", 9);
    ck_assert_int_eq(truncate(path, 8 + 100000001), 0);
    assert_refused("the header's length is 100000001; at most 100000000 is allowed");
}

TEST(files_of_other_formats_are_named)
{
    static const char *const begins[][2] = {
        { "<!DOCTYPE html>\n<html>", "but an HTML or XML page" },
        { "\n  <html lang=\"en\">", "but an HTML or XML page" },
        { "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
          "but a Git LFS pointer: git lfs pull fetches the file" },
        { "PK\x03\x04zip archive", "but a zip archive, as torch.save writes" },
        { "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j", "but a Python pickle, as torch.save wrote" },
        { "\x1f\x8b\x08gzipped", "but a gzip file" },
        { "{\"metadata\": {\"total_size\"", "but JSON, as the index of a model in several files" },
        { "GGUF\3 tensors", "but a GGUF file" },
        { "\x89HDF\r\n\x1a\n1234", "but an HDF5 file" },
        { "\x93NUMPY\1 shape", "but a NumPy file" },
        { "\r\r\rversion \r.", "no header follows the first 8 bytes" },
        { "hello, world", "no header follows the first 8 bytes" },
    };
    for (size_t c = 0; c < sizeof begins / sizeof *begins; c++) {
        const bool known = strncmp(begins[c][1], "but", 3) == 0;
        write_plain(path, begins[c][0], strlen(begins[c][0]));
        assert_refused(
            text("it is not a safetensors file%s %s", known ? "," : ":", begins[c][1]).text);
    }
}

/* One entry of a sparse file of 64 MB; one that ends while it is read. */
TEST(one_entry_takes_the_memory_of_one_entry)
{
    static const char header[] =
        "{\"large\":{\"dtype\":\"F32\",\"shape\":[16777216],\"data_offsets\":[0,67108864]},"
        "\"small\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[67108864,67108872]}}";
    const off_t size = 8 + sizeof header - 1 + 67108872;
    write_file(header, sizeof header - 1, 0);
    ck_assert_int_eq(truncate(path, size), 0);
    const int64_t before = memory_peak();
    TensorFile *file = open_file();
    Real values[2] = { 1, 1 };
    ck_assert(tensor_file_read(file, "small", shape(2), values));
    ck_assert(values[0] == 0 && values[1] == 0);
    const int64_t taken = memory_peak() - before;
    ck_assert_msg(SANITIZED || taken < 8000000, "the entry took %lld bytes", (long long)taken);
    ck_assert_int_eq(truncate(path, size - 1), 0);
    ck_assert(!tensor_file_read(file, "small", shape(2), values));
    assert_error("tensor_file_read", "the file ended while it was read");
    tensor_file_close(file);
}

/* `make fuzz` mutates files. */
TEST(every_truncation_is_refused)
{
    const float x[] = { 1, 2, 3, 4, 5, 6 };
    const double y = 7;
    const int32_t n[] = { 1, 2, 3 };
    const int64_t m[] = { 4, 5 };
    const FileEntry entries[] = { { "layer.x", FILE_F32, shape(2, 3), x },
                                  { "y", FILE_F64, shape_scalar(), &y },
                                  { "n", FILE_I32, shape(3), n },
                                  { "m", FILE_I64, shape(2, 1, 1, 1), m } };
    const FileMetadata metadata[] = { { "step", "12" }, { "name", "gr\xc3\xbc\xc3\x9f" } };
    ck_assert(tensor_file_save(entries, 4, metadata, 2, path));
    size_t size;
    unsigned char *bytes = read_plain(path, &size);
    for (size_t length = 0; length < size; length++) {
        write_plain(path, bytes, length);
        TensorFile *file = tensor_file_open(path);
        ck_assert_msg(!file, "the first %zu of %zu bytes were accepted", length, size);
        ck_assert_ptr_nonnull(strstr(tapegrad_error(), path));
    }
    write_plain(path, bytes, size);
    tensor_file_close(open_file());
    free(bytes);
}

/* --------------------------------------------------------------------------- exhausted memory */

static bool save_three(void)
{
    return save_constant(1, 3);
}

static bool open_and_close(void)
{
    TensorFile *file = tensor_file_open(path);
    tensor_file_close(file);
    return file != NULL;
}

/* Each allocation of the call fails in turn; returns their number. */
static int64_t failing_allocations(bool (*call)(void))
{
    for (int64_t n = 1;; n++) {
        device_fail_allocation(n);
        const bool ok = call(), failed = device_fail_allocation(0);
        ck_assert(ok != failed);
        if (ok)
            return n - 1;
        ck_assert_ptr_nonnull(strstr(tapegrad_error(), "memory is exhausted"));
    }
}

TEST(exhausted_memory_is_reported)
{
    ck_assert_int_gt(failing_allocations(save_three), 0);
    ck_assert_int_gt(failing_allocations(open_and_close), 3);
}

TEST(any_bytes_may_be_written)
{
    for (int64_t count = 5; count >= 0; count -= 5) {
        ck_assert_msg(tensor_file_write(path, "a\0b\nc", count), "%s", tapegrad_error());
        size_t size;
        uint8_t *bytes = read_plain(path, &size);
        ck_assert_uint_eq(size, (size_t)count);
        ck_assert_mem_eq(bytes, "a\0b\nc", size);
        free(bytes);
    }
    ck_assert_int_eq(files_in_folder(false), 1);
    ck_assert(!tensor_file_write(NULL, "a", 1) && !tensor_file_write(path, NULL, 1) &&
              !tensor_file_write(path, "a", -1));
    ck_assert_str_eq(tapegrad_error(), "tensor_file_write: expected a path and 0 or more bytes");
}

int main(void)
{
    return test_main("file", begin, end_folder);
}
