"""tapegrad beside PyTorch and llm.c: a training step of GPT-2 124M on CPU, as llm.c's train_gpt2.c does it.

    python bench/peers/gpt2.py [--llmc DIR] [--threads 2] [--compile]

B 4, T 64, float32, AdamW. All start from the same random weights, read the same tokens and must agree in the
loss of every step. They run in turn, --rounds times. DIR is a checkout of github.com/karpathy/llm.c; it is
built in a temporary directory (which TMPDIR names; 1.5 GB) with its own flags, and once more with its matrix
products by a BLAS if there is one. bench/gpt2_step.c is our program.
"""

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

import programs

BATCH, LENGTH, WARM_UP = 4, 64, 2
TOKENS = BATCH * LENGTH
STEP = re.compile(r"step (\d+): (?:train )?loss (\S+) \((?:took )?(\S+) ms\)")
MODEL, DATA = "gpt2_124M.bin", "dev/data/tinyshakespeare/tiny_shakespeare_%s.bin"

# matmul_forward and matmul_backward of train_gpt2.c, by a BLAS: rows are positions.
PRODUCTS = """
#include <stddef.h>
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
void cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                 int);

void matmul_forward(float *out, const float *x, const float *weight, const float *bias, int B, int T,
                    int in, int n)
{
    cblas_sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, B * T, n, in, 1, x, in, weight, in, 0, out, n);
    for (int row = 0; bias && row < B * T; row++)
        for (int j = 0; j < n; j++)
            out[(size_t)row * n + j] += bias[j];
}

void matmul_backward(float *dx, float *dweight, float *dbias, const float *dout, const float *x,
                     const float *weight, int B, int T, int in, int n)
{
    cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, B * T, in, n, 1, dout, n, weight, in, 1, dx, in);
    cblas_sgemm(ROW_MAJOR, TRANSPOSED, PLAIN, n, in, B * T, 1, dout, n, x, in, 1, dweight, in);
    for (int row = 0; dbias && row < B * T; row++)
        for (int j = 0; j < n; j++)
            dbias[j] += dout[(size_t)row * n + j];
}
"""


class Size:
    def __init__(self, tiny):
        self.layers, self.heads = (2, 2) if tiny else (12, 12)
        self.context, self.vocabulary, self.padded = (64, 500, 512) if tiny else (1024, 50257, 50304)
        self.width = 64 * self.heads

    def tensors(self):
        """Hugging Face's names and the shapes as in PyTorch, [out, in], in the order of llm.c's checkpoint."""
        C = self.width
        yield "wte.weight", [self.vocabulary, C]
        yield "wpe.weight", [self.context, C]
        for name, shape in (("ln_1.weight", [C]), ("ln_1.bias", [C]), ("attn.c_attn.weight", [3 * C, C]),
                            ("attn.c_attn.bias", [3 * C]), ("attn.c_proj.weight", [C, C]),
                            ("attn.c_proj.bias", [C]), ("ln_2.weight", [C]), ("ln_2.bias", [C]),
                            ("mlp.c_fc.weight", [4 * C, C]), ("mlp.c_fc.bias", [4 * C]),
                            ("mlp.c_proj.weight", [C, 4 * C]), ("mlp.c_proj.bias", [C])):
            for layer in range(self.layers):
                yield f"h.{layer}.{name}", shape
        yield "ln_f.weight", [C]
        yield "ln_f.bias", [C]


def write_weights(size, directory):
    """llm.c's checkpoint, version 3, and a safetensors file of Hugging Face's names, converted for us."""
    import torch
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../examples"))
    import from_pytorch
    torch.manual_seed(1)
    tensors = {}
    with open(f"{directory}/{MODEL}", "wb") as file:
        header = [20240326, 3, size.context, size.vocabulary, size.layers, size.heads, size.width, size.padded]
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for name, shape in size.tensors():
            value = 0.02 * torch.randn(shape) + (1.0 if re.search(r"ln_\w\.weight", name) else 0.0)
            file.write(value.numpy().tobytes())
            if name == "wte.weight":
                file.write(bytes(4 * size.width * (size.padded - size.vocabulary)))
            if "c_" in name and len(shape) == 2:
                value = value.T.contiguous()  # Hugging Face stores [in, out]
            tensors[name] = from_pytorch.Tensor("F32", value.shape, value.numpy().tobytes())
    from_pytorch.write_safetensors(from_pytorch.convert(tensors, [], {}), f"{directory}/ours.safetensors")


def write_tokens(size, directory, steps):
    """llm.c's format, one file to train and to validate."""
    import torch
    count = max(steps, 5) * TOKENS + 1  # llm.c validates on 5 batches
    os.makedirs(f"{directory}/{os.path.dirname(DATA)}")
    for part in ("train", "val"):
        torch.manual_seed(2)
        with open(f"{directory}/{DATA % part}", "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.write(struct.pack(f"<{count}H", *torch.randint(size.vocabulary, (count,)).tolist()))


def build_llmc(args, directory):
    """A copy that takes --steps steps on tokens in the file's order; the names and commands of its programs."""
    with open(f"{args.llmc}/train_gpt2.c") as file:
        source = file.read()
    for old, new in (("step <= 40", f"step < {args.steps}"),
                     ("dataloader_init(&train_loader, train_tokens, B, T, 0, 1, 1)",
                      "dataloader_init(&train_loader, train_tokens, B, T, 0, 1, 0)")):
        if source.count(old) != 1:
            programs.quit(f'--llmc: {args.llmc}/train_gpt2.c has no single "{old}", expected the version of 2024')
        source = source.replace(old, new)
    with_blas = re.sub(r"^void (matmul_(?:forward|backward))(\([^{]*\)) \{", r"void \1\2;\nvoid loops_\1\2 {",
                       source, flags=re.MULTILINE)
    versions = [("llm.c", source, "")]
    if programs.blas_links("llm.c", args.blas):
        versions.append(("llm.c with a BLAS", with_blas, f"products.c {args.blas}"))
    with open(f"{directory}/products.c", "w") as file:
        file.write(PRODUCTS)
    os.symlink(os.path.abspath(f"{args.llmc}/llmc"), f"{directory}/llmc")
    os.symlink(os.path.abspath(f"{args.llmc}/Makefile"), f"{directory}/Makefile")
    commands = {}
    for name, text, link in versions:
        with open(f"{directory}/train_gpt2.c", "w") as file:
            file.write(text)
        programs.must_build(["make", "-B", "train_gpt2", "CC=gcc", f"LDFLAGS={link}"], directory)
        program = f"{directory}/{name.replace(' ', '_')}"
        os.rename(f"{directory}/train_gpt2", program)
        commands[name] = [program]
    return commands


def pytorch(args, size):
    """The steps by PyTorch, in this process, printed as the other programs print them."""
    import gpt2_model
    import torch
    torch.set_num_threads(args.threads)
    model = gpt2_model.Gpt2(size)
    names = (("attn.c_attn", "input"), ("attn.c_proj", "output"), ("mlp.c_fc", "ff1"), ("mlp.c_proj", "ff2"),
             ("wte", "tokens"), ("wpe", "positions"), ("ln_f", "norm"), ("ln_", "norm"), ("h.", "blocks."))
    with open(f"{args.worker}/{MODEL}", "rb") as file, torch.no_grad():
        file.seek(1024)
        for name, shape in size.tensors():
            for old, new in names:
                name = name.replace(old, new)
            value = torch.frombuffer(bytearray(file.read(4 * torch.Size(shape).numel())), dtype=torch.float32)
            model.get_parameter(name).copy_(value.view(shape))
            if name == "tokens.weight":
                file.seek(4 * size.width * (size.padded - size.vocabulary), os.SEEK_CUR)
    with open(f"{args.worker}/{DATA % 'train'}", "rb") as file:
        file.seek(1024)
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).long()
    loss_of = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    for step in range(args.steps):
        start = time.perf_counter()
        window = tokens[step * TOKENS:(step + 1) * TOKENS + 1]
        optimizer.zero_grad()
        loss = loss_of(window[:-1].view(BATCH, LENGTH), window[1:].view(BATCH, LENGTH))
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step {step}: loss {value:.6f} ({1e3 * (time.perf_counter() - start):.2f} ms)", flush=True)


def compare(args, losses):
    """Ends with a sentence if the losses of a step differ."""
    first, expected = next(iter(losses.items()))
    for name, values in losses.items():
        for step, (a, b) in enumerate(zip(expected, values)):
            if not abs(a - b) <= args.tolerance:
                programs.quit(f"step {step}: the loss of {name} is {b}, that of {first} is {a}, "
                              f"expected a difference of at most {args.tolerance} (--tolerance)")


def in_turn(args, commands, directory):
    """Runs all of them --rounds times, compares their losses, prints the table."""
    times, peaks, losses = ({name: [] for name in commands} for _ in range(3))
    for turn in range(args.rounds):
        for name, command in commands.items():
            lines, peak = programs.run(command, directory, args.threads)
            steps = [found for _, line in lines if (found := STEP.match(line))]
            if len(steps) != args.steps:
                programs.quit(f"{name} printed {len(steps)} steps, expected {args.steps}")
            losses[name] = [float(step[2]) for step in steps]
            times[name] += [float(step[3]) for step in steps[WARM_UP:]]
            peaks[name].append(peak)
            print(f"round {turn + 1}, {name}: losses {' '.join(step[2] for step in steps)}", flush=True)
        compare(args, losses)
    print(f"the losses agree within {args.tolerance}; {args.threads} threads")
    programs.table("ms per step", {name: (times[name], peaks[name], "") for name in commands})


def main():
    parser = programs.options(__doc__, "build/bench/gpt2_step", tolerance=1e-4)
    parser.add_argument("--llmc", metavar="DIR", help="a checkout of github.com/karpathy/llm.c")
    parser.add_argument("--threads", type=programs.positive, default=os.cpu_count())
    parser.add_argument("--steps", type=programs.positive, default=6,
                        help=f"per run, the first {WARM_UP} not timed; 3 to 20")
    parser.add_argument("--compile", action="store_true", help="PyTorch by torch.compile, too")
    parser.add_argument("--tiny", action="store_true", help="two layers of 128 channels, to try it in seconds")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = Size(args.tiny)
    if args.write:
        write_weights(size, args.worker)
        return write_tokens(size, args.worker, args.steps)
    if args.worker:
        return pytorch(args, size)
    if not WARM_UP < args.steps <= 20:
        programs.quit(f"--steps is {args.steps}, expected 3 to 20: later llm.c draws a sample")
    programs.need(args.program, "--program", "our program: make bench-programs")
    if args.llmc:
        programs.need_checkout(args.llmc, "train_gpt2.c", "--llmc", "llm.c", "karpathy/llm.c")
    with tempfile.TemporaryDirectory() as directory:
        commands = build_llmc(args, directory) if args.llmc else {}
        worker = [sys.executable, os.path.abspath(__file__), "--worker", directory, "--steps", str(args.steps),
                  "--threads", str(args.threads)] + ["--tiny"] * args.tiny
        # In a process of its own, as a child's peak memory begins with its parent's.
        if subprocess.run(worker + ["--write"]).returncode:
            programs.quit(f"{sys.executable} did not write the weights, expected a Python with PyTorch")
        commands["PyTorch, eager"] = worker
        if args.compile:
            commands["PyTorch, compiled"] = worker + ["--compile"]
        settings = {"weights": f"{directory}/ours.safetensors", "tokens": f"{directory}/{DATA % 'train'}",
                    "threads": args.threads, "steps": args.steps, "layers": size.layers, "heads": size.heads,
                    "context": size.context, "vocabulary": size.vocabulary}
        commands["tapegrad"] = [os.path.abspath(args.program),
                                *(f"--{option}={value}" for option, value in settings.items())]
        in_turn(args, commands, directory)


if __name__ == "__main__":
    main()
