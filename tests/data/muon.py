"""Writes muon.safetensors for tests/test_optim.c: start values, one gradient per step, and the
values after each step of PyTorch's Muon (weights wide, tall and square; the prefix gives the
options) with its AdamW on a bias. In float64, with Muon's bfloat16 replaced. Needs PyTorch 2.9:

    python tests/data/muon.py
"""

import os
import sys
import types

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402

torch.optim._muon.torch = types.SimpleNamespace(**{**vars(torch), "bfloat16": torch.float64})
STEPS, SHAPES = 4, {"wide": (3, 7), "tall": (9, 4), "square": (5, 5), "bias": (6,)}


def trajectory(starts, gradients, **options):
    weights = {name: torch.nn.Parameter(value.clone()) for name, value in starts.items()}
    muon = torch.optim.Muon([w for w in weights.values() if w.ndim == 2], lr=0.02, **options)
    adamw = torch.optim.AdamW([weights["bias"]], lr=0.01, weight_decay=0.25)
    after = {name: [] for name in weights}
    for step in range(STEPS):
        for name, weight in weights.items():
            weight.grad = gradients[name][step]
        muon.step(), adamw.step()
        for name, weight in weights.items():
            after[name].append(weight.detach().clone())
    return {name: torch.stack(values) for name, values in after.items()}


torch.manual_seed(1)
starts = {name: torch.randn(shape).double() for name, shape in SHAPES.items()}
gradients = {name: torch.randn(STEPS, *shape).double() for name, shape in SHAPES.items()}
cases = {
    "original": dict(weight_decay=0.125),
    "match_rms": dict(weight_decay=0, momentum=0.75, nesterov=False, ns_steps=3,
                      adjust_lr_fn="match_rms_adamw"),
}
tensors = {}
for name in SHAPES:
    tensors["start." + name], tensors["gradients." + name] = starts[name], gradients[name]
for case, options in cases.items():
    for name, values in trajectory(starts, gradients, **options).items():
        tensors[case + "." + name] = values
stored = {name: Tensor("F64", tuple(value.shape), value.contiguous().numpy().tobytes())
          for name, value in tensors.items()}
write_safetensors(stored, os.path.join(os.path.dirname(__file__), "muon.safetensors"))
