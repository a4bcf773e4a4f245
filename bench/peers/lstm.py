"""PyTorch's LSTM, forward and with backward, beside bench/lstm at its sizes.

--values FILE compares the results and gradients of the program (bench/lstm --save FILE) with
those of PyTorch in float64 for the same weights and inputs; without it the program measures.
One JSON line per case.
"""

import json
import struct
import sys

import torch

import common

DTYPES = {"F32": torch.float32, "F64": torch.float64}


def layers(args):
    sizes = {"hidden": 8, "inputs": 5} if args.tiny else {"hidden": 320, "inputs": 80}
    torch.manual_seed(1)
    lstm = torch.nn.LSTM(sizes["inputs"], sizes["hidden"], num_layers=args.layers,
                         batch_first=True, bidirectional=True)
    batch, length = (2, 7) if args.tiny else (16, 800)
    return lstm, batch, length, sizes


def read(path):
    """The tensors of a safetensors file of float32 or float64, in float64."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(data[slice(*entry["data_offsets"])], dtype=DTYPES[entry["dtype"]])
            .reshape(entry["shape"]).double() for name, entry in header.items()}


def compare(path):
    """Largest errors of out and of each gradient, relative to the tensor's largest magnitude."""
    saved = read(path)
    hidden = saved["weight_hh_l0"].shape[1]
    count = sum(name.startswith("weight_hh_l") for name in saved) // 2
    lstm = torch.nn.LSTM(saved["x"].shape[2], hidden, num_layers=count, batch_first=True,
                         bidirectional=True).double()
    lstm.load_state_dict({name: saved[name] for name in lstm.state_dict()})
    x = saved["x"].requires_grad_()
    out = lstm(x)[0]
    out.backward(saved["grad_out"])
    found = {"out": out.detach(), "grad.x": x.grad}
    found |= {f"grad.{name}": weight.grad for name, weight in lstm.named_parameters()}
    errors = {name: float((saved[name] - tensor).abs().max() / tensor.abs().max())
              for name, tensor in found.items()}
    worst = max(errors, key=errors.get)
    common.report(name="lstm", out=errors["out"], worst=worst, error=errors[worst])
    return 0 if errors[worst] < 1e-4 else 1


def main():
    parser = common.options(__doc__.split("\n")[0], precisions=False)
    parser.add_argument("--layers", type=int, default=3, help="number of layers")
    parser.add_argument("--values", help="a file that bench/lstm --save wrote: compare only")
    args = parser.parse_args()
    common.use(args)
    common.set_precision("float32")
    if args.values:
        return compare(args.values)
    lstm, batch, length, sizes = layers(args)
    lstm = lstm.to(args.device)
    x = torch.randn(batch, length, sizes["inputs"], device=args.device, requires_grad=True)
    gradient = torch.randn(batch, length, 2 * sizes["hidden"], device=args.device)

    def forward():
        with torch.no_grad():
            lstm(x)

    def with_backward():
        lstm(x)[0].backward(gradient)
        lstm.zero_grad()
        x.grad = None

    for label, function in (("forward", forward), ("forward+backward", with_backward)):
        times = common.measure(function, args.device, args.seconds)
        common.report(name="lstm", **{"pass": label}, layers=args.layers, batch=batch,
                      length=length, **sizes, **times, **common.machine(args.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
