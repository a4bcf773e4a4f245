"""PyTorch beside examples/convolution.c: the same network, batches, rate and number of steps.

    python bench/peers/convolution.py DIR --device cpu --threads 2

DIR has MNIST's four gzipped IDX files. Prints the share of the test images that it reads and the
seconds of training, in both layouts of images.
"""

import argparse
import gzip
import math
import sys
import time

import torch

import common


def elements(path, head):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[head:]), dtype=torch.uint8)


def images(directory, part):
    pixels = elements(f"{directory}/{part}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)
    return pixels, elements(f"{directory}/{part}-labels-idx1-ubyte.gz", 8).long()


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10))


def train(args, layout):
    torch.manual_seed(1)
    pixels, digits = images(args.directory, "train")
    model = network().to(args.device, memory_format=layout)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / (args.steps + 1))) / 2)
    start = time.perf_counter()
    for _ in range(args.steps):
        chosen = torch.randint(len(digits), (100,))
        x = (pixels[chosen].float() / 255).to(args.device, memory_format=layout)
        loss = torch.nn.functional.cross_entropy(model(x), digits[chosen].to(args.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    common.wait(args.device)
    seconds = time.perf_counter() - start
    pixels, digits = images(args.directory, "t10k")
    with torch.no_grad():
        found = model((pixels.float() / 255).to(args.device)).argmax(-1).cpu()
    common.report(layout=str(layout), steps=args.steps, seconds=round(seconds, 2),
                  percent=(found == digits).float().mean().item() * 100)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="of MNIST's files")
    parser.add_argument("--device", default="cpu", help="cuda, cuda:1, ... or cpu")
    parser.add_argument("--threads", type=int, help="number of CPU threads (all if not given)")
    parser.add_argument("--steps", type=int, default=1200)
    args = parser.parse_args()
    common.use(args)
    common.report(**common.machine(args.device))
    for layout in (torch.contiguous_format, torch.channels_last):
        train(args, layout)


if __name__ == "__main__":
    sys.exit(main())
