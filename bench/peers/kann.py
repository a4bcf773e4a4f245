"""KANN beside tapegrad: an epoch of KANN's examples mlp and mnist-cnn, on MNIST, and rnn-bit, two GRUs.

    python bench/peers/kann.py --kann DIR --data DIR [--tasks mlp rnn-bit cnn] [--threads 1 2]

Both have the same layers, batches of 64, learning rates and samples; the loss and the error of the last epoch
are printed beside the time, and the losses must agree within --tolerance. --kann names a checkout of
github.com/attractivechaos/kann, built in a temporary directory with its own flags, and once more with matrix
products by a BLAS if there is one; --data the directory of MNIST's gzipped IDX files. bench/kann_tasks.c is
our program. KANN's GRU has one bias per gate and learns its first state; ours has PyTorch's form.
"""

import gzip
import os
import random
import re
import shutil
import tempfile

import programs

EPOCH = re.compile(r"epoch: (\d+); (?:training )?cost: (\S+) \(class error: (\S+)%\)")
PIXELS = 28 * 28
# Per task: KANN's example and options, samples and epochs.
TASKS = {"mlp": ("mlp", ["-v", "0"], 10000, 6),
         "rnn-bit": ("rnn-bit", ["-l", "2", "-n", "160", "-N", "-d", "0"], 3000, 4),
         "cnn": ("mnist-cnn", ["-v", "0", "-d", "0"], 1000, 4)}


def write_products(path, count):
    """Two numbers, below 10 000 and below 100, and their product."""
    numbers = random.Random(1)
    with open(path, "w") as file:
        for _ in range(count):
            a, b = numbers.randrange(10000), numbers.randrange(100)
            file.write(f"{a} {b} {a * b}\n")


def write_knd(data, directory, count):
    """KANN's text format, a name and the elements per line, tabs between: images, and digits as ten classes."""
    parts = []
    for kind, head, size in (("images-idx3", 16, PIXELS), ("labels-idx1", 8, 1)):
        path = f"{data}/train-{kind}-ubyte.gz"
        programs.need(path, "--data", "MNIST's gzipped IDX files")
        with gzip.open(path) as file:
            parts.append(file.read(head + count * size)[head:])
        if len(parts[-1]) < count * size:
            programs.quit(f"--samples is {count}, expected at most the number of images in {path}")
    images, digits = parts
    shades = [f"\t{shade / 255:.9g}" for shade in range(256)]
    with open(f"{directory}/x.knd", "w") as x, open(f"{directory}/y.knd", "w") as y:
        for i in range(count):
            x.write(str(i) + "".join(shades[p] for p in images[i * PIXELS:(i + 1) * PIXELS]) + "\n")
            y.write(str(i) + "".join(f"\t{int(digits[i] == digit)}" for digit in range(10)) + "\n")


def build_kann(args, directory):
    """Directories with KANN's programs, by name."""
    versions = {"KANN": []}
    if programs.blas_links("KANN", args.blas):
        versions["KANN with a BLAS"] = ["CPPFLAGS=-DHAVE_PTHREAD -DHAVE_CBLAS",
                                        f"LIBS=-lpthread -lz -lm {args.blas}"]
    found = {}
    for name, settings in versions.items():
        found[name] = f"{directory}/{name.replace(' ', '_')}"
        shutil.copytree(args.kann, found[name], ignore=shutil.ignore_patterns(".git", "*.o"))
        goals = {f"examples/{TASKS[task][0]}" for task in args.tasks}
        programs.must_build(["make", "-B", *settings, *goals], found[name])
    return found


def epochs_of(command, directory, threads, epochs):
    """Milliseconds of each epoch but the first, peak MiB, the last epoch's loss and error in percent."""
    lines, peak = programs.run(command, directory, threads, blas_threads=1)
    found = [(at, match) for at, line in lines if (match := EPOCH.match(line))]
    if len(found) != epochs:
        programs.quit(f"{' '.join(command)} printed {len(found)} epochs, expected {epochs}")
    times = [1e3 * (b[0] - a[0]) for a, b in zip(found, found[1:])]
    return times, peak, float(found[-1][1][2]), float(found[-1][1][3])


def measure(args, task, threads, kann, directory):
    example, flags, samples, epochs = TASKS[task]
    samples, epochs = args.samples or samples, args.epochs or epochs
    is_products = task == "rnn-bit"
    if is_products:
        write_products(f"{directory}/products.txt", samples)
    else:
        write_knd(args.data, directory, samples)
    files = ["products.txt"] if is_products else ["x.knd", "y.knd"]
    commands = {name: [f"{path}/examples/{example}", *flags, "-t", str(threads), "-m", str(epochs), *files]
                for name, path in kann.items()}
    data = f"{directory}/products.txt" if is_products else os.path.abspath(args.data)
    commands["tapegrad"] = [os.path.abspath(args.program), f"--task={task}", f"--threads={threads}",
                            f"--samples={samples}", f"--data={data}", f"--epochs={epochs}"]
    rows = {name: ([], [], "") for name in commands}
    losses = {}
    for _ in range(args.rounds):
        for name, command in commands.items():
            times, peak, losses[name], error = epochs_of(command, directory, threads, epochs)
            rows[name] = (rows[name][0] + times, rows[name][1] + [peak],
                          f"loss {losses[name]:.4g}, error {error:.2f} %")
    print(f"\n{task}: {samples} samples, {epochs} epochs, threads: {threads}")
    programs.table("ms per epoch", rows)
    for name in kann:
        if not abs(losses[name] - losses["tapegrad"]) <= args.tolerance * losses[name]:
            programs.quit(f"{task}: the loss is {losses['tapegrad']}, that of {name} {losses[name]}, expected a "
                          f"relative difference of at most {args.tolerance} (--tolerance)")


def main():
    parser = programs.options(__doc__, "build/bench/kann_tasks", tolerance=0.3)
    parser.add_argument("--kann", metavar="DIR", help="a checkout of github.com/attractivechaos/kann")
    parser.add_argument("--data", metavar="DIR", help="MNIST's gzipped IDX files, for mlp and cnn")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--threads", nargs="+", type=programs.positive, default=[1, 2])
    parser.add_argument("--samples", type=programs.positive, help="at least 65; default: 10000, 3000 and 1000")
    parser.add_argument("--epochs", type=programs.positive, help="the first is not timed; default: 6, 4 and 4")
    args = parser.parse_args()
    for name, value, least in (("samples", args.samples, 65), ("epochs", args.epochs, 2)):
        if value and value < least:
            programs.quit(f"--{name} is {value}, expected a whole number of at least {least}")
    programs.need_checkout(args.kann, "kann.c", "--kann", "KANN", "attractivechaos/kann")
    if not args.data and set(args.tasks) != {"rnn-bit"}:
        programs.quit("--data is missing, expected the directory of MNIST's gzipped IDX files")
    programs.need(args.program, "--program", "our program: make bench-programs")
    with tempfile.TemporaryDirectory() as directory:
        kann = build_kann(args, directory)
        for task in args.tasks:
            for threads in args.threads:
                measure(args, task, threads, kann, directory)


if __name__ == "__main__":
    main()
