"""Causal linear attention with a decay in PyTorch operations, beside build/bench/gates: milliseconds of a
forward and a backward pass by automatic differentiation, B 1, against length.

out_i = sum_{j<=i} w_ij v_j / (sum_{j<=i} w_ij + eps), w_ij = (phi(q_i).phi(k_j)) e^(l_j+1 + ... + l_i),
phi(x) = elu(x) + 1, in chunks of 64 positions with the state between them, as the chunked forms of
RetNet, GLA and Mamba-2 (Yang et al. 2023, arXiv 2312.06635, section 4). Compared with the definition in
float64 first.
"""

import sys

import torch
from torch.nn import functional as F

import common
from linear import phi


def definition(q, k, v, log_decay, eps=1e-6):
    sums = log_decay.cumsum(-1)
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    ratio = (sums[..., :, None] - sums[..., None, :]).masked_fill(future, -torch.inf).exp()
    weights = (phi(q) @ phi(k).mT) * ratio
    return weights @ v / (weights.sum(-1, keepdim=True) + eps)


def chunked(q, k, v, log_decay, chunk=64, eps=1e-6):
    """A column of ones beside the values gives the normalizer."""
    N = q.shape[2]
    missing = -N % chunk
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    q, k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for x in (phi(q), phi(k), v))
    L = F.pad(log_decay, (0, missing)).unflatten(2, (-1, chunk)).cumsum(-1)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    ratio = (L[..., :, None] - L[..., None, :]).masked_fill(future, -torch.inf).exp()
    within = ((q @ k.mT) * ratio) @ v
    queries, added = q * L.exp()[..., None], k * (L[..., -1:] - L).exp()[..., None]
    update, last = added.mT @ v, L[..., -1:, None].exp()
    state, outputs = torch.zeros_like(update[:, :, 0]), []
    for queries_c, update_c, last_c in zip(queries.unbind(2), update.unbind(2), last.unbind(2)):
        outputs.append(queries_c @ state)
        state = last_c * state + update_c
    out = (within + torch.stack(outputs, 2)).flatten(2, 3)[:, :, :N]
    return out[..., :-1] / (out[..., -1:] + eps)


def inputs(args, length, size, dtype=torch.float32):
    """Exponentially distributed log decays of mean -0.1."""
    shape = (1, args.heads, length, size)
    make = {"device": args.device, "dtype": dtype}
    q, k, v, upstream = (torch.randn(shape, **make) for _ in range(4))
    log_decay = 0.1 * torch.rand(shape[:3], **make).clamp_min(1e-30).log()
    return [x.requires_grad_() for x in (q, k, v, log_decay)], upstream


def both(method, x, upstream):
    for tensor in x:
        tensor.grad = None
    out = method(*x)
    out.backward(upstream)
    return [out.detach(), *(tensor.grad for tensor in x)]


def difference(args):
    torch.manual_seed(1)
    x, upstream = inputs(args, 150, 32)
    double = [tensor.detach().double().cpu().requires_grad_() for tensor in x]
    found, expected = both(chunked, x, upstream), both(definition, double, upstream.double().cpu())
    return max(float((a.cpu() - b).abs().max() / b.abs().max()) for a, b in zip(found, expected))


def main():
    parser = common.options(__doc__.splitlines()[0], precisions=False)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64])
    args = parser.parse_args()
    common.use(args)
    common.set_precision("float32")
    error = difference(args)
    if not error < 1e-4:
        sys.exit(f"the chunked form differs from the definition by {error}")
    if args.tiny:
        args.lengths, args.sizes, args.seconds = [130], [4], 0.01
    print(f"{'N':>6} {'D':>4} {'ms':>10}")
    for length in args.lengths:
        for size in args.sizes:
            x, upstream = inputs(args, length, size)
            time = common.measure(lambda: both(chunked, x, upstream), args.device, args.seconds)
            print(f"{length:6d} {size:4d} {time['ms']:10.3f}", flush=True)


if __name__ == "__main__":
    main()
