"""Models shared by the benchmarks. Appended to, never changed: old results must stay comparable."""

import torch

MLP_SIZES = [(1, 512), (32, 512), (128, 512), (1, 2048), (32, 2048)]
BLOCK_SIZES = [(1, 16, 64), (4, 64, 128), (4, 128, 256)]


class MLP(torch.nn.Module):
    """Three linear layers of one width, GELU between them."""

    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        return self.layers(x)


class Block(torch.nn.Module):
    """One pre-norm transformer block, four heads."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, w = x.shape
        h = self.norm1(x)
        q, k, v = (
            proj(h).view(b, s, self.heads, w // self.heads).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, w))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


def mlp(batch, width):
    torch.manual_seed(0)
    return MLP(width).eval(), (torch.randn(batch, width),)


def block(batch, length, width):
    torch.manual_seed(0)
    return Block(width).eval(), (torch.randn(batch, length, width),)


def encoder(batch, length):
    """MiniLM's shape with seeded weights: six layers, width 384, twelve heads."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return model.eval(), (torch.randn(batch, length, 384),)
