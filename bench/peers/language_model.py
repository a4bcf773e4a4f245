"""PyTorch beside examples/language_model: the model of --preset shakespeare from the same initial weights.

    build/programs/language_model train --preset shakespeare --train FILE --steps 0 --save initial.safetensors
    python bench/peers/language_model.py FILE initial.safetensors --device cpu --threads 2 [--compile]

FILE is tiny Shakespeare, plain or gzipped. Prints the held-out loss of the initial weights, which
must be that of language_model, then the loss after training and the milliseconds per step.
"""

import argparse
import gzip
import math
import os
import statistics
import sys
import time

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, scaled_dot_product_attention

import common

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import read_safetensors  # noqa: E402

LAYERS, HEADS, CONTEXT, BATCH = 4, 4, 64, 12
RATE, LAST, WARM_UP, DECAY, CLIP = 1e-3, 0.1, 100, 0.1, 1.0


def text(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        characters = file.read().decode()
    codes = {c: i for i, c in enumerate(sorted(set(characters)))}
    tokens = torch.tensor([codes[c] for c in characters])
    kept = int(len(tokens) * 0.9)
    return tokens[:kept], tokens[kept:]


def weights(path, device):
    tensors = {name: torch.frombuffer(bytearray(t.data), dtype=torch.float32).view(t.shape)
               for name, t in read_safetensors(path).items()
               if not name.startswith("optimizer.") and name != "vocabulary"}
    return {name: tensor.to(device).requires_grad_() for name, tensor in tensors.items()}


def logits(w, x):
    x = w["embedding.weight"][x] + w["positions"][:x.shape[1]]
    for i in range(LAYERS):
        def project(name, y):
            return linear(y, w[f"transformer.layers.{i}.{name}.weight"], w[f"transformer.layers.{i}.{name}.bias"])

        def norm(name, y):
            return layer_norm(y, y.shape[-1:], w[f"transformer.layers.{i}.{name}.weight"],
                              w[f"transformer.layers.{i}.{name}.bias"])

        y = norm("norm1", x)
        q, k, v = (project(f"attention.{part}", y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                   for part in ("query", "key", "value"))
        y = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + project("attention.out", y)
        x = x + project("ff2", gelu(project("ff1", norm("norm2", x))))
    x = layer_norm(x, x.shape[-1:], w["transformer.norm.weight"], w["transformer.norm.bias"])
    return linear(x, w["embedding.weight"])


@torch.no_grad()
def held_out_loss(w, tokens):
    nats = 0
    for start in range(0, len(tokens) - 1, 512 * CONTEXT):
        y = tokens[start + 1:start + 512 * CONTEXT + 1]
        x = tokens[start:start + len(y)]
        whole = len(y) // CONTEXT * CONTEXT  # then the rest, a shorter window
        for part in (slice(0, whole), slice(whole, len(y))):
            if len(y[part]):
                windows = x[part].view(-1, min(CONTEXT, len(y[part])))
                nats += cross_entropy(logits(w, windows).flatten(0, 1), y[part], reduction="sum").item()
    return nats / (len(tokens) - 1)


def rate(step):
    if step < WARM_UP:
        return step / WARM_UP
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * (step - WARM_UP) / (TOTAL - WARM_UP))) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("initial")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="of the windows")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    common.use(args)
    global TOTAL
    TOTAL = max(args.steps, WARM_UP + 1)
    torch.manual_seed(args.seed)
    training, held_out = (part.to(args.device) for part in text(args.text))
    w = weights(args.initial, args.device)
    forward = torch.compile(logits) if args.compile else logits
    initial = held_out_loss(w, held_out)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in w.values() if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0}],
        lr=RATE, betas=(0.9, 0.99), eps=1e-8, fused=True)
    times = []
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        at = torch.randint(len(training) - CONTEXT, (BATCH, 1)) + torch.arange(CONTEXT + 1)
        windows = training[at.to(args.device)]
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate(step)
        loss = cross_entropy(forward(w, windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        optimizer.step()
        common.wait(args.device)
        times.append((time.perf_counter() - start) * 1e3)
    common.report(steps=args.steps, initial_nats=round(initial, 5),
                  heldout_nats=round(held_out_loss(w, held_out), 4), ms=round(statistics.median(times), 2),
                  ms_min=round(min(times), 2), compiled=args.compile, **common.machine(args.device))


if __name__ == "__main__":
    main()
