/* Shared by tests of files: a folder per test, and whole files. */
#ifndef TAPEGRAD_TESTS_FOLDER_H
#define TAPEGRAD_TESTS_FOLDER_H

#include "tests/support.h"

typedef struct Text {
    char text[2048];
} Text;
Text text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Each test works in a folder of its own, which end_folder removes with all its files; path is the
 * path of the file with the given name there. */
extern char folder[64];
extern char path[512];
void begin_folder(const char *name);
void end_folder(void);

/* The number of files in the folder; removes them if remove_them is set. */
int files_in_folder(bool remove_them);

void write_plain(const char *name, const void *bytes, size_t size);

/* The file's bytes; the caller frees them. */
unsigned char *read_plain(const char *name, size_t *size);

#endif
