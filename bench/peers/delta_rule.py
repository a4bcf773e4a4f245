"""The gated delta rule in PyTorch operations, beside build/bench/delta_layer: time and memory of a forward
and a backward pass of one layer by automatic differentiation, against length.

  recurrent  position by position, as the definition: the backward pass reads stored states
  chunked    chunks of 64 positions as matrix products, by the WY form (Yang et al. 2024, arXiv
             2406.06484, section 3.2; with a decay arXiv 2412.06464)

First both are compared with the definition in float64. Each length runs in a process of its own. MB:
the growth of the process (on a GPU of PyTorch's allocator) beyond the arguments and their
gradients. processor: the processor time of forward and backward, of all threads, which waiting for
other programs does not count. A length that exceeds --limit GB is reported, and longer ones of this
method are left out.
"""

import os
import resource
import statistics
import sys
import time

import torch
from torch.nn import functional as F

import common


def recurrent(q, k, v, beta, log_decay):
    """q, k, v [B, H, N, D], beta and log_decay [B, H, N]: S_i = e^l_i S_i-1 + k_i u_i^T,
    u_i = beta_i (v_i - e^l_i S_i-1^T k_i), out_i = S_i^T q_i."""
    state, outputs = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), []
    rows = (x.unsqueeze(3).unbind(2) for x in (q, k, v, beta[..., None], log_decay.exp()[..., None]))
    for q_i, k_i, v_i, beta_i, decay_i in zip(*rows):
        state = decay_i * state
        u = beta_i * (v_i - k_i @ state)
        state = state + k_i.mT * u
        outputs.append(q_i @ state)
    return torch.cat(outputs, 2)


def chunked(q, k, v, beta, log_decay, chunk=64):
    """Within a chunk, from the state S before it, with L the sums of log_decay from its start:
    (I + diag(beta) tril_-1(K K^T o e^(L_i - L_j))) U = diag(beta) (V - diag(e^L) K S),
    out = diag(e^L) Q S + tril(Q K^T o e^(L_i - L_j)) U,  S <- e^L_C S + (diag(e^(L_C - L)) K)^T U."""
    N = q.shape[2]
    missing = -N % chunk
    q, k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for x in (q, k, v))
    beta, log_decay = (F.pad(x, (0, missing)).unflatten(2, (-1, chunk)) for x in (beta, log_decay))
    L = log_decay.cumsum(-1)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    ratio = (L[..., :, None] - L[..., None, :]).masked_fill(future, -torch.inf).exp()
    scale, beta = L.exp()[..., None], beta[..., None]
    system = beta * (k @ k.mT) * ratio  # solve_triangular reads below the diagonal only
    right = torch.cat([beta * v, beta * scale * k], -1)
    weights, added = (q @ k.mT) * ratio, k * (L[..., -1:] - L).exp()[..., None]
    start = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    return scan(start, system, right, scale * q, weights, added, scale[..., -1:, :])[0][:, :, :N]


def by_key(q, k, v, beta, log_decay, state, chunk=32):
    """The same with log_decay [B, H, N, D], from a state; and the last one. e^(L_i - L_j) is a product of two
    factors, of which the second grows: log decays of a chunk must not sum up to less than -80."""
    N = q.shape[2]
    missing = -N % chunk
    q, k, v, log_decay = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for x in (q, k, v, log_decay))
    beta = F.pad(beta, (0, missing)).unflatten(2, (-1, chunk))[..., None]
    L = log_decay.cumsum(-2)
    decayed, grown, queries = k * L.exp(), k * (-L).exp(), q * L.exp()
    right = torch.cat([beta * v, beta * decayed], -1)
    added = k * (L[..., -1:, :] - L).exp()
    out, state = scan(state, beta * (decayed @ grown.mT), right, queries, (queries @ grown.mT).tril(), added,
                      L[..., -1, :, None].exp())
    return out[:, :, :N], state


def scan(state, system, right, queries, weights, added, last):
    """The chunks one after another: out, and the last state."""
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, keys = solved.split([state.shape[-1], state.shape[-2]], -1)
    outputs = []
    chunks = (x.unbind(2) for x in (values, keys, queries, weights, added, last))
    for values_c, keys_c, queries_c, weights_c, added_c, last_c in zip(*chunks):
        u = values_c - keys_c @ state
        outputs.append(queries_c @ state + weights_c @ u)
        state = last_c * state + added_c.mT @ u
    return torch.cat(outputs, 2), state


METHODS = {"recurrent": recurrent, "chunked": chunked}


class Case:
    """Keys of length 1, betas of 1/2, log decays of -1/16, as bench/delta_layer.c."""

    def __init__(self, method, args, length, dtype=torch.float32):
        make = {"device": args.device, "dtype": dtype}
        size = (1, args.heads, length, args.size)
        q, k, v, self.upstream = (torch.randn(size, **make) for _ in range(4))
        inputs = [q, F.normalize(k, dim=-1), v, torch.full(size[:3], 0.5, **make),
                  torch.full(size[:3], -0.0625, **make)]
        self.method, self.inputs = METHODS[method], [x.requires_grad_() for x in inputs]

    def forward(self):
        return self.method(*self.inputs)

    def both(self):
        for x in self.inputs:
            x.grad = None
        out = self.forward()
        out.backward(self.upstream)
        return out

    def gradient_bytes(self):
        return sum(x.numel() * x.element_size() for x in self.inputs)


def difference(method, args):
    """The largest difference from the definition, relative to the largest value of each tensor."""
    torch.manual_seed(1)
    case, definition = Case(method, args, 100), Case("recurrent", args, 100, torch.float64)
    definition.upstream = case.upstream.double()
    definition.inputs = [x.detach().double().requires_grad_() for x in case.inputs]
    pairs = [(case.both(), definition.both())]
    pairs += [(x.grad, y.grad) for x, y in zip(case.inputs, definition.inputs)]
    return max(float((x.detach() - y.detach()).abs().max() / y.detach().abs().max()) for x, y in pairs)


def peak(device):
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def milliseconds(run, args):
    """Elapsed and processor time, of all threads: medians after a first call, which warms up."""
    times = []
    while len(times) < 2 or (len(times) < 6 and sum(t for t, _ in times) < args.seconds):
        start = time.perf_counter(), time.process_time()
        run()
        common.wait(args.device)
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return [1e3 * statistics.median(t) for t in zip(*times[1:])]


def point(method, args, length):
    common.use(args)
    common.set_precision("float32")
    Case(method, args, 2).both()  # memory that PyTorch allocates in any case
    case = Case(method, args, length)
    before = peak(args.device)
    both, processor = milliseconds(case.both, args)
    size = peak(args.device) - before - case.gradient_bytes()
    with torch.no_grad():
        forward, _ = milliseconds(case.forward, args)
    print(f"{method:>10} {length:8d} {forward:10.1f} {both:10.1f} {processor:10.1f} {size / 1e6:10.1f}",
          flush=True)


def succeeds(run, *arguments):
    """Runs the function in a process of its own, whose data --limit bounds."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        run(*arguments)
        os._exit(0)
    except (Exception, SystemExit) as error:
        print(str(error).split("\n")[0] or type(error).__name__, file=sys.stderr)
    finally:
        os._exit(1)


def limited_point(method, args, length):
    if torch.device(args.device).type == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (int(args.limit * 1e9),) * 2)
    point(method, args, length)


def verify(args):
    for method in args.methods:
        found = difference(method, args)
        if not found <= 1e-5:
            raise RuntimeError(f"{method} differs from its definition by {found:.2g}")
    q, k, v, beta, log_decay = (x.detach() for x in Case("chunked", args, 100).inputs)
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    keys = by_key(q, k, v, beta, log_decay[..., None].expand_as(k), state)[0]
    found = float((keys - chunked(q, k, v, beta, log_decay)).abs().max())
    if not found <= 1e-4:
        raise RuntimeError(f"equal decays of all keys differ from one decay by {found:.2g}")


def main():
    parser = common.options(__doc__.split("\n")[0], precisions=False)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="which")
    parser.add_argument("--heads", type=int, default=32, help="number of heads")
    parser.add_argument("--size", type=int, default=128, help="elements of queries, keys and values")
    parser.add_argument("--min", type=int, default=512, help="the shortest length")
    parser.add_argument("--max", type=int, default=4096, help="the longest length")
    parser.add_argument("--limit", type=float, default=16, help="GB of memory of a process")
    args = parser.parse_args()
    if args.tiny:
        args.heads, args.size, args.min, args.max = 2, 8, 64, 128
    if not succeeds(verify, args):
        return 1
    print(f"gated delta rule, {args.heads} heads of {args.size} x {args.size}, PyTorch {torch.__version__}, "
          f"{args.device}; ms, and MB beyond arguments")
    print(f"{'method':>10} {'N':>8} {'forward':>10} {'both':>10} {'processor':>10} {'MB':>10}", flush=True)
    for method in args.methods:
        length = args.min
        while length <= args.max and succeeds(limited_point, method, args, length):
            length *= 2
        if length <= args.max:
            print(f"{method:>10} {length:8d} ends here, see above; the limit is {args.limit:g} GB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
