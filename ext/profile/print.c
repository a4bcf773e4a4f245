/* The table of a profile, in 96 columns. */
#include "ext/profile/profile.h"

#include "extend.h"

#include <stdio.h>

enum { LISTED_TENSORS = 12, MAX_LINE = 256 };

/* Where the text goes: to a file, or into size bytes. */
typedef struct Output {
    FILE *file;
    char *text;
    size_t size, length;
} Output;

__attribute__((format(printf, 2, 3))) static void append_line(Output *out, const char *format, ...)
{
    char line[MAX_LINE];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (out->file)
        fputs(line, out->file);
    for (int i = 0; i < length && i < MAX_LINE - 1; i++, out->length++)
        if (out->length + 1 < out->size)
            out->text[out->length] = line[i];
}

/* "12.6 MB", with units of 1000 */
typedef struct BytesText {
    char text[32];
} BytesText;

static BytesText bytes_text(int64_t bytes)
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB" };
    BytesText result;
    double value = (double)bytes;
    int unit = 0;
    while (unit < 4 && value >= 999.95) {
        value /= 1000;
        unit++;
    }
    snprintf(result.text, sizeof result.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return result;
}

static double percent(double of, double all)
{
    return all > 0 ? 100 * of / all : 0;
}

static void print_operations(Output *out, const TapeProfile *profile)
{
    double forward = 0, backward = 0;
    append_line(out, "%-32s %7s %11s %11s %7s %11s %11s\n", "operation", "calls", "forward ms",
                "backward ms", "share", "results", "saved");
    for (int i = 0; i < profile->operation_count; i++) {
        const ProfileOperation *row = &profile->operations[i];
        const double all = percent(row->forward_ms + row->backward_ms, profile->milliseconds);
        append_line(out, "%-32.32s %7lld %11.3f ", row->name, (long long)row->calls,
                    row->forward_ms);
        if (row->section) {
            append_line(out, "%11s %5.1f %%\n", "", all);
            continue;
        }
        forward += row->forward_ms;
        backward += row->backward_ms;
        append_line(out, "%11.3f %5.1f %% %11s %11s\n", row->backward_ms, all,
                    bytes_text(row->result_bytes).text, bytes_text(row->saved_bytes).text);
    }
    append_line(out, "%-32s %7s %11.3f %11s %5.1f %%\n", "outside of operations", "",
                profile->outside_ms, "", percent(profile->outside_ms, profile->milliseconds));
    append_line(out, "%.3f ms, %.3f of them forward, %.3f backward\n", profile->milliseconds,
                forward, backward);
}

static void print_tensors(Output *out, const TapeProfile *profile)
{
    static const char *const types[] = { "", " int32", " bf16" }; /* by TensorType */
    const bool named = *profile->peak_operation;
    append_line(out, "\npeak memory %s%s%s%s\n", bytes_text(profile->peak_bytes).text,
                named ? ", in " : "", profile->peak_operation,
                !named                   ? ""
                : profile->peak_backward ? " backward"
                                         : " forward");
    append_line(out, "%s of the tape's tensors, %s of weights, workspaces and others\n",
                bytes_text(profile->live_bytes).text,
                bytes_text(profile->peak_bytes - profile->live_bytes).text);
    if (profile->tensor_count > 0)
        append_line(out, "%-32s %-8s %-26s %7s %11s %7s\n", "alive at the peak, made by", "",
                    "shape", "tensors", "bytes", "share");
    int64_t rest = 0, rest_bytes = 0;
    for (int i = 0; i < profile->tensor_count; i++) {
        const ProfileTensors *group = &profile->tensors[i];
        char shape[128];
        snprintf(shape, sizeof shape, "%s%s", shape_text(group->shape).text, types[group->type]);
        if (i >= LISTED_TENSORS) {
            rest += group->count;
            rest_bytes += group->bytes;
            continue;
        }
        append_line(out, "%-32.32s %-8s %-26.26s %7lld %11s %5.1f %%\n",
                    *group->operation ? group->operation : "(the program)",
                    group->gradient ? "gradient" : "", shape, (long long)group->count,
                    bytes_text(group->bytes).text,
                    percent((double)group->bytes, (double)profile->peak_bytes));
    }
    if (rest > 0)
        append_line(out, "%-32s %-8s %-26s %7lld %11s %5.1f %%\n", "smaller ones", "", "",
                    (long long)rest, bytes_text(rest_bytes).text,
                    percent((double)rest_bytes, (double)profile->peak_bytes));
}

static void write_table(Output *out, const char *function, const TapeProfile *profile)
{
    error_need(function, "the profile", profile);
    if (!profile->operations)
        error_raise("%s: the profile has not ended; call tape_profile_end before", function);
    print_operations(out, profile);
    print_tensors(out, profile);
}

void tape_profile_print(const TapeProfile *profile, FILE *file)
{
    error_need("tape_profile_print", "the file", file);
    write_table(&(Output){ .file = file }, "tape_profile_print", profile);
}

size_t tape_profile_text(const TapeProfile *profile, char *text, size_t size)
{
    Output out = { .text = text, .size = text ? size : 0 };
    write_table(&out, "tape_profile_text", profile);
    if (out.size > 0)
        text[out.length < size ? out.length : size - 1] = 0;
    return out.length;
}
