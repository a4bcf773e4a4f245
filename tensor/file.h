/* Shared by reading and writing safetensors files. */
#ifndef TAPEGRAD_TENSOR_FILE_H
#define TAPEGRAD_TENSOR_FILE_H

#include "tensor/internal.h"

#include <stdio.h>

/* Readers that parse numbers as double represent integers below this exactly. */
#define FILE_MAX_SIZE ((int64_t)1 << 53)

/* The format's own limit, which protects a reader's memory from a malicious header. */
enum { FILE_MAX_HEADER = 100000000 };

#define FILE_METADATA_NAME "__metadata__"

/* The format's name of each type, and its bits per element. */
typedef struct FileTypeFacts {
    const char *name;
    int64_t bits;
} FileTypeFacts;
extern const FileTypeFacts file_types[FILE_TYPES];

/* An entry, and where its bytes begin in the file's data. */
typedef struct PlacedEntry {
    FileEntry entry; /* its data: of a file that is to be written */
    int64_t begin;
} PlacedEntry;

/* A file that is open for reading, or that is to be written. */
struct TensorFile {
    const char *function, *path; /* for messages: the function that reads or writes it */
    PlacedEntry *entries;        /* in the order of their data */
    FileMetadata *metadata;
    PlacedEntry *by_name; /* the entries, sorted by name */
    FileMetadata *by_key; /* the metadata, sorted by key */
    int count, metadata_count;
    int descriptor; /* of a file that is open for reading */
    char *header;   /* the same: holds all names and strings */
    int64_t header_length, data_size;

    /* While the header is parsed: */
    char *at;           /* the next character; the text ends in NUL */
    const char *parsed; /* for messages: the entry's name, or NULL */
    int64_t begin, end; /* its data_offsets */
    unsigned seen;      /* its members: 1 << index */
};

/* Reports "FUNCTION: PATH: ..."; returns false. */
bool file_fail(const TensorFile *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Allocates count structs; reports an error and returns NULL when memory is exhausted. */
void *file_allocate(const TensorFile *file, int64_t count, size_t size);

/* Sorts the entries into by_name and the metadata into by_key; false unless all names and all keys
 * are unique. */
bool file_sort(TensorFile *file);

/* The bytes of an entry; -1 unless the rank is 0 to MAX_RANK, each size is at least 0 and the
 * elements take whole bytes, fewer than FILE_MAX_SIZE. */
int64_t file_bytes(FileType type, Shape shape);

/* tensor_file_read; sets unreadable when the entry would fit, but its bytes cannot be read. */
bool file_read_reals(const TensorFile *file, const char *name, Shape expected, Real *host,
                     bool *unreadable);

/* file_system.c, whose functions report and return false on failure. file_open opens a regular file
 * for reading; close closes file->descriptor. file_read reads bytes from `from` on. file_replace
 * writes the header and then the data of file->entries to a temporary file, and renames it to
 * file->path or, without renames, removes it. */
bool file_open(TensorFile *file, int64_t *size);
bool file_read(const TensorFile *file, int64_t from, void *to, int64_t bytes);
bool file_replace(const TensorFile *file, const char *header, int64_t length, bool renames);

/* The end of the longest valid UTF-8 prefix. */
const char *file_utf8_end(const char *text);

/* A name for a message: shortened if long, without control characters. */
typedef struct FileNameText {
    char text[80];
} FileNameText;
FileNameText file_name_text(const char *name);

#endif
