"""The models the tests export, with seeded weights."""

import math

import torch


class MLP(torch.nn.Module):
    """Three linear layers of one width."""

    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        return self.layers(x)


class Block(torch.nn.Module):
    """One pre-norm transformer block whose attention is written in one of three forms."""

    def __init__(self, width, form, causal, heads=4):
        super().__init__()
        self.form, self.causal, self.heads = form, causal, heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def attention(self, q, k, v):
        if self.form == "sdpa":
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~keep, float("-inf"))
        if self.form == "softmax":
            return torch.nn.functional.softmax(scores, dim=-1) @ v
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (weights / weights.sum(-1, keepdim=True)) @ v

    def forward(self, x):
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            proj(h).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        a = self.attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.o(a)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def seeded(make):
    """The module ``make`` builds, with the same weights every time, in eval mode."""
    torch.manual_seed(0)
    return make().eval()
