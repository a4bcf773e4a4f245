#include "examples/images/image.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* libpng's limit on width and height. */
enum { LONGEST_SIDE = 1000000 };

/* The resources of writing, in a struct because libpng reports errors by longjmp. */
typedef struct Writer {
    const char *path;
    ImageGrid grid;
    Sentence *sentence;
    FILE *stream;
    char *temporary;
    png_byte *line;        /* of the picture */
    int64_t height, width; /* of the picture */
    png_struct *png;
    png_info *info;
} Writer;

/* ---------------------------------------------------------------------------------- the picture */

/* The length of a side of the picture: images of this number of pixels, with margins; 0 if it
 * exceeds the limits. */
static int64_t side(int64_t images, int64_t pixels, ImageGrid grid)
{
    const int64_t numbers[] = { images, pixels, grid.scale, grid.margin + 1 };
    for (int i = 0; i < 4; i++)
        if (numbers[i] < 1 || numbers[i] > LONGEST_SIDE)
            return 0;
    if (pixels * grid.scale > LONGEST_SIDE)
        return 0;
    int64_t length = images * (pixels * grid.scale + grid.margin) + grid.margin;
    return length <= LONGEST_SIDE ? length : 0;
}

/* Maps the index-th pixel of a side to an image and a pixel of the image; returns false on a
 * margin. */
static bool locate(int64_t index, int64_t pixels, ImageGrid grid, int64_t *image, int64_t *pixel)
{
    int64_t span = pixels * grid.scale + grid.margin, offset = index % span - grid.margin;
    *image = index / span;
    *pixel = offset / grid.scale;
    return offset >= 0;
}

static void fill_line(const Writer *writer, int64_t y)
{
    ImageGrid grid = writer->grid;
    memset(writer->line, grid.background, (size_t)(writer->width * grid.channels));
    int64_t row, column, line, pixel;
    if (!locate(y, grid.height, grid, &row, &line))
        return;
    for (int64_t x = 0; x < writer->width; x++) {
        if (!locate(x, grid.width, grid, &column, &pixel))
            continue;
        const int64_t image = row * grid.columns + column;
        const int64_t at = (image * grid.height + line) * grid.width + pixel;
        for (int64_t c = 0; c < grid.channels; c++)
            writer->line[x * grid.channels + c] = grid.pixels[at * grid.channels + c];
    }
}

/* --------------------------------------------------------------------------------------- libpng */

static void on_error(png_struct *png, const char *message)
{
    Writer *writer = png_get_error_ptr(png);
    sentence_write(writer->sentence, "%s: cannot write: %s", writer->path, message);
    png_longjmp(png, 1);
}

static void on_warning(png_struct *png, const char *message)
{
    (void)png;
    (void)message;
}

static void write_bytes(png_struct *png, png_byte *bytes, size_t count)
{
    Writer *writer = png_get_io_ptr(png);
    if (fwrite(bytes, 1, count, writer->stream) != count)
        png_error(png, strerror(errno));
}

static void flush_bytes(png_struct *png)
{
    Writer *writer = png_get_io_ptr(png);
    if (fflush(writer->stream) != 0 || (fsync(fileno(writer->stream)) != 0 && errno != EINVAL))
        png_error(png, strerror(errno));
}

static bool write_picture(Writer *writer)
{
    writer->png = png_create_write_struct(PNG_LIBPNG_VER_STRING, writer, on_error, on_warning);
    writer->info = writer->png != NULL ? png_create_info_struct(writer->png) : NULL;
    if (writer->info == NULL)
        return sentence_write(writer->sentence, "%s: memory is exhausted", writer->path);
    if (setjmp(png_jmpbuf(writer->png)))
        return false;
    png_set_write_fn(writer->png, writer, write_bytes, flush_bytes);
    png_set_IHDR(writer->png, writer->info, (png_uint_32)writer->width, (png_uint_32)writer->height,
                 8, writer->grid.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(writer->png, writer->info);
    for (int64_t y = 0; y < writer->height; y++) {
        fill_line(writer, y);
        png_write_row(writer->png, writer->line);
    }
    png_write_end(writer->png, writer->info);
    flush_bytes(writer->png);
    return true;
}

/* ------------------------------------------------------------------------------------- the file */

static bool fail(const Writer *writer, const char *what)
{
    return sentence_write(writer->sentence, "%s: %s: %s", writer->path, what, strerror(errno));
}

/* Flushes the file's directory, which makes the rename durable. The buffer of the temporary name
 * holds the directory's path. EINVAL: the file system cannot flush directories. */
static bool flush_directory(Writer *writer)
{
    char *slash = strrchr(strcpy(writer->temporary, writer->path), '/');
    strcpy(slash != NULL ? slash + 1 : writer->temporary, ".");
    int descriptor = open(writer->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) /* a directory that can be written, but not read */
        return true;
    bool ok = fsync(descriptor) == 0 || errno == EINVAL;
    if (!ok)
        fail(writer, "cannot flush its directory");
    close(descriptor);
    return ok;
}

/* Writes to a temporary file and renames it; on error removes it. */
static bool write_file(Writer *writer)
{
    sprintf(writer->temporary, "%s.XXXXXX", writer->path);
    int descriptor = mkstemp(writer->temporary);
    if (descriptor < 0)
        return fail(writer, "cannot create a temporary file beside it");
    mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(descriptor, 0666 & ~mask); /* mkstemp creates it with 0600; some mounts refuse */
    writer->stream = fdopen(descriptor, "wb");
    if (writer->stream == NULL) {
        fail(writer, "cannot create a temporary file beside it");
        close(descriptor);
        unlink(writer->temporary);
        return false;
    }
    bool ok = write_picture(writer);
    if (fclose(writer->stream) != 0 && ok)
        ok = fail(writer, "cannot write");
    if (ok && rename(writer->temporary, writer->path) != 0)
        ok = fail(writer, "cannot write");
    if (!ok)
        unlink(writer->temporary);
    return ok && flush_directory(writer);
}

bool image_write_png(const char *path, ImageGrid grid, Sentence *sentence)
{
    int64_t height = side(grid.rows, grid.height, grid),
            width = side(grid.columns, grid.width, grid);
    if (height == 0 || width == 0)
        return sentence_write(sentence,
                              "%s: %lld x %lld images of %lld x %lld, scaled by %lld, with margins "
                              "of %lld: expected a picture of 1 to %d pixels per side",
                              path, (long long)grid.rows, (long long)grid.columns,
                              (long long)grid.height, (long long)grid.width, (long long)grid.scale,
                              (long long)grid.margin, LONGEST_SIDE);
    if (grid.channels != 1 && grid.channels != 3)
        return sentence_write(sentence, "%s: channels is %lld: expected 1 or 3", path,
                              (long long)grid.channels);
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return sentence_write(sentence, "%s: it exists and is not a regular file", path);
    Writer writer = {
        .path = path, .grid = grid, .sentence = sentence, .height = height, .width = width
    };
    writer.temporary = malloc(strlen(path) + 16);
    writer.line = malloc((size_t)(width * grid.channels));
    bool ok = writer.temporary != NULL && writer.line != NULL
                  ? write_file(&writer)
                  : sentence_write(sentence, "%s: memory is exhausted", path);
    png_destroy_write_struct(&writer.png, &writer.info);
    free(writer.line);
    free(writer.temporary);
    return ok;
}
