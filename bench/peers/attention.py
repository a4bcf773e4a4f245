"""One point of bench/figure1 in PyTorch: causal attention forward and backward, time and memory.

  torch-softmax      torch.nn.functional.scaled_dot_product_attention
  torch-chunked      linear attention in chunks, by operations of PyTorch (copy_task_step.py's)
  fast-transformers  linear attention by the package of that name, pytorch-fast-transformers, with
                     the feature map and the normaliser of its CausalLinearAttention

--list prints those that are there. A point is a line of JSON: milliseconds of a batch, and the bytes
at the peak with inputs, result and gradients: on a GPU as PyTorch's allocator counts them, on the
CPU what the process has grown by.
"""

import resource
import sys
import time

import torch
from torch.nn import functional as F

import common
from copy_task_step import causal_linear_attention

try:
    from fast_transformers.causal_product import causal_dot_product
except ImportError:
    causal_dot_product = None


def softmax(q, k, v):  # [B, H, N, D]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def chunked(q, k, v):
    return causal_linear_attention(q, k, v, 64)


def fast(q, k, v, eps=1e-6):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    divisor = (q * k.cumsum(2)).sum(-1, keepdim=True) + eps
    return causal_dot_product(q.contiguous(), k.contiguous(), v.contiguous()) / divisor


def methods():
    found = {"torch-chunked": chunked}
    if hasattr(F, "scaled_dot_product_attention"):
        found["torch-softmax"] = softmax
    if causal_dot_product:
        found["fast-transformers"] = fast
    return found


class Case:
    def __init__(self, method, args, batch, length):
        self.method = methods()[method]
        element = torch.bfloat16 if args.precisions[0] == "bf16" else torch.float32
        size = (batch, args.heads, length, args.head_dim)
        make = {"device": args.device, "dtype": element}
        self.inputs = [torch.randn(size, **make, requires_grad=True) for _ in range(3)]
        self.upstream = torch.randn(size, **make)

    def run(self):
        for x in self.inputs:
            x.grad = None
        self.method(*self.inputs).backward(self.upstream)


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
    """As figure_time in bench/figure.c: on the CPU a long step is not repeated often."""
    first = once(case, args)
    if first <= 1 or torch.device(args.device).type == "cuda":
        return common.measure(case.run, args.device, args.seconds)["ms"]
    return 1e3 * (first if first > 10 else once(case, args))


def main():
    parser = common.options(__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the methods that are there")
    parser.add_argument("--method", help="one of those")
    parser.add_argument("--length", type=int, default=512, help="positions")
    parser.add_argument("--batch", type=int, default=1, help="sequences")
    parser.add_argument("--heads", type=int, default=8, help="of attention")
    parser.add_argument("--head-dim", type=int, default=32, help="numbers a head")
    parser.add_argument("--threads", type=int, help="of the CPU")
    args = parser.parse_args()
    if args.list:
        print("\n".join(methods()))
        return 0
    if args.method not in methods():
        sys.exit(f"--method {args.method}: there are {', '.join(methods())}")
    common.use(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    common.set_precision(args.precisions[0])
    Case(args.method, args, 1, 128).run()  # what PyTorch takes in any case
    cuda = torch.device(args.device).type == "cuda"
    before = 0 if cuda else peak(args)
    case = Case(args.method, args, args.batch, args.length)
    ms = milliseconds(case, args)
    common.report(ms=ms, bytes=peak(args) - before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
