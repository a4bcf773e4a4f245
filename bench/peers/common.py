"""Shared by the peers: options, precisions, timing, JSON lines."""

import argparse
import json
import statistics
import sys
import time

import torch

PRECISIONS = ("float32", "tf32", "bf16")


def options(purpose, precisions=True):
    """precisions: whether the program has --precisions."""
    parser = argparse.ArgumentParser(
        description=purpose, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... or cpu")
    if precisions:
        parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS,
                            help="float32: no tensor cores; tf32: float32, products on tensor cores; "
                            "bf16: autocast, or bf16 operands of a single product")
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="minimum duration of a measurement")
    parser.add_argument("--processor-time", action="store_true",
                        help="of all threads, without waiting for other programs")
    parser.add_argument("--threads", type=int, help="number of CPU threads; default: all")
    parser.add_argument("--tiny", action="store_true",
                        help="tiny sizes, to check that everything runs (seconds on the CPU)")
    return parser


def use(args):
    """Selects the device, the number of threads and, for programs of options(), the clock."""
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU was found; --device cpu --tiny checks that the program runs")
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    if args.threads:
        torch.set_num_threads(args.threads)
    if getattr(args, "processor_time", False):
        global clock
        clock = time.process_time


def set_precision(precision):
    """float32 uses no tf32; nor does bf16 in operations that autocast leaves in float32."""
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def autocast(device, precision):
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16")


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


clock = time.perf_counter


def measure(run, device, seconds):
    """Milliseconds per call: median, minimum and maximum of rounds of at least 20 ms each."""
    for _ in range(3):
        run()
    wait(device)
    start = clock()
    run()
    wait(device)
    times = 1 + int(0.02 / (clock() - start))
    rounds = []
    end = clock() + seconds
    while clock() < end or len(rounds) < 5:
        start = clock()
        for _ in range(times):
            run()
        wait(device)
        rounds.append((clock() - start) / times * 1e3)
    return {"ms": round(statistics.median(rounds), 5), "ms_min": round(min(rounds), 5),
            "ms_max": round(max(rounds), 5)}


def machine(device):
    name = "cpu"
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {"device": name, "torch": torch.__version__}


def report(**record):
    print(json.dumps(record), flush=True)
