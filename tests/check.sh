# Sourced by the tests that are scripts: a directory of their own, their checks, and Check's last line.
set -u
build=${TAPEGRAD_BUILD:-build} count=0 failures=0
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
# Open MPI's own files: of two mpirun at once, one may remove the folder that the other has just made.
export OMPI_MCA_orte_tmpdir_base=$directory

fail() { failures=$((failures + 1)) && echo "$*"; }
# check WHAT COMMAND...: the command succeeds; $directory/said keeps what it prints
check() {
    count=$((count + 1))
    "${@:2}" >"$directory/said" 2>&1 || fail "$1: $(tail -n 3 "$directory/said")"
}
# The last command of a test.
report() {
    echo "$((100 * (count - failures) / count))%: Checks: $count, Failures: $failures, Errors: 0"
    [ "$failures" -eq 0 ]
}
