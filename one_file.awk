# Writes one file from many, as SQLite ships: prints the files that are its arguments, each
# #include "..." replaced by that file. A header with a guard is inserted once, a list without a
# guard every time; headers named in -v given="..." are left out, since tapegrad.h has them. An
# argument that starts with # is a line of the preprocessor. Only -DTAPEGRAD_EXPORT exports what the
# headers export; after an argument "#pragma GCC visibility push(hidden)" nothing else is, but system
# headers declare what is defined elsewhere.
#     awk -f one_file.awk -v given="tensor/tensor.h ..." FILE... > OUTPUT

function write(line, system_header)
{
    system_header = line ~ /^#include </
    if (hidden && system_header != after_system_header)
        print "#pragma GCC visibility " (system_header ? "push(default)" : "pop")
    after_system_header = system_header
    print line
}

function insert(path, line, header, lines, again, comment)
{
    if (path in inserted)
        return
    again = visits[path]++
    write("/* " path " */")
    while ((getline line < path) > 0) {
        lines++
        if (line ~ /^#ifndef TAPEGRAD_[A-Z0-9_]*_H$/)
            inserted[path] = 1
        if (match(line, /^#include "[^"]+"/)) {
            header = substr(line, 11, RLENGTH - 11)
            insert(header)
        } else if (again && (comment || line ~ /^\/\*/))
            comment = line !~ /\*\/$/ # a list's comments stand in its first copy
        else if (line ~ /^#pragma GCC visibility/)
            write("#ifdef TAPEGRAD_EXPORT\n" line "\n#endif")
        else
            write(line)
    }
    close(path)
    if (!lines) {
        print "one_file.awk: cannot read " path > "/dev/stderr"
        exit 1
    }
}

BEGIN {
    count = split(given, headers)
    for (i = 1; i <= count; i++)
        inserted[headers[i]] = 1
    for (i = 1; i < ARGC; i++)
        if (ARGV[i] ~ /^#/) {
            write(ARGV[i]) # a line of the preprocessor
            hidden = hidden || ARGV[i] ~ /visibility push\(hidden\)/
        } else
            insert(ARGV[i])
    exit
}
