"""Writes kimi_delta_rule.safetensors for tests/test_vectors.c: the delta rule with a decay per key
dimension (Kimi Delta Attention), some of -infinity, as a loop over positions in float64, with
PyTorch's gradients. Inputs are exact in float32:

    python tests/data/kimi_delta_rule.py
"""

import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402

B, N, H, D, M = 1, 11, 2, 5, 4
torch.manual_seed(1)
x = {"q": torch.randn(B, N, H, D), "k": torch.randn(B, N, H, D), "v": torch.randn(B, N, H, M),
     "beta": 1.5 * torch.rand(B, N, H), "state": torch.randn(B, H, D, M),
     "log_decay": -torch.rand(B, N, H, D) ** 4 * 8}
x["k"] /= x["k"].norm(dim=-1, keepdim=True)
x["log_decay"][:, 3, :, 1] = x["log_decay"][:, 7, 0, :] = -torch.inf
x = {name: value.double().requires_grad_() for name, value in x.items()}

S, out = x["state"], []
for i in range(N):
    q, k, v, beta = (x[name][:, i] for name in ("q", "k", "v", "beta"))
    S = x["log_decay"][:, i].exp()[..., None] * S
    u = beta[..., None] * (v - torch.einsum("bhdm,bhd->bhm", S, k))
    S = S + k[..., None] * u[..., None, :]
    out.append(torch.einsum("bhdm,bhd->bhm", S, q))
results = {"out": torch.stack(out, 1), "final_state": S}
upstream = {name: torch.randn(value.shape).double() for name, value in results.items()}
sum((results[name] * upstream[name]).sum() for name in results).backward()

tensors = {**x, **results, **{"grad_" + name: value for name, value in upstream.items()},
           **{"grad." + name: value.grad for name, value in x.items()}}
stored = {name: Tensor("F64", tuple(value.shape), value.detach().contiguous().numpy().tobytes())
          for name, value in tensors.items()}
write_safetensors(stored, os.path.join(os.path.dirname(__file__), "kimi_delta_rule.safetensors"))
