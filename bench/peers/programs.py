"""Shared by the peers that are C programs: building them, running them, their lines and memory."""

import argparse
import os
import statistics
import subprocess
import sys
import time


def quit(sentence):
    sys.stdout.flush()
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr)
    sys.exit(2)


def positive(text):
    """Of an option: a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}, expected a whole number of at least 1")
    return int(text)


def need(path, option, what):
    """A file that a directory or program of the command line must have."""
    if not os.path.exists(path):
        quit(f"{option}: {path} is missing, expected {what}")


def need_checkout(directory, file, option, name, repository):
    what = f"a checkout of {name}: git clone https://github.com/{repository}"
    if not directory:
        quit(f"{option} is missing, expected {what}")
    need(f"{directory}/{file}", option, what)


def options(purpose, program, tolerance):
    """The options that they share; purpose: its first line."""
    parser = argparse.ArgumentParser(description=purpose.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--program", default=program, help="ours, of make bench-programs")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--tolerance", type=float, default=tolerance, help="of the losses")
    parser.add_argument("--blas", metavar="FLAGS", default="-lopenblas",
                        help="as in --blas=-lblas: how a BLAS is linked")
    return parser


def build(command, directory=None):
    """Runs a compiler or make; whether it succeeded, and what it printed."""
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode == 0, done.stdout


def must_build(command, directory=None):
    ok, printed = build(command, directory)
    if not ok:
        quit(f"{' '.join(command)} failed: {printed.strip()}")


def blas_links(name, flags):
    """Whether a program with cblas_sgemm links with these flags; if not, says what is skipped."""
    links = subprocess.run(["cc", "-x", "c", "-", "-o", os.devnull, *flags.split()], text=True,
                           input="void cblas_sgemm(void); int main(void) { cblas_sgemm(); }",
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    if not links:
        print(f"{name} with a BLAS is skipped: no program with cblas_sgemm links by {flags} (--blas)")
    return links


def run(command, directory=None, threads=None, blas_threads=None):
    """The program's lines as (seconds since its start, text), and its peak resident memory in MiB."""
    environment = dict(os.environ)
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(blas_threads or threads)}
    start = time.perf_counter()
    program = subprocess.Popen(command, cwd=directory, env=environment, text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = [(time.perf_counter() - start, line.rstrip("\n")) for line in program.stdout]
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    if status:
        quit(f"{' '.join(command)} ended with status {program.returncode}: {lines[-1][1] if lines else ''}")
    return lines, usage.ru_maxrss / 1024


def table(unit, rows):
    """rows: name -> (times, peaks, a remark); ratios to the last row, which is ours."""
    ours = statistics.median(list(rows.values())[-1][0])
    print(f"{'':28} {unit:>12} {'fastest':>9} {'ratio':>6} {'peak MiB':>9}")
    for name, (times, peaks, remark) in rows.items():
        median = statistics.median(times)
        print(f"{name:28} {median:12.1f} {min(times):9.1f} {median / ours:6.2f} {max(peaks):9.0f}  {remark}")
