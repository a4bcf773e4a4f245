#!/usr/bin/env python3
"""Renames a PyTorch state dictionary to tapegrad's names, for params_load.

    python3 examples/from_pytorch.py model.pt weights.safetensors
    python3 examples/from_pytorch.py --rename encoder=transformer --flatten fc=32,7,7 in.pt out.safetensors

Reads .safetensors, or by PyTorch what torch.save(model.state_dict(), path) wrote. docs/from_pytorch.md
lists the layers, and GPT-2 as Hugging Face stores it. A name that the script does not know is kept: params_load then says what is left.
"""

import argparse
import ctypes
import json
import math
import os
import pickle
import re
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


class Tensor:
    """Elements in row-major order, as bytes, of a safetensors dtype."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)

    def reordered(self, order, shape=None):
        """The same tensor, first seen in another shape, with its axes in this order."""
        sizes = shape or self.shape
        steps = [SIZES[self.dtype]] * len(sizes)
        for axis in reversed(range(len(sizes) - 1)):
            steps[axis] = steps[axis + 1] * sizes[axis + 1]
        starts = [0]
        for axis in order:
            starts = [start + i * steps[axis] for start in starts for i in range(sizes[axis])]
        size = SIZES[self.dtype]
        return Tensor(self.dtype, [sizes[axis] for axis in order],
                      b"".join(self.data[start:start + size] for start in starts))

    def transposed(self):
        """A matrix's columns, each by one strided copy."""
        rows, columns = self.shape
        elements = memoryview(self.data).cast({1: "B", 2: "H", 4: "I", 8: "Q"}[SIZES[self.dtype]])
        return Tensor(self.dtype, [columns, rows], b"".join(elements[c::columns].tobytes() for c in range(columns)))

    def parts(self, count):
        """The first axis in equal parts."""
        size = len(self.data) // count
        return [Tensor(self.dtype, [self.shape[0] // count] + self.shape[1:],
                       self.data[i * size:(i + 1) * size]) for i in range(count)]


def add(tensors, name, tensor):
    """Two tensors of one name would be one."""
    if name in tensors:
        raise ValueError(f"two tensors would have the name {name}")
    tensors[name] = tensor


def unique(pairs):
    result = {}
    for name, value in pairs:
        add(result, name, value)
    return result


def read_safetensors(path):
    with open(path, "rb") as file:
        data = memoryview(file.read())
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError("not a safetensors file")
    header = json.loads(bytes(data[8:start]), object_pairs_hook=unique)
    header.pop("__metadata__", None)
    data = data[start:]
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if entry["dtype"] not in SIZES:
            raise ValueError(f"{name} is of {entry['dtype']}, expected {', '.join(SIZES)}")
        if not 0 <= start <= end <= len(data) or end - start != math.prod(entry["shape"]) * SIZES[entry["dtype"]]:
            raise ValueError(f"{name}: expected {entry['shape']} of {entry['dtype']} in the file's data")
    return {name: Tensor(entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def from_torch(name, value):
    if value.is_meta or value.is_complex():
        raise ValueError(f"{name} is {value.dtype} on {value.device}, expected real numbers")
    value = value.dequantize() if value.is_quantized else value
    value = value.detach().to_dense().float().contiguous()
    return Tensor("F32", value.shape, ctypes.string_at(value.data_ptr(), 4 * value.numel()))


def read_pytorch(path, entries=()):
    """The tensors of a dictionary, which the entries name in others."""
    import torch
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).split(". ")[0] or "it is empty"
        raise ValueError(f"expected what torch.save(model.state_dict(), path) wrote: {reason}") from error
    for entry in [*entries, None]:
        if not isinstance(state, dict):
            raise ValueError(f"it has a {type(state).__name__}, expected a dictionary of tensors")
        names = ", ".join(list(map(str, state))[:8]) + (", ..." if len(state) > 8 else "")
        if entry is not None and entry not in state:
            raise ValueError(f"its entries are {names}, expected --entry {entry}")
        state = state if entry is None else state[entry]
    for name, value in state.items():
        if not torch.is_tensor(value):
            inner = [f"--entry {key}" for key, each in state.items()
                     if isinstance(each, dict) and any(map(torch.is_tensor, each.values()))]
            raise ValueError(f"its entries are {names}, expected tensors; " +
                             (f"{' or '.join(inner)} has these" if inner else f"{name} is a {type(value).__name__}"))
    return {str(name): from_torch(name, value) for name, value in state.items()}


def write_safetensors(tensors, path):
    """Replaces the file once the new one is whole."""
    if not tensors or "__metadata__" in tensors:
        raise ValueError("a tensor must not be named __metadata__" if tensors else "it has no tensors")
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} exists and is not a regular file")
    temporary = f"{path}.tmp.{os.getpid()}"
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                        "data_offsets": [at, at + len(tensor.data)]}
        at += len(tensor.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(temporary, "xb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(tensor.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


# Of MultiheadAttention, the two layers of TransformerEncoderLayer, and BatchNorm.
NAMES = [(r"\bself_attn\.", "attention."), (r"\bmultihead_attn\.", "cross."), (r"\bout_proj\.", "out."),
         (r"\b([qkv])_proj_weight$", lambda found: PARTS["qkv".index(found[1])] + ".weight"),
         (r"\blinear1\.", "ff1."), (r"\blinear2\.", "ff2."), (r"\brunning_var$", "running_variance")]
PARTS = ("query", "key", "value")


# Of Hugging Face's GPT-2, whose linear layers are [in, out].
GPT2_LAYER = re.compile(r"^(?:transformer\.)?h\.(\d+)\.(.*)$")
GPT2_NAMES = [("ln_1.", "norm1."), ("ln_2.", "norm2."), ("attn.c_proj.", "attention.out."),
              ("attn.c_attn.", "attention.in_proj_"), ("mlp.c_fc.", "ff1."), ("mlp.c_proj.", "ff2.")]


def from_gpt2(tensors):
    """GPT-2's weights under the names of a TransformerEncoder; without masks, and without the output's
    weight, which is the token embedding's."""
    result = {}
    for name, tensor in tensors.items():
        layer = GPT2_LAYER.match(name)
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        if layer and layer[2].startswith(("attn.c_", "mlp.c_")) and name.endswith(".weight"):
            tensor = tensor.transposed()
        name = re.sub(r"^transformer\.", "", name)
        name = re.sub(r"^ln_f\.", "norm.", name)
        if layer:
            name = f"layers.{layer[1]}.{layer[2]}"
            for old, new in GPT2_NAMES:
                name = name.replace(f".{old}", f".{new}")
        add(result, name, tensor)
    return result


def renamed(name):
    for pattern, name_here in NAMES:
        name = re.sub(pattern, name_here, name)
    return name


def convert(tensors, renames, flatten):
    result = {}
    if any(name.endswith(".attn.c_attn.weight") for name in tensors):
        tensors = from_gpt2(tensors)
    for name, tensor in tensors.items():
        for old, new in renames:
            name = name.replace(old, new)
        name = renamed(name)
        layer, _, last = name.rpartition(".")
        if last == "num_batches_tracked":
            continue
        if last in ("in_proj_weight", "in_proj_bias"):
            for part, value in zip(PARTS, tensor.parts(3)):
                add(result, f"{layer}.{part}.{last[8:]}".lstrip("."), value)
            continue
        if last == "weight" and len(tensor.shape) == 4:  # [O, C, height, width]
            tensor = tensor.reordered([0, 2, 3, 1])
        if last == "weight" and layer in flatten:  # its inputs were [C, H, W], here [H, W, C]
            out, inputs = tensor.shape
            C, H, W = flatten[layer]
            if C * H * W != inputs:
                raise ValueError(f"{name} has {inputs} inputs, expected {C} x {H} x {W} of --flatten")
            tensor = tensor.reordered([0, 2, 3, 1], [out, C, H, W])
            tensor.shape = [out, inputs]
        add(result, name, tensor)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW",
                        help="replaces a part of all names, before the names of layers")
    parser.add_argument("--flatten", action="append", default=[], metavar="LAYER=C,H,W",
                        help="a Linear layer that reads flattened images of this shape")
    parser.add_argument("--entry", action="append", default=[], metavar="NAME",
                        help="the dictionary of tensors in that of a training, as model or Lightning's state_dict")
    parser.add_argument("input")
    parser.add_argument("output")
    args = parser.parse_args()
    for option, items, form in (("--rename OLD=NEW", args.rename, r"[^=]+=[^=]*"),
                                ("--flatten LAYER=C,H,W", args.flatten, r"[^=]+=\d+,\d+,\d+")):
        for item in items:
            if not re.fullmatch(form, item):
                parser.error(f'"{item}": expected {option}')
    try:
        flatten = {layer: [int(size) for size in sizes.split(",")]
                   for layer, sizes in (item.split("=") for item in args.flatten)}
        safe = args.input.endswith(".safetensors")
        if safe and args.entry:
            raise ValueError(f"--entry {args.entry[0]}: expected a file of torch.save, which has dictionaries")
        tensors = read_safetensors(args.input) if safe else read_pytorch(args.input, args.entry)
        tensors = convert(tensors, [item.split("=") for item in args.rename], flatten)
        write_safetensors(tensors, args.output)
    except (OSError, ImportError, MemoryError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        sys.exit(f"from_pytorch: {args.input}: {(str(error) or 'not a state dictionary').splitlines()[0]}")
    for name, tensor in tensors.items():
        print(name, tensor.shape)


if __name__ == "__main__":
    sys.exit(main())
