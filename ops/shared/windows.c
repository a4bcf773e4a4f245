#include "ops/shared/windows.h"

#include "ops/shared/internal.h"

Windows windows_over(Tape *tape, const char *operation, const Tensor *x, Window window)
{
    const int64_t *size = x->shape.size, s = window.stride ? window.stride : 1;
    if (x->shape.rank != 4)
        tape_error(tape, "%s: x %s, expected four axes, [B, H, W, C]", operation,
                   tensor_text(x).text);
    if (window.height < 1 || window.width < 1 || s < 1 || window.padding < 0 ||
        window.padding > INT32_MAX)
        tape_error(tape,
                   "%s: the window is %lld x %lld, stride %lld, padding %lld; expected 1 or more, "
                   "1 or more (or 0 for the default), 0 to 2^31 - 1",
                   operation, (long long)window.height, (long long)window.width,
                   (long long)window.stride, (long long)window.padding);
    const int64_t down = size[1] + 2 * window.padding - window.height;
    const int64_t right = size[2] + 2 * window.padding - window.width;
    if (down < 0 || right < 0)
        tape_error(tape, "%s: a window of %lld x %lld does not fit into x, %s, with padding %lld",
                   operation, (long long)window.height, (long long)window.width,
                   shape_text(x->shape).text, (long long)window.padding);
    const int64_t rows = down / s + 1, columns = right / s + 1;
    const int64_t windows = shape_count(shape(size[0], rows, columns)); /* raise if they overflow */
    shape_count(shape(windows, window.height, window.width, size[3]));
    return (Windows){ .B = size[0],
                      .H = size[1],
                      .W = size[2],
                      .C = size[3],
                      .rows = rows,
                      .columns = columns,
                      .height = window.height,
                      .width = window.width,
                      .stride = s,
                      .padding = window.padding };
}
