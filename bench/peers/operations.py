"""Every row of build/bench/operations beside the same in PyTorch: milliseconds and their ratio.

    bench/peers/operations.py --device cpu --threads 1 --rounds 5

Per row and precision --rounds rounds: our program, then PyTorch, each for --seconds of forward and as
long of forward with backward passes, of which the round takes the fastest. Printed are the medians of
the rounds, and of PyTorch's time / ours: more than 1, ours is faster. In bf16 PyTorch's operands are all
bf16, ours but the weights and statistics. Shapes and values are those of tests/operations.h: 8192 rows
of 256 elements on a CPU, 131072 on a GPU. An operation that PyTorch lacks is composed of its own.

--program "" leaves ours out, as --tiny does.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import torch
from torch.nn import functional as F

import common
import decay
import delta_rule
import linear

ELEMENT = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


class Sizes:
    def __init__(self, args):
        cuda = torch.device(args.device).type == "cuda"
        self.rows, self.width, self.wide = (64, 32, 64) if args.tiny else (8192, 256, 1024)
        self.sequences, self.positions, self.heads, self.head = (2, 8, 2, 8) if args.tiny else (64, 128, 8, 32)
        if cuda and not args.tiny:
            self.rows, self.sequences = 16 * self.rows, 16 * self.sequences


class Below(tuple):
    """The shape of whole numbers below self.limit."""

    def __new__(cls, limit, *shape):
        made = super().__new__(cls, shape)
        made.limit = limit
        return made


# ------------------------------------------------------------ rows: name -> shapes of inputs, function
def nchw(x):
    """Images [B, H, W, C] as PyTorch sees them; channels_last, nothing moves."""
    return x.permute(0, 3, 1, 2)


def by_heads(method):
    """A method of q, k, v, ... [B, H, N, ...] on ours [B, N, H, ...]."""
    return lambda *x: method(*(t.transpose(1, 2) for t in x)).transpose(1, 2)


def causal_softmax(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def decaying_softmax(q, k, v, x):
    sums = (-0.5 * F.softplus(x)).cumsum(-1)
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    mask = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, mask.to(q.dtype))


def linear_attention(q, k, v):
    q, k = linear.phi(q), linear.phi(k)
    return q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + 1e-6)


def delta(q, k, v, x):
    """PyTorch solves no triangular system in bf16."""
    k = k * (0.5 / k.shape[-1] ** 0.5)
    beta = 1.5 * torch.sigmoid(x)
    inputs = (t.float() for t in (q, k, v, beta, torch.zeros_like(beta)))
    return delta_rule.chunked(*inputs).to(q.dtype)


def key_decay_delta(q, k, v, x, decay, state):
    k = k * (0.5 / k.shape[-1] ** 0.5)
    inputs = (t.transpose(1, 2).float() for t in (q, k, v, 1.5 * torch.sigmoid(x), -0.5 * F.softplus(decay)))
    return torch.cat([t.flatten() for t in delta_rule.by_key(*inputs, state.float())]).to(q.dtype)


def rotary(x):
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(x.shape[1], device=x.device), frequencies)[None, :, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def polynomial_features(x):
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], 1, device=x.device)
    pairs = math.sqrt(2) * x[..., i] * x[..., j]
    return torch.cat([torch.ones_like(x[..., :1]), math.sqrt(2) * x, x * x, pairs], -1)


def random_features(x, w):
    x = 0.25 * x
    return (x @ w.mT - (x * x).sum(-1, keepdim=True) / 2).exp() / w.shape[0] ** 0.5


def fourier_features(x, w):
    x = 0.25 * x @ w.mT
    return torch.cat([x.cos(), x.sin()], -1) / w.shape[0] ** 0.5


def causal_convolution(x, w, bias):
    return F.conv1d(F.pad(x.mT, (w.shape[1] - 1, 0)), w[:, None], bias, groups=w.shape[0]).mT


def ctc(logits):
    B, N, symbols = logits.shape
    S = N // 8
    targets = (1 + torch.arange(B * S).square() // 3 % (symbols - 1)).reshape(B, S)
    lengths = [torch.full((B,), n) for n in (N, S)]
    log_p = F.log_softmax(logits.float(), -1).transpose(0, 1)
    return F.ctc_loss(log_p, targets, *lengths, reduction="none")


def batchnorm(x, weight, bias):
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    return F.batch_norm(x, mean, variance, weight, bias, training=True, momentum=0.1, eps=1e-3)


def recurrent(kind):
    """torch.lstm or torch.gru of one layer: the last input has rows of biases."""
    def forward(x, w_ih, w_hh, rows):
        gates = w_ih.shape[0] // w_hh.shape[1]
        state = x.new_zeros(1, x.shape[0], w_hh.shape[1])
        scale = 0.5 / w_hh.shape[1] ** 0.5
        weights = [scale * w_ih, scale * w_hh, rows[:gates].flatten(), rows[gates:].flatten()]
        start = (state, state) if kind is torch.lstm else state
        return kind(x, start, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)[0]
    return forward


def rows(s):
    R, C, W = s.rows, s.width, s.wide
    image, qkv = (R, 4, 4, C // 16), [(s.sequences, s.positions, s.heads, s.head)] * 3
    per_head, sequence = (s.sequences, s.positions, s.heads), (s.sequences, s.positions, C)
    pictures = (s.sequences, 4, 4, 32) if R < 8192 else (s.sequences, 32, 32, 32)
    table = {
        "matmul": ([(R, C), (C, W)], torch.matmul),
        "linear": ([(R, C), (W, C), (W,)], F.linear),
        "add_row": ([(R, C), (C,)], torch.add),
        "where": ([(R, C)] * 3, lambda a, b, c: torch.where(c != 0, a, b)),
        "dropout": ([(R, C)], lambda x: F.dropout(x, 0.3)),
        "softmax": ([(R, C)], lambda x: F.softmax(x, -1)),
        "log_softmax": ([(R, C)], lambda x: F.log_softmax(x, -1)),
        "layernorm": ([(R, C), (C,), (C,)], lambda x, w, b: F.layer_norm(x, (C,), w, b, 1e-3)),
        "rms_norm": ([(R, C), (C,)], lambda x, w: F.rms_norm(x, (C,), w, 0.3)),
        "l2_normalize": ([(R, C)], lambda x: F.normalize(x, dim=-1, eps=0.3)),
        "batchnorm": ([(R, C), (C,), (C,)], batchnorm),
        "residual_layernorm": ([(R, C), (R, C), (C,), (C,)], lambda x, y, w, b: F.layer_norm(
            x + F.dropout(y, 0.3), (C,), w, b, 1e-3)),
        "sum": ([(R, C)], torch.sum),
        "sum_first": ([(R, C)], lambda x: x.sum(0)),
        "variance_rows": ([(R, C)], lambda x: x.var(-1, correction=0)),
        "max_rows": ([(R, C)], lambda x: x.max(-1).values),
        "cumulative_sum": ([(R, C)], lambda x: x.cumsum(1)),
        "cross_entropy": ([(R, C), Below(C, R)], F.cross_entropy),
        "ctc_speech": ([(2, 24, 7) if R < 8192 else (16, 800, 41)], ctc),
        "embedding": ([(11, C), Below(11, R)], lambda w, i: F.embedding(i, w)),
        "transpose": ([(R, C)], lambda x: x.mT.contiguous()),
        "broadcast_rows": ([(C,)], lambda x: x.expand(R, C).contiguous()),
        "concat": ([(R, C)] * 2, lambda a, b: torch.cat([a, b], -1)),
        "unfold_3_by_3": ([image], lambda x: F.unfold(nchw(x), 3, padding=1)),
        "conv2d_3_by_3": ([pictures, (64, 3, 3, 32), (64,)],
                          lambda x, w, b: F.conv2d(nchw(x), nchw(w), b, padding=1)),
        "conv2d_depthwise": ([pictures, (32, 3, 3, 1), (32,)],
                             lambda x, w, b: F.conv2d(nchw(x), nchw(w), b, padding=1, groups=32)),
        "max_pool": ([image], lambda x: F.max_pool2d(nchw(x), 2)),
        "average_pool": ([image], lambda x: F.avg_pool2d(nchw(x), 2)),
        "causal_convolution": ([sequence, (C, 4), (C,)], causal_convolution),
        "slice_half": ([(R, C)], lambda x: x[:, : C // 2].contiguous()),
        "polynomial_features": (qkv[:1], polynomial_features),
        "random_features": ([qkv[0], (2 * s.head, s.head)], random_features),
        "fourier_features": ([qkv[0], (2 * s.head, s.head)], fourier_features),
        "rotary": (qkv[:1], rotary),
        "causal_linear_attention": (qkv, by_heads(linear.chunked)),
        "linear_attention": (qkv, by_heads(linear_attention)),
        "causal_softmax_attention": (qkv, by_heads(causal_softmax)),
        "decaying_softmax_attention": ([*qkv, per_head], by_heads(decaying_softmax)),
        "delta_rule": ([*qkv, per_head], by_heads(delta)),
        "key_decay_delta_rule": ([*qkv, per_head, qkv[0], (s.sequences, s.heads, s.head, s.head)], key_decay_delta),
        "lstm": ([sequence, (4 * C, C), (4 * C, C), (8, C)], recurrent(torch.lstm)),
        "gru": ([sequence, (3 * C, C), (3 * C, C), (6, C)], recurrent(torch.gru)),
    }
    table |= {name: ([(R, C)], function) for name, function in UNARY.items()}
    return table | {name: ([(R, C)] * 2, function) for name, function in BINARY.items()}


BINARY = {"add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div,
          "maximum": torch.maximum, "minimum": torch.minimum, "equal": torch.eq, "less": torch.lt,
          "less_equal": torch.le}
UNARY = {"exp": torch.exp, "log": torch.log, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
         "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
         "elu": F.elu, "elu_plus_one": lambda x: F.elu(x) + 1, "softplus": F.softplus, "silu": F.silu,
         "log_sigmoid": F.logsigmoid, "squared_relu": lambda x: F.relu(x).square(),
         "scale": lambda x: -2.5 * x, "add_scalar": lambda x: x + 0.75,
         "clamp": lambda x: x.clamp(0, 1000), "pow": lambda x: x**1.75, "sqrt": torch.sqrt,
         "square": torch.square, "abs": torch.abs, "sin": torch.sin, "cos": torch.cos}
POSITIVE = ("log", "pow", "sqrt", "divide")


# ------------------------------------------------------------------------------------------ measuring
class Row:
    def __init__(self, args, precision, name, shapes, function):
        make = {"device": args.device, "dtype": ELEMENT[precision]}
        self.function, self.inputs = function, []
        for shape in shapes:
            if isinstance(shape, Below):
                self.inputs.append(torch.arange(math.prod(shape), device=args.device)
                                   .mul(37).remainder(shape.limit).reshape(shape))
                continue
            x = torch.rand(shape, **make) + 0.5 if name in POSITIVE else torch.randn(shape, **make)
            self.inputs.append(x.requires_grad_())
        self.upstream = None

    def forward(self):
        with torch.no_grad():
            self.function(*self.inputs)

    def both(self):
        out = self.function(*self.inputs)
        if not out.requires_grad:  # a comparison
            return
        if self.upstream is None:
            self.upstream = torch.randn_like(out)
        out.backward(self.upstream)
        for x in self.inputs:
            x.grad = None


PASSES = ("forward", "forward+backward")


def torch_ms(row, args):
    return {label: common.measure(function, args.device, args.seconds)["ms_min"]
            for label, function in zip(PASSES, (row.forward, row.both))}


def our_records(args, precision, *more):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "records.json")
        command = [args.program, "--device", args.device, "--precision", precision, "--json", path, *more]
        command += ["--threads", str(args.threads)] if args.threads else []
        command += ["--processor-time"] if args.processor_time else []
        environment = {"OMP_PROC_BIND": "true", "GOMP_SPINCOUNT": "1000"} | os.environ
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        with open(path, encoding="utf-8") as file:
            return [record for record in json.load(file) if record["name"] != "machine"]


def our_ms(name, precision, args):
    records = our_records(args, precision, "--operation", name, "--seconds", str(args.seconds))
    return {record["pass"]: record["ms_min"] for record in records}


def measure(args, precision, name, row):
    """One line of the table: of PyTorch alone if there is no program."""
    rounds = []
    for _ in range(args.rounds):
        ours = our_ms(name, precision, args) if args.program else None
        rounds.append((ours, torch_ms(row, args)))
    record, text = {"name": name, "precision": precision}, f"{name:27} {precision:8}"
    for label in PASSES:
        theirs = [t[label] for _, t in rounds]
        record[label] = {"torch_ms": statistics.median(theirs)}
        text += f" {statistics.median(theirs):9.3f}"
        if args.program:
            ours = [o[label] for o, _ in rounds]
            ratio = statistics.median([t / o for o, t in zip(ours, theirs)])
            record[label] |= {"ms": statistics.median(ours), "ratio": round(ratio, 3)}
            text += f" {statistics.median(ours):9.3f} {ratio:6.2f}"
    print(text, flush=True)
    return record


def main():
    parser = common.options(__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bench/operations", help="ours")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--operations", nargs="+", help="only these rows")
    parser.add_argument("--json", help="a file for the records")
    parser.set_defaults(seconds=0.05, precisions=["float32", "bf16"])
    args = parser.parse_args()
    common.use(args)
    table, records = rows(Sizes(args)), []
    args.program = "" if args.tiny else args.program
    if args.program:
        names = {record["name"] for record in our_records(args, "float32", "--seconds", "0")}
        if names != set(table):
            sys.exit(f"rows of one side alone: {', '.join(sorted(names ^ set(table)))}")
    columns = ("PyTorch", "ours", "ratio") if args.program else ("PyTorch",)
    heads = "".join(f" {c:>{6 if c == 'ratio' else 9}}" for c in columns)
    print(f"ms; {common.machine(args.device)}, {torch.get_num_threads()} threads\n"
          f"{'':36} {PASSES[0]}{'':{len(heads) - len(PASSES[0])}}{PASSES[1]}\n{'':36}{heads}{heads}")
    for name in args.operations or table:
        for precision in args.precisions:
            common.set_precision(precision)
            row = Row(args, precision, name, *table[name])
            records.append(measure(args, precision, name, row))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(records, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
