"""The copy task's training step (paper preset) in PyTorch on several processes: DistributedDataParallel
with gloo, for comparison with `mpirun -np N build/bench/copy_step --preset paper --attention linear`.

The processes share a batch of 64 sequences; each has --threads threads. One JSON line, of rank 0.
"""

import os
import sys
import time

import torch
import torch.distributed
import torch.multiprocessing
from torch.nn import functional as F

import common
from copy_task_step import Model, SYMBOLS, radam


def train(rank, ranks, args):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    common.use(args)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = Model(args)
    batch = args.batch * (rank + 1) // ranks - args.batch * rank // ranks
    tokens = torch.randint(SYMBOLS, (batch, args.length))
    parallel = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer, update = radam(list(model.parameters()), 1e-3, 0.01, False)
    times = []
    for _ in range(args.steps + 3):
        start = time.perf_counter()
        F.cross_entropy(parallel(tokens).flatten(0, 1), tokens.flatten()).backward()
        update()
        optimizer.zero_grad(set_to_none=True)
        times.append((time.perf_counter() - start) * 1e3)
    times = sorted(times[3:])
    if rank == 0:
        ms = times[len(times) // 2]
        common.report(name="ddp", ranks=ranks, threads=args.threads, ms=round(ms, 3),
                      ms_min=round(times[0], 3), ms_max=round(times[-1], 3),
                      tokens_per_second=round(args.batch * args.length / ms * 1e3),
                      **common.machine("cpu"))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = common.options(__doc__.split("\n")[0], precisions=False)
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=10, help="measured ones")
    parser.add_argument("--attention", default="chunked", help="as copy_task_step.py's")
    parser.add_argument("--dropout", type=float, default=0.0, help="probability")
    parser.add_argument("--chunk", type=int, default=64, help="positions per chunk of attention")
    parser.set_defaults(device="cpu", threads=1)
    args = parser.parse_args()
    args.layers, args.heads, args.head_dim, args.feed_forward = 4, 8, 32, 1024
    args.batch, args.length = 64, 128
    if args.tiny:
        args.layers, args.batch = 1, 4
    if args.ranks == 1:
        train(0, 1, args)
    else:
        torch.multiprocessing.spawn(train, (args.ranks, args), nprocs=args.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
