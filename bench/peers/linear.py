"""Calls of other libraries' causal linear attention, and the definitions for comparison.

phi(x) = elu(x) + 1,
out_i = sum_{j<=i} (phi(q_i).phi(k_j)) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps).
FLA_DIR is a clone of flash-linear-attention, FT_DIR one of fast-transformers; by default the
installed packages are used.
"""

import functools
import gc
import importlib
import importlib.util
import os
import sys
import types

import torch
from torch.nn import functional as F


def phi(x):
    return F.elu(x) + 1


def missing(name):
    """The reason why the method NAME cannot be called, or None."""
    if not name.startswith("fla") and name != "fast-transformers":
        return None
    package, variable = (("fla", "FLA_DIR") if name.startswith("fla") else
                         ("fast_transformers", "FT_DIR"))
    root = os.environ.get(variable)
    if root:
        return None if os.path.isdir(os.path.join(root, package)) else f"{root} has no {package}"
    installed = importlib.util.find_spec(package)
    return None if installed else f"{variable} is not set and {package} is not installed"


# ------------------------------------------------------------------------ definitions, [B, H, N, D]
def softmax_definition(q, k, v):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


def linear_definition(q, k, v, eps=1e-6):
    scores = (phi(q) @ phi(k).transpose(-1, -2)).tril()
    return scores @ v / (scores.sum(-1, keepdim=True) + eps)


def quadratic(q, k, v, eps=1e-6):
    """The definition with sums in float32 for every dtype of the inputs."""
    scores = (phi(q) @ phi(k).transpose(-1, -2)).tril()
    divisor = scores.sum(-1, keepdim=True, dtype=torch.float32) + eps
    return (scores @ v / divisor).to(v.dtype)


def chunked(q, k, v, chunk=64, eps=1e-6):
    """The masked product within a chunk, and the state, the sum of k v^T over earlier chunks."""
    B, H, N, D = q.shape
    q, k = phi(q), phi(k)
    pad = -N % chunk
    if pad:  # after phi, because phi(0) = 1
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.reshape(B, H, -1, chunk, D) for x in (q, k, v))
    state = k.transpose(-1, -2) @ v  # [B, H, chunks, D, D]
    state = state.cumsum(2) - state
    key_sum = k.sum(3)
    key_sum = key_sum.cumsum(2) - key_sum  # [B, H, chunks, D]
    scores = (q @ k.transpose(-1, -2)).tril()
    out = scores @ v + q @ state.to(q.dtype)
    divisor = scores.sum(-1, dtype=torch.float32) + (q * key_sum.unsqueeze(3)).sum(-1) + eps
    out = out / divisor.unsqueeze(-1)
    return out.reshape(B, H, N + pad, D)[:, :, :N].to(v.dtype)


# ------------------------------------------------------------- flash-linear-attention, [B, N, H, D]
def without_init(name, directory):
    """Makes a package's modules importable without its __init__.py, which imports much else."""
    package = types.ModuleType(name)
    package.__path__ = [directory]
    package.__version__ = "0"
    sys.modules[name] = package


@functools.cache
def fla_module(name):
    if "fla" not in sys.modules:
        reason, root = missing("fla"), os.environ.get("FLA_DIR")
        if reason:
            raise ImportError(reason)
        directory = (os.path.join(root, "fla") if root else
                     importlib.util.find_spec("fla").submodule_search_locations[0])
        without_init("fla", directory)
        without_init("fla.ops", os.path.join(directory, "ops"))
    return importlib.import_module(name)


def fla_chunk(q, k, v):
    call = fla_module("fla.ops.linear_attn.chunk").chunk_linear_attn
    return call(phi(q), phi(k), v, scale=1.0, normalize=True)[0]


def fla_fused(q, k, v):
    call = fla_module("fla.ops.linear_attn.fused_chunk").fused_chunk_linear_attn
    return call(phi(q), phi(k), v, scale=1.0, normalize=True)[0]


def tune_again():
    """Its kernels are autotuned once, with cache keys that lack the shape: clears the caches, so
    every shape is tuned, and keeps only the configurations that are usually best, because a trial
    of all takes minutes (FULL_AUTOTUNE=yes: all)."""
    from triton import testing
    from triton.runtime.autotuner import Autotuner

    def quickly(call, quantiles=None, **_):
        return testing.do_bench(call, warmup=3, rep=12, quantiles=quantiles)

    def usual(config, stages):
        return config.num_warps in (2, 4) and config.num_stages in stages

    for tuner in [x for x in gc.get_objects() if isinstance(x, Autotuner)]:
        tuner.cache.clear()
        tuner.__dict__["do_bench"] = quickly
        if os.environ.get("FULL_AUTOTUNE"):
            continue
        few = [c for c in tuner.configs if usual(c, (2, 3))]
        fewer = [c for c in few if usual(c, (3,))]
        tuner.configs = (few if len(few) <= 12 else fewer) or tuner.configs


# ------------------------------------------------------------------ fast-transformers, [B, N, H, D]
@functools.cache
def fast_transformers_product(device_type):
    """The causal product on q, k, v [B, H, N, D] of the installed package or of FT_DIR."""
    root = os.environ.get("FT_DIR")
    if not root:
        return importlib.import_module("fast_transformers.causal_product").causal_dot_product
    from torch.utils import cpp_extension
    name = f"causal_product_{device_type}"
    source = os.path.join(root, "fast_transformers", "causal_product",
                          name + (".cu" if device_type == "cuda" else ".cpp"))
    flags = {} if device_type == "cuda" else {"extra_cflags": ["-O3", "-fopenmp"]}
    module = cpp_extension.load(name=name, sources=[source], **flags)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            out = torch.zeros_like(v)
            module.causal_dot_product(q, k, v, out)
            return out

        @staticmethod
        def backward(ctx, upstream):
            gradients = [torch.zeros_like(x) for x in ctx.saved_tensors]
            module.causal_dot_backward(*ctx.saved_tensors, upstream.contiguous(), *gradients)
            return tuple(gradients)

    return Product.apply


def fast_transformers(q, k, v, eps=1e-6):
    """The computation of that package's CausalLinearAttention."""
    q, k = phi(q), phi(k)
    divisor = torch.einsum("nlhi,nlhi->nlh", q, k.cumsum(1)) + eps
    heads_first = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    out = fast_transformers_product(q.device.type)(*heads_first)
    return out.transpose(1, 2).contiguous() / divisor.unsqueeze(-1)
