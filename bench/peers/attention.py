"""One point of bench/figure1 in PyTorch: causal attention forward and backward, time and memory.

  torch-softmax      torch.nn.functional.scaled_dot_product_attention
  torch-chunked      chunked linear attention in PyTorch operations
  fast-transformers  CausalLinearAttention of the package pytorch-fast-transformers, or of FT_DIR.
                     (Its Reformer attention is no peer of lsh: it attends across buckets, averages
                     its rounds, and allocates a causal mask of N x N elements.)

--list prints each name, followed by the reason if the method cannot be measured: it is missing, or
its output or a gradient differs from the definition in float64. A point is a line of JSON:
milliseconds per batch, and peak bytes including inputs, output and gradients (on a GPU of PyTorch's
allocator, on the CPU the growth of the process).
"""

import os
import resource
import sys
import time
from collections import namedtuple

import torch
from torch.nn import functional as F

import common
import linear

TOLERANCE = {"float32": 1e-5, "tf32": 1e-2, "bf16": 5e-2}  # of the largest value


def softmax(batch, length, args):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def chunked(batch, length, args):
    return linear.chunked


def fast_transformers(batch, length, args):
    """As the layers of that package call it, with masks made once; of a clone only its product."""
    if "FT_DIR" in os.environ:
        return linear.fast_transformers
    from fast_transformers.attention import CausalLinearAttention
    from fast_transformers.masking import LengthMask, TriangularCausalMask
    attention = CausalLinearAttention(args.head_dim)
    causal = TriangularCausalMask(length, args.device)
    lengths = LengthMask(torch.full((batch,), length, device=args.device))
    return lambda q, k, v: attention(q, k, v, causal, lengths, lengths)


# A factory of the function of q, k, v for a batch and length; their axis of heads; the definition.
Method = namedtuple("Method", "make heads_axis definition")
METHODS = {
    "torch-softmax": Method(softmax, 1, linear.softmax_definition),
    "torch-chunked": Method(chunked, 1, linear.linear_definition),
    "fast-transformers": Method(fast_transformers, 2, linear.linear_definition),
}


class Case:
    def __init__(self, method, args, batch, length):
        self.attend = method.make(batch, length, args)
        element = torch.bfloat16 if args.precisions[0] == "bf16" else torch.float32
        size = [batch, length, args.head_dim]
        size.insert(method.heads_axis, args.heads)
        make = {"device": args.device, "dtype": element}
        self.inputs = [torch.randn(size, **make, requires_grad=True) for _ in range(3)]
        self.upstream = torch.randn(size, **make)

    def run(self):
        for x in self.inputs:
            x.grad = None
        out = self.attend(*self.inputs)
        out.backward(self.upstream)
        return out


def difference(method, args):
    """The largest difference from the definition, relative to the largest value of each tensor."""
    torch.manual_seed(1)
    case = Case(method, args, 2, 100)  # two chunks, the second incomplete
    found = [case.run(), *(x.grad for x in case.inputs)]

    def exact(x):
        return x.detach().double().transpose(1, method.heads_axis)

    inputs = [exact(x).requires_grad_() for x in case.inputs]
    out = method.definition(*inputs)
    out.backward(exact(case.upstream))
    expected = [out.detach(), *(x.grad for x in inputs)]
    return max(float((exact(x) - y).abs().max() / y.abs().max()) for x, y in zip(found, expected))


def obstacle(method, args):
    """The reason why the method cannot be measured, or None."""
    try:
        found = difference(method, args)
    except Exception as error:  # of another module or version
        return f"{type(error).__name__}: {error}".split("\n")[0]
    if found <= TOLERANCE[args.precisions[0]]:
        return None
    return f"it differs from its definition by {found:.2g} of the largest number"


def peak(args):
    if torch.device(args.device).type == "cuda":
        return torch.cuda.max_memory_allocated(args.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def once(case, args):
    start = time.perf_counter()
    case.run()
    common.wait(args.device)
    return time.perf_counter() - start


def milliseconds(case, args):
    """As figure_time in bench/figure.c: few repetitions of long steps on the CPU."""
    first = once(case, args)
    if first <= 1 or torch.device(args.device).type == "cuda":
        return common.measure(case.run, args.device, args.seconds)["ms"]
    return 1e3 * (first if first > 10 else once(case, args))


def main():
    parser = common.options(__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="print the methods")
    what.add_argument("--method", choices=METHODS, help="measure this method")
    parser.add_argument("--length", type=int, default=512, help="positions")
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--heads", type=int, default=8, help="number of heads")
    parser.add_argument("--head-dim", type=int, default=32, help="size of a head")
    args = parser.parse_args()
    common.use(args)
    common.set_precision(args.precisions[0])
    if args.list:
        for name, method in METHODS.items():
            reason = obstacle(method, args)
            print(f"{name}: {reason}" if reason else name)
        return 0
    method = METHODS[args.method]
    Case(method, args, 1, 128).run()  # memory that PyTorch allocates in any case
    cuda = torch.device(args.device).type == "cuda"
    before = 0 if cuda else peak(args)
    case = Case(method, args, args.batch, args.length)
    ms = milliseconds(case, args)
    common.report(ms=ms, bytes=peak(args) - before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
