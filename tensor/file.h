/* Shared by reading and writing safetensors files. */
#ifndef TAPEGRAD_TENSOR_FILE_H
#define TAPEGRAD_TENSOR_FILE_H

#include "tensor/internal.h"

#include <cjson/cJSON.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the format is little-endian, and so must the machine be");

/* cJSON stores numbers as double, which represents integers below this exactly. */
#define FILE_LARGEST_SIZE ((int64_t)1 << 53)

#define FILE_METADATA_NAME "__metadata__"

/* The format's name of each type, and its bytes per element. */
enum { FILE_TYPES = 4 };
typedef struct FileTypeFacts {
    const char *name;
    int64_t size;
} FileTypeFacts;
extern const FileTypeFacts file_types[FILE_TYPES];

/* The bytes of an entry; -1 unless the rank is 0 to MAX_RANK, each size is at least 1 and the
 * product is below FILE_LARGEST_SIZE. */
int64_t file_bytes(FileType type, Shape shape);

/* The length in bytes of the longest valid UTF-8 prefix. */
size_t file_utf8_length(const char *text);

/* Sorts structs whose first member is their name (FileEntry, FileMetadata) by name; returns a name
 * that occurs twice, or NULL. */
const char *file_sort_by_name(void *structs, int count, size_t size);
int file_compare_names(const void *a, const void *b);

/* A name for a message: shortened if long, without control characters. */
typedef struct FileNameText {
    char text[80];
} FileNameText;
FileNameText file_name_text(const char *name);

/* -------------------------------------------------------------------------------------- reading */

struct TensorFile {
    char *path;
    cJSON *header; /* owns all names and strings */
    unsigned char *data;
    int64_t data_size;
    FileEntry *entries; /* in the order of their data */
    FileEntry *by_name; /* the same, sorted by name */
    int count;
    FileMetadata *metadata; /* sorted by key; NULL when there are none */
    int metadata_count;
};

/* Validates the header's text, which is terminated by NUL, and parses it into file->header. */
bool file_parse_header(TensorFile *file, const char *text, size_t length);

/* Validates file->header and builds the lists of entries and metadata. file->data must be allocated
 * but need not be read yet. */
bool file_parse_entries(TensorFile *file);

/* Reports "tensor_file_open: PATH: ..."; returns false. */
bool file_fail(const TensorFile *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Allocates count structs; reports an error and returns NULL when memory is exhausted. */
void *file_allocate(const TensorFile *file, int64_t count, size_t size);

#endif
