"""Writes key_decay.safetensors for tests/test_vectors.c: gated linear attention (a decay per key
dimension) as a loop over positions, with the gradients of automatic differentiation, in float64.
Needs PyTorch:

    python tests/data/key_decay.py
"""

import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402

B, N, H, D, M = 2, 19, 2, 4, 3


def attend(q, k, v, log_decay, state):
    """S <- diag(e^l_i) S + k_i v_i^T, out_i = S^T q_i; state [B, H, D, M]."""
    out = []
    for i in range(N):
        state = log_decay[:, i].exp()[..., None] * state + k[:, i, ..., None] * v[:, i, :, None]
        out.append((q[:, i, ..., None] * state).sum(-2))
    return torch.stack(out, 1), state


torch.manual_seed(1)
shapes = {"q": (B, N, H, D), "k": (B, N, H, D), "v": (B, N, H, M), "log_decay": (B, N, H, D),
          "state": (B, H, D, M)}
inputs = {name: torch.randn(shape) for name, shape in shapes.items()}
inputs["log_decay"] = -inputs["log_decay"].exp() / 2
inputs["log_decay"].view(-1)[37::101] = -torch.inf
inputs = {name: x.double().requires_grad_() for name, x in inputs.items()}
results = dict(zip(("out", "final_state"), attend(*inputs.values())))
tensors = {name: x.detach() for name, x in (inputs | results).items()}
for name, result in results.items():
    tensors["grad_" + name] = torch.randn(result.shape).double()
torch.autograd.backward(list(results.values()), [tensors["grad_" + name] for name in results])
for name, x in inputs.items():
    tensors["grad." + name] = x.grad
stored = {name: Tensor("F64", tuple(value.shape), value.contiguous().numpy().tobytes())
          for name, value in tensors.items()}
write_safetensors(stored, os.path.join(os.path.dirname(__file__), "key_decay.safetensors"))
