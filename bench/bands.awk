# The mean of several seeds and the band that holds them. Rows in: NAME,SEED,X,Y, in ascending order of
# X within a run. Out: a block "# NAME" per name, with lines "X MEAN LOWEST HIGHEST"; gnuplot reads one
# by `index 'NAME'`. With -v points=N consecutive rows of a run are averaged first, until at most N
# are left; then X is the last of them.
BEGIN { FS = "," }
{
    run = $1 SUBSEP $2
    if (!(run in rows)) runs[++run_count] = run
    x[run, ++rows[run]] = $3
    y[run, rows[run]] = $4
}
END {
    for (r = 1; r <= run_count; r++) {
        run = runs[r]
        name = substr(run, 1, index(run, SUBSEP) - 1)
        if (!(name in count)) names[++name_count] = name
        each = points ? int((rows[run] - 1) / points) + 1 : 1
        for (first = 1; first <= rows[run]; first += each) {
            last = first + each - 1 < rows[run] ? first + each - 1 : rows[run]
            mean = 0
            for (i = first; i <= last; i++) mean += y[run, i] / (last - first + 1)
            add(name, x[run, last], mean)
        }
    }
    for (n = 1; n <= name_count; n++) {
        name = names[n]
        print "# " name
        for (i = 1; i <= count[name]; i++) {
            at = name SUBSEP position[name, i]
            print position[name, i], sum[at] / seeds[at], lowest[at], highest[at]
        }
        print "\n"
    }
}
function add(name, x, value,    at) {
    at = name SUBSEP x
    if (!seeds[at]++) {
        position[name, ++count[name]] = x
        lowest[at] = highest[at] = value
    }
    sum[at] += value
    if (value < lowest[at]) lowest[at] = value
    if (value > highest[at]) highest[at] = value
}
