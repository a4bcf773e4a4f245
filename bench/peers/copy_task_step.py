"""The copy task's training step in PyTorch, for comparison with bench/copy_step.

The model and step of the paper preset: embeddings of size 128 concatenated with 128 sinusoidal
positions; 4 post-norm layers of causal attention (8 heads of 32; --attention: chunked linear in
PyTorch operations, linear by the masked product, PyTorch's softmax, or linear attention of another
library, see linear.py) and a feed-forward network of 1024; a final norm; cross entropy over 11
symbols; RAdam. Modes:
  eager    operation by operation, with the optimizer's fused-loop (foreach) step
  compile  forward, backward and the optimizer's step by torch.compile, on a GPU with
           mode="reduce-overhead"
  graph    the whole step of eager operations captured once as a CUDA graph and replayed
One JSON line per mode and precision; a failed case has its error in the line. `loss`, of the tenth
step, agrees between modes and precisions (with --dropout 0, to the precision's digits).
"""

import inspect
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

import common
import linear

SYMBOLS = 11
LOSS_AFTER = 10  # steps


# Attention of q, k, v [B, H, N, D], by the names of --attention.
ATTENTIONS = {
    "chunked": lambda args: lambda q, k, v: linear.chunked(q, k, v, args.chunk),
    "quadratic": lambda args: linear.quadratic,
    "softmax": lambda args: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "fla": lambda args: heads_second(linear.fla_chunk),
    "fast-transformers": lambda args: heads_second(linear.fast_transformers),
}


def heads_second(function):
    """Adapts a function on [B, N, H, D]; undoes the transposed views of the layer's q, k, v."""
    def attend(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return function(q, k, v).to(v.dtype).transpose(1, 2)
    return attend


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.heads * args.head_dim
        self.heads, self.attention = args.heads, ATTENTIONS[args.attention](args)
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.ff1 = nn.Linear(width, args.feed_forward)
        self.ff2 = nn.Linear(args.feed_forward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(args.dropout)

    def attend(self, x):
        B, N, width = x.shape
        packed = self.input(x).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = self.attention(*packed.unbind(0))
        return self.output(out.transpose(1, 2).reshape(B, N, width))

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.attend(x)))
        inner = self.dropout(F.relu(self.ff1(x)))
        return self.norm2(x + self.dropout(self.ff2(inner)))


def sinusoidal_positions(length, width):
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.empty(length, width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.heads * args.head_dim
        self.embedding = nn.Embedding(SYMBOLS, width // 2)
        self.register_buffer("positions", sinusoidal_positions(args.length, width // 2))
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = torch.cat((x, self.positions.expand(len(tokens), -1, -1)), -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def radam(parameters, learning_rate, weight_decay, cuda):
    """RAdam with decoupled weight decay, and its step. PyTorch 1 has neither this option nor
    capturable steps."""
    known = inspect.signature(torch.optim.RAdam).parameters
    options = {"foreach": cuda, "capturable": cuda, "decoupled_weight_decay": True}
    options = {name: value for name, value in options.items() if name in known}
    decoupled = "decoupled_weight_decay" in options
    optimizer = torch.optim.RAdam(parameters, lr=learning_rate,
                                  weight_decay=weight_decay if decoupled else 0, **options)

    def decay_and_step():
        with torch.no_grad():
            torch._foreach_mul_(parameters, 1 - learning_rate * weight_decay)
        optimizer.step()

    return optimizer, optimizer.step if decoupled else decay_and_step


class Step:
    """A training step; call() runs one in the mode."""

    def __init__(self, args, mode, precision):
        torch.manual_seed(1)
        self.device, self.precision = torch.device(args.device), precision
        self.model = Model(args).to(self.device)
        self.tokens = torch.randint(SYMBOLS, (args.batch, args.length), device=self.device)
        cuda = self.device.type == "cuda"
        self.optimizer, self.update = radam(
            list(self.model.parameters()),
            torch.tensor(1e-3, device=self.device) if cuda else 1e-3, 0.01, cuda)
        self.forward = self.loss_of
        if mode == "compile":
            self.forward = torch.compile(self.loss_of, mode="reduce-overhead" if cuda else None)
            self.update = torch.compile(self.update)
        self.loss, self.done = None, 0
        self.call = self.capture() if mode == "graph" else self.eager

    def loss_of(self, tokens):
        with common.autocast(self.device, self.precision):
            logits = self.model(tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())

    def eager(self):
        if self.device.type == "cuda" and hasattr(torch, "compiler"):
            torch.compiler.cudagraph_mark_step_begin()
        loss = self.forward(self.tokens)
        loss.backward()
        self.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.detach()
        self.done += 1

    def capture(self):
        """Warms up on a side stream first, as PyTorch's notes on CUDA graphs require."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.eager()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.loss_of(self.tokens)
            loss.backward()
            self.update()
        self.loss = loss.detach()

        def replay():
            graph.replay()
            self.done += 1

        return replay


def run(args, mode, precision):
    case = {"name": "copy_task_step", "attention": args.attention, "mode": mode,
            "precision": precision, "dropout": args.dropout, **common.machine(args.device)}
    if mode == "graph" and torch.device(args.device).type != "cuda":
        common.report(**case, skipped="a CUDA graph needs a GPU")
        return
    if mode == "compile" and not hasattr(torch, "compile"):
        common.report(**case, skipped="this PyTorch has no torch.compile")
        return
    common.set_precision(precision)
    if hasattr(torch, "compiler"):
        torch.compiler.reset()
    step = Step(args, mode, precision)
    while step.done < LOSS_AFTER:
        step.call()
    loss = float(step.loss)
    times = common.measure(step.call, args.device, args.seconds)
    rate = round(args.batch * args.length / times["ms"] * 1e3)
    common.report(**case, **times, tokens_per_second=rate, loss=round(loss, 5))


def main():
    parser = common.options(__doc__.split("\n")[0])
    parser.add_argument("--modes", nargs="+", default=["eager", "compile", "graph"],
                        choices=["eager", "compile", "graph"], help="see the file's docstring")
    parser.add_argument("--attention", default="chunked", choices=ATTENTIONS,
                        help="see the file's docstring")
    parser.add_argument("--dropout", type=float, default=0.1, help="probability")
    parser.add_argument("--chunk", type=int, default=64, help="positions per chunk of attention")
    args = parser.parse_args()
    common.use(args)
    args.layers, args.heads, args.head_dim, args.feed_forward = 4, 8, 32, 1024
    args.batch, args.length = 64, 128
    if args.tiny:
        args.layers, args.heads, args.head_dim, args.feed_forward = 2, 2, 8, 32
        args.batch, args.length, args.chunk = 4, 20, 8
    failed = False
    for precision in args.precisions:
        for mode in args.modes:
            try:
                run(args, mode, precision)
            except Exception as error:  # the other cases may still run
                failed = True
                common.report(name="copy_task_step", attention=args.attention, mode=mode,
                              precision=precision,
                              failed=f"{type(error).__name__}: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
