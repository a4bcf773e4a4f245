#include "examples/images/image.h"

#include <tapegrad.h>

#include <png.h>
#include <stdlib.h>
#include <string.h>

/* libpng's limit on width and height. */
enum { LONGEST_SIDE = 1000000 };

/* The resources of writing, in a struct because libpng reports errors by longjmp. */
typedef struct Writer {
    const char *path;
    ImageGrid grid;
    Sentence *sentence;
    FILE *stream;          /* of memory */
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

static bool write_picture(Writer *writer)
{
    writer->png = png_create_write_struct(PNG_LIBPNG_VER_STRING, writer, on_error, on_warning);
    writer->info = writer->png != NULL ? png_create_info_struct(writer->png) : NULL;
    if (writer->info == NULL)
        return sentence_write(writer->sentence, "%s: memory is exhausted", writer->path);
    if (setjmp(png_jmpbuf(writer->png)))
        return false;
    png_init_io(writer->png, writer->stream);
    png_set_IHDR(writer->png, writer->info, (png_uint_32)writer->width, (png_uint_32)writer->height,
                 8, writer->grid.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(writer->png, writer->info);
    for (int64_t y = 0; y < writer->height; y++) {
        fill_line(writer, y);
        png_write_row(writer->png, writer->line);
    }
    png_write_end(writer->png, writer->info);
    return true;
}

/* ------------------------------------------------------------------------------------- the file */

/* The picture in memory, then in the file. */
static bool write_file(Writer *writer)
{
    char *bytes = NULL;
    size_t size;
    writer->stream = open_memstream(&bytes, &size);
    bool ok = writer->stream && write_picture(writer);
    if (!writer->stream || fclose(writer->stream))
        ok = sentence_write(writer->sentence, "%s: memory is exhausted", writer->path);
    if (ok && !tensor_file_write(writer->path, bytes, (int64_t)size))
        ok = sentence_write(writer->sentence, "%s: %s", writer->path, tapegrad_error());
    free(bytes);
    return ok;
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
    Writer writer = {
        .path = path, .grid = grid, .sentence = sentence, .height = height, .width = width
    };
    writer.line = malloc((size_t)(width * grid.channels));
    bool ok = writer.line != NULL ? write_file(&writer)
                                  : sentence_write(sentence, "%s: memory is exhausted", path);
    png_destroy_write_struct(&writer.png, &writer.info);
    free(writer.line);
    return ok;
}
