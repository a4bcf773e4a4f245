/* What tests of files share: a folder of each test's own, and whole files. */
#ifndef TAPEGRAD_TESTS_FOLDER_H
#define TAPEGRAD_TESTS_FOLDER_H

#include "tests/support.h"

typedef struct Text {
    char text[2048];
} Text;
Text text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Each test works in a folder of its own, which end_folder removes with all its files; path is that of
 * the file there with the name given. */
extern char folder[64];
extern char path[128];
void begin_folder(const char *name);
void end_folder(void);

/* Removes all files of the folder, or only counts them. */
int files_in_folder(bool remove_them);

void write_plain(const char *name, const void *bytes, size_t size);

/* The file's bytes, to be freed. */
unsigned char *read_plain(const char *name, size_t *size);

#endif
