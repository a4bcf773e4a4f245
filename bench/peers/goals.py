"""Time and memory of other libraries at the shapes of `bench/attention --goals`.

  fla, fla-fused     flash-linear-attention's chunk and fused kernels, elu + 1 and its normalizer
  fast-transformers  its causal product with elu + 1 and its normalizer, only in float32
  torch-chunked      chunked linear attention in PyTorch operations
  torch-compiled     the same by torch.compile
  sdpa-*             softmax attention, scaled_dot_product_attention by one backend

One JSON line per shape, precision and pass: microseconds per call, eager and replayed from a CUDA
graph of several calls (null if the method cannot be captured), and peak bytes without the inputs.
--compare measures nothing: it compares values and gradients with the definition in float64, and
compiles what the method compiles. Float32 may use tf32 here, as flash-linear-attention always does;
the differences are in the lines.
"""

import functools
import sys

import torch
from torch.nn import functional as F

import attention
import common
import linear

SHAPES = [  # B, H, N, D
    (1, 8, 512, 32), (1, 8, 4096, 32), (1, 8, 65536, 32),
    (8, 8, 4096, 64), (1, 16, 65536, 64), (4, 16, 8192, 128),
]
TINY_SHAPES = [(1, 2, 128, 8), (2, 1, 100, 16)]
MOST_DIFFERENCE = {"float32": 1e-2, "bf16": 5e-2}  # of the largest value: float32 with tf32


def sdpa(backend):
    def make(batch, length, args):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        chosen = getattr(SDPBackend, backend)

        def attend(q, k, v):
            with sdpa_kernel([chosen]):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return attend
    return attention.Method(make, 1, linear.softmax_definition)


def plain(function, heads_axis):
    return attention.Method(lambda *_: function, heads_axis, linear.linear_definition)


METHODS = {
    "fla": plain(linear.fla_chunk, 2),
    "sdpa-flash": sdpa("FLASH_ATTENTION"),
    "sdpa-cudnn": sdpa("CUDNN_ATTENTION"),
    "fla-fused": plain(linear.fla_fused, 2),
    "fast-transformers": plain(linear.fast_transformers, 2),
    "torch-compiled": attention.Method(lambda *_: torch.compile(linear.chunked), 1,
                                       linear.linear_definition),
    "torch-chunked": plain(linear.chunked, 1),
    "sdpa-efficient": sdpa("EFFICIENT_ATTENTION"),
    "sdpa-math": sdpa("MATH"),
}
HALF_ALONE = ("sdpa-flash", "sdpa-cudnn")
FLOAT_ALONE = ("fast-transformers", "sdpa-efficient")
NOT_CAPTURED = ("fast-transformers",)  # launches on the default stream
ON_CPU = ("fast-transformers", "torch-compiled", "torch-chunked", "sdpa-math")


def methods(args):
    """The available methods of the device; reports the reason for the others. sdpa-math, which is
    quadratic in memory, is for the rehearsal on the CPU."""
    cuda = torch.device(args.device).type == "cuda"
    there = []
    for name in METHODS:
        reason = linear.missing(name)
        if name == "sdpa-math" if cuda else name not in ON_CPU:
            continue
        if reason:
            print(f"{name}: skipped: {reason}", file=sys.stderr)
        else:
            there.append(name)
    return there


def precisions(name, args):
    skipped = "float32" if name in HALF_ALONE else "bf16" if name in FLOAT_ALONE else None
    return [p for p in args.precisions if p not in (skipped, "tf32")]


def graph_milliseconds(run, args, calls):
    """Milliseconds per call, replayed from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return common.measure(graph.replay, args.device, args.seconds)["ms"] / calls


def microseconds(name, run, args):
    """Eager and replayed (or None). Long calls are not captured: launch overhead is negligible."""
    eager = common.measure(run, args.device, args.seconds)["ms"]
    cuda = torch.device(args.device).type == "cuda"
    if not cuda or name in NOT_CAPTURED:
        return round(1e3 * eager, 2), None
    graph = eager if eager > 20 else graph_milliseconds(run, args, 10 if eager < 2 else 3)
    return round(1e3 * eager, 2), round(1e3 * graph, 2)


def peak_bytes(run, args):
    if torch.device(args.device).type != "cuda":
        return None
    run()
    before = torch.cuda.memory_allocated(args.device)
    torch.cuda.reset_peak_memory_stats(args.device)
    run()
    return torch.cuda.max_memory_allocated(args.device) - before


def measure(name, shape, precision, args):
    batch, args.heads, length, args.head_dim = shape
    args.precisions = [precision]
    case = attention.Case(METHODS[name], args, batch, length)
    if name.startswith("fla"):
        linear.tune_again()

    def forward():
        with torch.no_grad():
            return case.attend(*case.inputs)

    def with_backward():
        return torch.autograd.grad(case.attend(*case.inputs), case.inputs, case.upstream)

    for label, run in (("forward", forward), ("forward+backward", with_backward)):
        eager, graph = microseconds(name, run, args)
        common.report(name=name, B=batch, H=args.heads, N=length, D=args.head_dim,
                      precision=precision, **{"pass": label}, us_eager=eager, us_graph=graph,
                      peak_bytes=peak_bytes(run, args), **common.machine(args.device))


def compare(name, head_dim, precision, args):
    args.heads, args.head_dim, args.precisions = 2, head_dim, [precision]
    if name.startswith("fla"):
        linear.fla_module("fla.ops.linear_attn.chunk")
        linear.fla_module("fla.ops.linear_attn.fused_chunk")
        linear.tune_again()
    found = attention.difference(METHODS[name], args)
    common.report(name=name, D=head_dim, precision=precision, difference=found)
    if not found <= MOST_DIFFERENCE[precision]:
        sys.exit(f"{name} differs from its definition by {found:.2g} of the largest value")


def main():
    parser = common.options(__doc__.split("\n")[0])
    parser.set_defaults(seconds=0.1)
    parser.add_argument("method", nargs="?", choices=METHODS, help="the method to measure")
    parser.add_argument("--compare", action="store_true",
                        help="compare with the definition instead")
    parser.add_argument("--head-dim", type=int, help="compare only heads of this size")
    parser.add_argument("--methods", action="store_true", help="print the methods of the device")
    args = parser.parse_args()
    if args.methods:
        print(*methods(args))
        return 0
    if not args.method:
        parser.error("expected a method")
    common.use(args)
    common.set_precision("tf32" if args.method.startswith("torch") else "float32")
    shapes = TINY_SHAPES if args.tiny else SHAPES
    chosen = precisions(args.method, args)
    if args.compare:
        for head_dim in [args.head_dim] if args.head_dim else sorted({D for *_, D in shapes}):
            for precision in chosen:
                compare(args.method, head_dim, precision, args)
        return 0
    failed = False
    for shape in shapes:
        for precision in chosen:
            try:
                measure(args.method, shape, precision, args)
            except Exception as error:  # the others may still run
                failed = True
                common.report(name=args.method, shape=shape, precision=precision,
                              failed=f"{type(error).__name__}: {error}".split("\n")[0])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
