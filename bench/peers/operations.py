"""Copies, matrix products and the transformer's other operations in PyTorch: GB/s and TFLOP/s.

For comparison with bench/operations on the same GPU: the bandwidth of a copy, the rate of cuBLAS,
and single operations, forward and with backward, at its sizes, 131072 rows of 256
elements on a GPU, 8192 on a CPU.
GB/s count the bytes of a perfect kernel, which reads each input once and writes each output once.
One JSON line per case.
"""

import sys

import torch
from torch.nn import functional as F

import common

ELEMENT = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


def copies(args):
    sizes = [1 << 10, 1 << 14] if args.tiny else [1 << 20, 1 << 24, 1 << 28]
    for count in sizes:
        a = torch.randn(count, device=args.device)
        b = torch.empty_like(a)
        times = common.measure(lambda: b.copy_(a), args.device, args.seconds)
        rate = 8 * count / times["ms"] * 1e-6
        common.report(name="copy", bytes=4 * count, **times, gbytes_per_second=round(rate, 1),
                      **common.machine(args.device))


def products(args, precision):
    """n, k, m: products of the step forward, for the gradients of x and weight; a large one."""
    sizes = [(8192, 256, 768), (8192, 256, 1024), (8192, 1024, 256), (256, 8192, 1024),
             (8192, 8192, 8192)]
    if args.tiny:
        sizes = [(16, 8, 24), (8, 16, 24)]
    for n, k, m in sizes:
        a = torch.randn(n, k, device=args.device, dtype=ELEMENT[precision])
        b = torch.randn(k, m, device=args.device, dtype=ELEMENT[precision])
        out = torch.empty(n, m, device=args.device, dtype=ELEMENT[precision])
        times = common.measure(lambda: torch.mm(a, b, out=out), args.device, args.seconds)
        common.report(name="product", precision=precision, n=n, k=k, m=m, **times,
                      tflops=round(2 * n * k * m / times["ms"] * 1e-9, 3),
                      **common.machine(args.device))


def operations(args, precision):
    """Operations on rows x columns elements with their passes over memory, forward and in all."""
    rows, columns, classes = (64, 16, 5) if args.tiny else (8192 * (16 if torch.device(args.device).type == "cuda" else 1), 256, 11)
    make = {"device": args.device, "dtype": ELEMENT[precision]}
    x = torch.randn(rows, columns, **make, requires_grad=True)
    y = torch.randn(rows, columns, **make, requires_grad=True)
    row = torch.randn(columns, **make, requires_grad=True)
    targets = torch.arange(rows, device=args.device) * 37 % classes
    gradient = torch.randn(rows, columns, **make)
    cases = [
        ("add", lambda: x + y, 3, 6),
        ("multiply", lambda: x * y, 3, 9),
        ("relu", lambda: F.relu(x), 2, 5),
        ("gelu", lambda: F.gelu(x), 2, 5),
        ("gelu_tanh", lambda: F.gelu(x, approximate="tanh"), 2, 5),
        ("elu", lambda: F.elu(x), 2, 5),
        ("softmax", lambda: F.softmax(x, -1), 2, 5),
        ("layernorm", lambda: F.layer_norm(x, (columns,), row, row), 2, 5),
        ("residual_layernorm",
         lambda: F.layer_norm(x + F.dropout(y, 0.1), (columns,), row, row), 3, 8),
        ("dropout", lambda: F.dropout(x, 0.1), 2, 4),
        ("cross_entropy", lambda: F.cross_entropy(x, targets), 1, 3),
    ]
    for name, forward, passes, all_passes in cases:
        def forward_only():
            with torch.no_grad():
                forward()

        def with_backward():
            out = forward()
            out.backward(gradient if out.dim() else None)
            x.grad = y.grad = row.grad = None

        for label, function, count in (("forward", forward_only, passes),
                                       ("forward+backward", with_backward, all_passes)):
            times = common.measure(function, args.device, args.seconds)
            rate = count * rows * columns * x.element_size() / times["ms"] * 1e-6
            common.report(name=name, precision=precision, **{"pass": label}, **times,
                          gbytes_per_second=round(rate, 1), **common.machine(args.device))


def ctc(args):
    """Connectionist temporal classification at the sizes of bench/operations' ctc_speech."""
    batch, length, symbols = (2, 24, 7) if args.tiny else (16, 800, 41)
    logits = torch.randn(length, batch, symbols, device=args.device, requires_grad=True)
    targets = torch.arange(batch * (length // 8)).reshape(batch, -1) * 7 % (symbols - 1) + 1
    lengths = [torch.full((batch,), n) for n in (length, length // 8)]
    gradient = torch.ones(batch, device=args.device)

    def loss():
        return F.ctc_loss(F.log_softmax(logits, -1), targets, *lengths, reduction="none")

    def forward():
        with torch.no_grad():
            loss()

    def with_backward():
        loss().backward(gradient)
        logits.grad = None

    for label, function in (("forward", forward), ("forward+backward", with_backward)):
        common.report(name="ctc_speech", **{"pass": label},
                      **common.measure(function, args.device, args.seconds),
                      **common.machine(args.device))


def main():
    args = common.options(__doc__.split("\n")[0]).parse_args()
    common.use(args)
    copies(args)
    ctc(args)
    for precision in args.precisions:
        common.set_precision(precision)
        products(args, precision)
        if precision != "tf32":  # only products differ there
            operations(args, precision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
