"""Writes qwen3_next_linear_attention.safetensors and qwen3_next_full_attention.safetensors, one layer
each with the tensor names of Hugging Face's Qwen3-Next checkpoints, for tests/test_qwen3_next.c:
random weights, x, out, grad_out and all gradients, in float64. Needs PyTorch:

    python tests/data/qwen3_next.py          writes the files
    python tests/data/qwen3_next.py --check  compares the formulas with transformers' own layers

--check, with transformers 5.24.0 and PyTorch 2.15: out and gradients differ by less than 1e-13 of
the largest element.
"""

import os
import sys
import types

import torch
from torch.nn.functional import conv1d, pad, silu, softplus

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402

B, N, WIDTH, FEED_FORWARD, EPS = 2, 19, 32, 40, 1e-6
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS = 2, 4, 8, 12, 4  # of the Gated DeltaNet
HEADS, GROUPS, HEAD_DIM, ROTARY_DIM, BASE = 4, 2, 16, 4, 1e4  # of softmax attention
KEYS, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
LAYERS = {"linear_attention": 0, "full_attention": 3}

SHAPES = {
    "linear_attention": {
        "linear_attn.in_proj_qkvz.weight": (2 * KEYS + 2 * VALUES, WIDTH),
        "linear_attn.in_proj_ba.weight": (2 * VALUE_HEADS, WIDTH),
        "linear_attn.conv1d.weight": (2 * KEYS + VALUES, 1, TAPS),
        "linear_attn.A_log": (VALUE_HEADS,),
        "linear_attn.dt_bias": (VALUE_HEADS,),
        "linear_attn.norm.weight": (VALUE_DIM,),
        "linear_attn.out_proj.weight": (WIDTH, VALUES),
    },
    "full_attention": {
        "self_attn.q_proj.weight": (HEADS * 2 * HEAD_DIM, WIDTH),
        "self_attn.k_proj.weight": (GROUPS * HEAD_DIM, WIDTH),
        "self_attn.v_proj.weight": (GROUPS * HEAD_DIM, WIDTH),
        "self_attn.q_norm.weight": (HEAD_DIM,),
        "self_attn.k_norm.weight": (HEAD_DIM,),
        "self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_DIM),
    },
}
SHARED = {
    "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
    "mlp.gate_proj.weight": (FEED_FORWARD, WIDTH),
    "mlp.up_proj.weight": (FEED_FORWARD, WIDTH),
    "mlp.down_proj.weight": (WIDTH, FEED_FORWARD),
}


def rms_norm(x, factor):
    return factor * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def l2_normalize(x):
    return x / (x.square().sum(-1, keepdim=True) + EPS).sqrt()


def gated_delta_rule(q, k, v, beta, log_decay):
    """S_i = e^l_i S_i-1 + k_i u_i^T, u_i = beta_i (v_i - e^l_i S_i-1^T k_i), out_i = S_i^T q_i, by
    head (Yang, Kautz, Hatamizadeh 2024, equation 10)."""
    state, outputs = q.new_zeros(B, VALUE_HEADS, KEY_DIM, VALUE_DIM), []
    for i in range(N):
        state = log_decay[:, i, :, None, None].exp() * state
        error = v[:, i] - torch.einsum("bhdm,bhd->bhm", state, k[:, i])
        u = beta[:, i, :, None] * error
        state = state + torch.einsum("bhd,bhm->bhdm", k[:, i], u)
        outputs.append(torch.einsum("bhdm,bhd->bhm", state, q[:, i]))
    return torch.stack(outputs, 1)


def linear_attention(w, x):
    """Rows of in_proj_qkvz by key head: its q, k, then v and z of its value heads; of in_proj_ba:
    b, then a of these value heads."""
    each = VALUES // KEY_HEADS
    mixed = (x @ w["in_proj_qkvz.weight"].T).unflatten(-1, (KEY_HEADS, -1))
    q, k, v, z = mixed.split([KEY_DIM, KEY_DIM, each, each], -1)
    gates = (x @ w["in_proj_ba.weight"].T).unflatten(-1, (KEY_HEADS, -1))
    b, a = (y.flatten(2) for y in gates.chunk(2, -1))
    channels = torch.cat([y.flatten(2) for y in (q, k, v)], -1).transpose(1, 2)
    taps = w["conv1d.weight"]
    mixed = silu(conv1d(pad(channels, (TAPS - 1, 0)), taps, groups=len(taps))).transpose(1, 2)
    q, k, v = mixed.split([KEYS, KEYS, VALUES], -1)
    q, k = (l2_normalize(y.unflatten(-1, (KEY_HEADS, -1))) for y in (q, k))
    q, k = (y.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for y in (q * KEY_DIM**-0.5, k))
    log_decay = -w["A_log"].exp() * softplus(a + w["dt_bias"])
    v = v.unflatten(-1, (VALUE_HEADS, -1))
    out = gated_delta_rule(q, k, v, b.sigmoid(), log_decay)
    out = rms_norm(out, w["norm.weight"]) * silu(z.unflatten(-1, (-1, VALUE_DIM)).flatten(2, 3))
    return out.flatten(2) @ w["out_proj.weight"].T


def rotary(x):
    """Rotates the pairs (i, i + ROTARY_DIM / 2) of the first ROTARY_DIM elements of each head."""
    half = ROTARY_DIM // 2
    positions = torch.arange(N, dtype=x.dtype)[:, None, None]
    angles = positions * BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b, rest = x.split([half, half, HEAD_DIM - ROTARY_DIM], -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def full_attention(w, x):
    """Rows of q_proj by head: its query, then its output gate."""
    mixed = (x @ w["q_proj.weight"].T).unflatten(-1, (HEADS, -1))
    q, gate = mixed.chunk(2, -1)
    k, v = ((x @ w[name].T).unflatten(-1, (GROUPS, -1)) for name in ("k_proj.weight", "v_proj.weight"))
    q = rotary(rms_norm(q, 1 + w["q_norm.weight"]))
    k = rotary(rms_norm(k, 1 + w["k_norm.weight"]))
    k, v = (y.repeat_interleave(HEADS // GROUPS, 2) for y in (k, v))
    logits = torch.einsum("bihd,bjhd->bhij", q, k) * HEAD_DIM**-0.5
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    out = torch.einsum("bhij,bjhd->bihd", weights, v) * gate.sigmoid()
    return out.flatten(2) @ w["o_proj.weight"].T


def layer(kind, w, x):
    """x + mix(norm(x)), then x + mlp(norm(x)); norms with the factor 1 + weight."""
    prefix = next(iter(SHAPES[kind])).split(".")[0] + "."
    own = {name.removeprefix(prefix): w[name] for name in SHAPES[kind]}
    mix = linear_attention if kind == "linear_attention" else full_attention
    x = x + mix(own, rms_norm(x, 1 + w["input_layernorm.weight"]))
    y = rms_norm(x, 1 + w["post_attention_layernorm.weight"])
    y = silu(y @ w["mlp.gate_proj.weight"].T) * (y @ w["mlp.up_proj.weight"].T)
    return x + y @ w["mlp.down_proj.weight"].T


def random_case(kind):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    w = {name: 0.4 * normal(*shape) for name, shape in (SHAPES[kind] | SHARED).items()}
    if kind == "linear_attention":  # memories from short to long
        w["linear_attn.A_log"] = torch.tensor([0.05, 0.3, 1, 4], dtype=torch.float64).log()
        w["linear_attn.norm.weight"] += 1
    return w, normal(B, N, WIDTH), normal(B, N, WIDTH)


def outcome(forward, w, x, grad_out):
    """out and the gradients, by name."""
    inputs = [x.requires_grad_(), *(value.requires_grad_() for value in w.values())]
    out = forward(x)
    gradients = torch.autograd.grad(out, inputs, grad_out)
    return {"out": out.detach()} | {"grad." + name: g for name, g in zip(["x", *w], gradients)}


def write(kind, path):
    w, x, grad_out = random_case(kind)
    prefix = f"model.layers.{LAYERS[kind]}."
    w = {prefix + name: value for name, value in w.items()}

    def forward(x):
        return layer(kind, {name.removeprefix(prefix): value for name, value in w.items()}, x)

    tensors = w | {"x": x, "grad_out": grad_out} | outcome(forward, w, x, grad_out)
    stored = {name: Tensor("F64", tuple(value.shape), value.detach().contiguous().numpy().tobytes())
              for name, value in tensors.items()}
    write_safetensors(stored, path)


def transformers_layer(kind):
    """transformers' layer of these sizes, and its further arguments."""
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double  # where the layers compute in float32
    doubles = {"float32": torch.float64, "float": torch.float64}
    theirs.torch = types.SimpleNamespace(**{**vars(torch), **doubles})
    config = theirs.Qwen3NextConfig(
        hidden_size=WIDTH, intermediate_size=FEED_FORWARD, num_hidden_layers=4, mlp_only_layers=[0, 1, 2, 3],
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=HEAD_DIM, rms_norm_eps=EPS,
        linear_num_key_heads=KEY_HEADS, linear_num_value_heads=VALUE_HEADS, linear_conv_kernel_dim=TAPS,
        linear_key_head_dim=KEY_DIM, linear_value_head_dim=VALUE_DIM, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": BASE,
                         "partial_rotary_factor": ROTARY_DIM / HEAD_DIM})
    made = theirs.Qwen3NextDecoderLayer(config, LAYERS[kind])
    if kind == "linear_attention":
        return made, {"position_embeddings": None}
    embeddings = theirs.Qwen3NextRotaryEmbedding(config)(torch.zeros(()), torch.arange(N)[None])
    mask = torch.full((N, N), -torch.inf).triu(1)[None, None]
    return made, {"position_embeddings": embeddings, "attention_mask": mask}


def check(kind):
    w, x, grad_out = random_case(kind)
    expected = outcome(lambda x: layer(kind, w, x), w, x, grad_out)
    made, further = transformers_layer(kind)
    made.load_state_dict(w)
    found = outcome(lambda x: made(x, **further), dict(made.named_parameters()), x, grad_out)
    worst = max(float((found[name] - y).abs().max() / y.abs().max()) for name, y in expected.items())
    print(f"{kind}: the largest relative difference of {len(expected)} tensors is {worst:.2g}")
    return worst < 1e-13


def main():
    if "--check" in sys.argv[1:]:
        return 0 if all([check(kind) for kind in LAYERS]) else 1
    for kind in LAYERS:
        write(kind, os.path.join(os.path.dirname(__file__), f"qwen3_next_{kind}.safetensors"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
