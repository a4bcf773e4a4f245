"""GPT-2 (Radford et al. 2019) in PyTorch, with tied embeddings and the loss of its next tokens."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.input, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff1, self.ff2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in self.input(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.output(y)
        return x + self.ff2(F.gelu(self.ff1(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, size):
        super().__init__()
        width, layers, heads = size.width, size.layers, size.heads
        self.tokens, self.positions = nn.Embedding(size.vocabulary, width), nn.Embedding(size.context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x, targets):
        x = self.tokens(x) + self.positions.weight[:x.shape[1]]
        logits = F.linear(self.norm(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
