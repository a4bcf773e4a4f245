"""Writes pytorch_state.safetensors, a state dictionary, and pytorch_results.safetensors, the inputs
and results of its layers, for tests/test_from_pytorch.c. Needs PyTorch:

    python tests/data/from_pytorch.py
"""

import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
from from_pytorch import Tensor, write_safetensors  # noqa: E402


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, (3, 2), stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4 * 3 * 4, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
        self.images = Images()
        self.embedding = torch.nn.Embedding(7, 8)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(8))
        self.attention = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
        self.lstm = torch.nn.LSTM(8, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(8, 3, batch_first=True)


def stored(tensors):
    return {name: Tensor("F32", value.shape, value.detach().contiguous().float().numpy().tobytes())
            for name, value in tensors.items()}


def main():
    torch.manual_seed(1)
    model = Model()
    for parameter in model.parameters():  # biases and norms too
        torch.nn.init.normal_(parameter, 0, 0.4)
    pixels, memory = torch.randn(2, 3, 5, 6), torch.randn(2, 4, 6)
    for _ in range(3):
        model.images(torch.randn(4, 3, 5, 6))  # running statistics
    model.eval()
    symbols = torch.tensor([[0, 6, 2, 3, 1], [5, 4, 4, 0, 2]])
    x = model.embedding(symbols)
    results = {"pixels": pixels.permute(0, 2, 3, 1), "memory": memory, "images": model.images(pixels),
               "encoder": model.encoder(x), "attention": model.attention(x, memory, memory)[0],
               "lstm": model.lstm(x)[0], "gru": model.gru(x)[0]}
    directory = os.path.dirname(__file__)
    write_safetensors(stored(model.state_dict()), os.path.join(directory, "pytorch_state.safetensors"))
    write_safetensors(stored(results), os.path.join(directory, "pytorch_results.safetensors"))


if __name__ == "__main__":
    main()
