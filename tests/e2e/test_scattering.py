"""Models that scatter, sort and scan: graphs, experts, bags, pyramids, decoders; byte images."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import taper_frontend
import taper_runtime
from marks import NARROWED
from taper_runtime.base.errors import InputError

NODES, EDGES = 20, 60


class GraphConvolution(nn.Module):
    """A GCN of two layers, messages added up by index_add."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(16, 32)
        self.out = nn.Linear(32, 8)

    @staticmethod
    def pass_messages(x, edges):
        source, target = edges
        degree = x.new_zeros(x.shape[0]).index_add(0, target, x.new_ones(target.shape[0]))
        scale = degree.clamp(min=1).rsqrt()
        messages = x[source] * (scale[source] * scale[target])[:, None]
        return torch.zeros_like(x).index_add(0, target, messages)

    def forward(self, x, edges):
        x = torch.relu(self.pass_messages(self.hidden(x), edges))
        return self.pass_messages(self.out(x), edges)


class GraphAttention(nn.Module):
    """A GAT layer, softmax over the neighbours; and the mean of theirs."""

    def __init__(self):
        super().__init__()
        self.heads = nn.Linear(16, 4 * 8)
        self.score = nn.Parameter(torch.randn(4, 16))

    def forward(self, x, edges):
        source, target = edges
        count = x.shape[0]
        h = self.heads(x).view(-1, 4, 8)
        score = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.score).sum(-1), 0.2)
        index = target[:, None].expand_as(score)
        top = x.new_full((count, 4), -1e9).scatter_reduce(0, index, score, "amax")
        weight = torch.exp(score - top[target])
        weight = weight / x.new_zeros(count, 4).scatter_add(0, index, weight)[target]
        y = x.new_zeros(count, 4, 8).index_add(0, target, weight[:, :, None] * h[source])
        index = target[:, None].expand(-1, 16)
        mean = torch.zeros_like(x).scatter_reduce(0, index, x[source], "mean", include_self=False)
        return y.flatten(1), mean


class Experts(nn.Module):
    """Two of four experts for each token: weighed, and by tokens sorted by expert."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32) / 4)
        self.down = nn.Parameter(torch.randn(4, 32, 16) / 4)

    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = x.new_zeros(x.shape[0], 4).scatter(1, chosen, weights)
        y = torch.zeros_like(x)
        for expert in range(4):
            out = F.silu(x @ self.up[expert]) @ self.down[expert]
            y = y + mask[:, expert, None] * out
        order = torch.argsort(chosen.flatten(), stable=True)
        token = order // 2
        parts = x[token] * weights.flatten()[order][:, None]
        return y, torch.zeros_like(x).index_add(0, token, parts)


class Bags(nn.Module):
    """Embedding bags of every mode, one of them empty."""

    def __init__(self):
        super().__init__()
        self.sum = nn.EmbeddingBag(50, 8, mode="sum")
        self.mean = nn.EmbeddingBag(50, 8, mode="mean", padding_idx=0)
        self.max = nn.EmbeddingBag(50, 8, mode="max")

    def forward(self, words, offsets, weights):
        weighed = self.sum(words, offsets, per_sample_weights=weights)
        return weighed, self.mean(words, offsets), self.max(words, offsets)


class EqualBags(nn.Module):
    """Embedding bags of one length, by a matrix of words or by offsets, and one shorter bag."""

    def __init__(self):
        super().__init__()
        self.bags = Bags()

    def forward(self, words, weights):
        bags = self.bags
        last = torch.arange(0, words.numel() + 1, 5)
        ended = F.embedding_bag(words.flatten(), bags.sum.weight, last, include_last_offset=True)
        shorter = F.embedding_bag(words.flatten(), bags.sum.weight, torch.arange(0, 20, 7))
        weighed = bags.sum(words, per_sample_weights=weights)
        return weighed, bags.mean(words), bags.max(words), ended, shorter


class Pyramid(nn.Module):
    """PSPNet's head over a size that neither 2, 3 nor 6 divides."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, 2, 1)
        self.levels = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Conv2d(24, 6, 1), nn.ReLU())
            for size in (1, 2, 3, 6)
        )
        self.out = nn.Conv2d(48, 5, 3, padding=1)

    def forward(self, x):
        x = self.stem(x)
        levels = [
            F.interpolate(level(x), x.shape[2:], mode="bilinear", align_corners=False)
            for level in self.levels
        ]
        return self.out(torch.cat([x, *levels], 1)), F.adaptive_max_pool2d(x, 4)


class Photograph(nn.Module):
    """Classifies images of bytes, channels last, and gives bytes too."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.head = nn.Linear(8, 5)
        self.register_buffer("mean", torch.tensor([123.0, 117.0, 104.0])[:, None, None])

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        y = self.head(self.conv((x.float() - self.mean) / 255).relu().mean((2, 3)))
        z = self.head(self.conv(x / 255).relu().mean((2, 3)))
        return y.softmax(-1), z, (y.sigmoid() * 255).to(torch.uint8)


class Decoder(nn.Module):
    """A step of decoding: top-k, and the nucleus of the likeliest tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 16)
        self.out = nn.Linear(16, 500)

    def forward(self, token, temperature):
        logits = self.out(self.embedding(token)) / temperature
        values, places = torch.topk(logits, 20)
        sorted_logits, order = torch.sort(logits, descending=True)
        p = sorted_logits.softmax(-1)
        kept = torch.where(p.cumsum(-1) - p < 0.9, sorted_logits, -1e9)
        nucleus = torch.full_like(logits, -1e9).scatter(1, order, kept)
        return values, places, nucleus, torch.cumprod(p, -1), torch.cummax(logits, -1)[0]


class Rotation(nn.Module):
    """Rotary embeddings whose angles are computed in float64, as Flux has them."""

    def forward(self, position, x):
        frequency = 10000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
        angle = position[:, :, None].double() * frequency
        cos, sin = (f(angle).float().repeat_interleave(2, -1) for f in (torch.cos, torch.sin))
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + turned * sin


def arguments(module):
    g = torch.Generator().manual_seed(1)
    edges = torch.randint(0, NODES, (2, EDGES), generator=g)
    nodes = torch.randn(NODES, 16, generator=g)
    photographs = torch.randint(0, 256, (2, 31, 29, 3), generator=g)
    return {
        GraphConvolution: (nodes, edges),
        GraphAttention: (nodes, edges),
        Experts: (torch.randn(9, 16, generator=g),),
        Bags: (
            torch.randint(0, 50, (30,), generator=g),
            torch.tensor([0, 4, 4, 19]),
            torch.rand(30, generator=g),
        ),
        EqualBags: (torch.randint(0, 50, (4, 5), generator=g), torch.rand(4, 5, generator=g)),
        Pyramid: (torch.randn(1, 3, 41, 37, generator=g),),
        Photograph: (photographs.to(torch.uint8),),
        Decoder: (torch.tensor([3, 7]), torch.tensor(0.7)),
        Rotation: (
            torch.arange(24).reshape(2, 12) * 100,
            torch.randn(2, 12, 16, generator=g),
        ),
    }[module]


def make(module):
    torch.manual_seed(0)
    model = module().eval()
    # Bags: offsets drawn at random are none, which the verification of an export would find.
    plan = taper_frontend.export(model, arguments(module), verify=module is not Bags)
    return model, plan


def run(plan, args):
    options = taper_runtime.SessionOptions()
    options.strict_native = True
    session = taper_runtime.InferenceSession(plan, options)
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, (a.numpy() for a in args), strict=True)))


MODELS = [
    *(GraphConvolution, GraphAttention, Experts, Bags, EqualBags),
    *(Pyramid, Photograph, Decoder, Rotation),
]


@pytest.mark.parametrize("module", MODELS)
def test_is_right_and_all_native(module):
    model, plan = make(module)
    args = arguments(module)
    got = run(plan, args)
    with torch.no_grad():
        want = model(*args)
    want = want if isinstance(want, tuple) else (want,)
    for y, expected in zip(got, want, strict=True):
        expected = expected.numpy()
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)


def test_graphs_of_any_size_are_native():
    torch.manual_seed(0)
    model = GraphConvolution().eval()
    nodes, edges = torch.export.Dim("nodes", max=5000), torch.export.Dim("edges", max=9000)
    plan = taper_frontend.export(
        model, arguments(GraphConvolution), dynamic_shapes=({0: nodes}, {1: edges})
    )
    for count, links in ((4000, 9000), (3, 1), (7, 5)):
        args = torch.randn(count, 16), torch.randint(0, count, (2, links))
        (got,) = run(plan, args)
        with torch.no_grad():
            np.testing.assert_allclose(got, model(*args).numpy(), rtol=2e-5, atol=1e-5)


class Halves(nn.Module):
    """Places of the larger half of each row, and its median: how many that are varies."""

    def forward(self, x):
        return torch.topk(x, x.shape[1] // 2, 1)[1], x.median(1)[0], x.kthvalue(2, 1)[0]


@NARROWED
def test_top_k_of_a_size_that_varies_is_native():
    x = torch.randn(3, 10)
    auto = ({1: torch.export.Dim.AUTO},)
    plan = taper_frontend.export(Halves(), (x,), dynamic_shapes=auto)
    for n in (4, 11, 3000):
        x = torch.stack([torch.randperm(n) for _ in range(3)]).float()  # no ties: torch swaps them
        for y, expected in zip(run(plan, (x,)), Halves()(x), strict=True):
            np.testing.assert_array_equal(y, expected.numpy())


def test_an_index_outside_is_named_with_its_limit():
    _, plan = make(GraphConvolution)
    x, edges = arguments(GraphConvolution)
    edges = edges.clone()
    edges[1, 7] = NODES
    limits = rf"\(SCATTER\): expected indices in \[0, {NODES}\), got .*{NODES}"
    with pytest.raises(InputError, match=limits):
        run(plan, (x, edges))


class Gaps(nn.Module):
    """Write where axes are indexed that lie apart."""

    def forward(self, x, i, j):
        whole, rows, pairs = x.clone(), x.clone(), x.clone()
        whole[i, :, j] = x[:1, :, :1].mean()
        rows[i, :, j] = torch.arange(2.0 * 5 * 6).view(2, 5, 6)
        rows[:, i, :, j] = -1.5
        rows[:, i, :, j] = torch.arange(6.0)[:2, None, None]
        pairs[i[:, None], :, :, j[None]] = torch.arange(2.0 * 2 * 5 * 4).view(2, 2, 5, 4)
        return whole, rows, pairs


@pytest.mark.parametrize("dims", [None, {"x": {0: "n"}}])
def test_writes_at_axes_apart_leave_the_tensor_in_place(dims):
    arguments = torch.randn(4, 5, 4, 6), torch.tensor([1, -1]), torch.tensor([3, 0])
    plan = taper_frontend.export(Gaps(), arguments, dynamic_axes=dims, verify="deep")
    moved = [node.inputs[0] for node in plan.nodes if node.op in ("PERMUTE", "TRANSPOSE")]
    assert all(len(plan.tensors[name].shape) < 4 for name in moved), "x is not moved"
    session = taper_runtime.InferenceSession(plan)
    feed = dict(zip(plan.inputs, (x.numpy() for x in arguments), strict=True))
    with pytest.raises(InputError):
        session.run(None, feed | {"i": np.array([1, 5])})
