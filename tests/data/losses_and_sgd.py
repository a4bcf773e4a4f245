"""Writes what PyTorch computes in float64 for tests/test_vectors.c, label_smoothing.safetensors,
soft_cross_entropy.safetensors and binary_cross_entropy.safetensors, and for tests/test_optim.c,
nesterov.safetensors. Needs PyTorch:

    python tests/data/losses_and_sgd.py
"""

import os
import sys

import torch
from torch.nn import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402


def write(name, tensors):
    stored = {}
    for key, value in tensors.items():
        dtype = "F64" if value.is_floating_point() else "I32"
        value = value.detach().to(torch.float64 if dtype == "F64" else torch.int32).contiguous()
        stored[key] = Tensor(dtype, tuple(value.shape), value.numpy().tobytes())
    write_safetensors(stored, os.path.join(HERE, name + ".safetensors"))


def normal(*shape):  # values that float32 has
    return torch.randn(*shape).double()


def loss(name, inputs, function):
    """inputs: leaves; logits, and targets that are probabilities, get gradients."""
    for key, value in inputs.items():
        value.requires_grad_(value.is_floating_point() and key in ("logits", "target"))
    out = function(*inputs.values())
    out.backward()
    tensors = dict(inputs, out=out)
    tensors.update({"grad." + key: value.grad for key, value in inputs.items()
                    if value.requires_grad})
    write(name, tensors)


def weighted_mean(losses, weights):
    return (losses * weights).sum() / weights.sum()


R, C = (3, 5), 7
torch.manual_seed(1)
weights = torch.rand(R).float().double() + 0.5
weights[1, 2] = 0
loss("label_smoothing",
     {"logits": 3 * normal(*R, C), "target": torch.randint(C, R)},
     lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), label_smoothing=0.1))
loss("soft_cross_entropy",
     {"logits": 3 * normal(*R, C), "target": normal(*R, C).softmax(-1).float().double(),
      "weights": weights.clone()},
     lambda x, t, w: weighted_mean(
         F.cross_entropy(x.flatten(0, 1), t.flatten(0, 1), reduction="none"), w.flatten()))
loss("binary_cross_entropy",
     {"logits": 3 * normal(*R), "target": torch.rand(R).float().double(),
      "weights": weights.clone(), "positive": torch.rand(R[1]).float().double() + 0.5},
     lambda x, t, w, p: weighted_mean(
         F.binary_cross_entropy_with_logits(x, t, pos_weight=p, reduction="none"), w))

STEPS = 12
p = torch.nn.Parameter(normal(7, 3))
start, gradients, trajectory = p.detach().clone(), normal(STEPS, 7, 3), []
sgd = torch.optim.SGD([p], lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True)
for gradient in gradients:
    p.grad = gradient
    sgd.step()
    trajectory.append(p.detach().clone())
write("nesterov", {"p0": start, "grads": gradients, "trajectory": torch.stack(trajectory)})
