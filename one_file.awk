# Writes one file from many, as SQLite ships: prints the files that are its arguments, each
# #include "..." replaced by that file. A header with a guard is inserted once, a list without a
# guard every time; headers named in -v given="..." are left out, since tapegrad.h has them. An
# argument that starts with # is a line of the preprocessor.
#     awk -f one_file.awk -v given="tensor/tensor.h ..." FILE... > OUTPUT

function insert(path, line, header, lines, again, comment)
{
    if (path in inserted)
        return
    again = visits[path]++
    print "/* " path " */"
    while ((getline line < path) > 0) {
        lines++
        if (line ~ /^#ifndef TAPEGRAD_[A-Z0-9_]*_H$/)
            inserted[path] = 1
        if (match(line, /^#include "[^"]+"/)) {
            header = substr(line, 11, RLENGTH - 11)
            insert(header)
        } else if (again && (comment || line ~ /^\/\*/))
            comment = line !~ /\*\/$/ # a list's comments stand in its first copy
        else
            print line
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
        if (ARGV[i] ~ /^#/)
            print ARGV[i] # a line of the preprocessor
        else
            insert(ARGV[i])
    exit
}
