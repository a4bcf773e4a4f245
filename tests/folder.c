#include "tests/folder.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char folder[64];
char path[512];

Text text(const char *format, ...)
{
    Text result;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(result.text, sizeof result.text, format, arguments);
    va_end(arguments);
    return result;
}

void begin_folder(const char *name)
{
    strcpy(folder, "/tmp/tapegrad-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
}

int files_in_folder(bool remove_them)
{
    DIR *stream = opendir(folder);
    ck_assert_ptr_nonnull(stream);
    int count = 0;
    for (struct dirent *item; (item = readdir(stream)) != NULL;) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        count++;
        if (remove_them)
            remove(text("%s/%s", folder, item->d_name).text);
    }
    closedir(stream);
    return count;
}

void end_folder(void)
{
    files_in_folder(true);
    ck_assert_int_eq(rmdir(folder), 0);
}

void write_plain(const char *name, const void *bytes, size_t size)
{
    FILE *stream = fopen(name, "wb");
    ck_assert_ptr_nonnull(stream);
    ck_assert_uint_eq(fwrite(bytes, 1, size, stream), size);
    ck_assert_int_eq(fclose(stream), 0);
}

unsigned char *read_plain(const char *name, size_t *size)
{
    FILE *stream = fopen(name, "rb");
    ck_assert_ptr_nonnull(stream);
    struct stat status;
    ck_assert_int_eq(fstat(fileno(stream), &status), 0);
    *size = (size_t)status.st_size;
    unsigned char *bytes = malloc(*size + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, *size, stream), *size);
    fclose(stream);
    return bytes;
}
