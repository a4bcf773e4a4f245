"""PyTorch beside examples/gpt2.c: milliseconds of a training step of GPT-2 124M (Radford et al. 2019), B 4,
T 64, float32, clipping at norm 1 and fused AdamW, random weights and tokens.

    python bench/peers/gpt2.py --device cpu --threads 2 [--compile] [--program build/examples/gpt2]

With --program both run in turn, --rounds times; the ratio is the median of the rounds' ratios. The time of
gpt2 is the difference of a run of 2 and of one of 2 + --steps steps, so it contains no start.
"""

import os
import statistics
import struct
import subprocess
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

import common

BATCH, LENGTH, CONTEXT, VOCABULARY = 4, 64, 1024, 50257


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.input, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff1, self.ff2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in self.input(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.output(y)
        return x + self.ff2(F.gelu(self.ff1(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads):
        super().__init__()
        width = 64 * heads
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, targets):
        x = self.tokens(x) + self.positions.weight[:x.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Peer:
    def __init__(self, args):
        self.model = Gpt2(args.layers, args.heads).to(args.device)
        self.loss = torch.compile(self.model) if args.compile else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
        self.device = args.device

    def steps(self, count):
        """Seconds per step."""
        start = time.perf_counter()
        for _ in range(count):
            tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), device=self.device)
            self.optimizer.zero_grad()
            self.loss(tokens[:, :-1], tokens[:, 1:]).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1)
            self.optimizer.step()
        common.wait(self.device)
        return (time.perf_counter() - start) / count


def ours(args, file):
    def seconds(steps):
        start = time.perf_counter()
        subprocess.run([args.program, file, str(steps), str(args.layers), str(args.heads)], check=True,
                       stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    first = seconds(2)
    return (seconds(2 + args.steps) - first) / args.steps


def main():
    parser = common.options(__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--program", help="build/examples/gpt2, to run in turn")
    args = parser.parse_args()
    if args.tiny:
        args.layers, args.heads, args.steps, args.rounds = 1, 1, 1, 1
    common.use(args)
    common.set_precision("float32")
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    peer = Peer(args)
    peer.steps(2)
    rounds = []
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        tokens = torch.randint(VOCABULARY, (4096,)).tolist()
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        file.flush()
        for _ in range(args.rounds):
            mine = ours(args, file.name) if args.program else float("nan")
            rounds.append((mine, peer.steps(args.steps)))
            print(f"tapegrad {1e3 * rounds[-1][0]:8.0f} ms  PyTorch {1e3 * rounds[-1][1]:8.0f} ms", flush=True)
    print(f"PyTorch / tapegrad, median: {statistics.median(b / a for a, b in rounds):.2f}")


if __name__ == "__main__":
    main()
