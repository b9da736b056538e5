"""Measure what each scheme does to a classifier and a language model that are trained here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

import taper_frontend
import taper_runtime
from taper_frontend import QuantizationConfig, quantize, quantize_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from taper_runtime.plan.plan import Plan

#: Schemes of plans, and those of modules, which have calibration data.
_SCHEMES = ("float16", "int8", "int4.16.zeros", "int4.16", "int2.16")
_WITH_DATA: dict[str, QuantizationConfig | str] = {
    "`int8_static`": "int8_static",
    "`int8_static`, mse": QuantizationConfig(activations="static", observer="mse"),
    "`int4.16`, corrected": "int4.16",
}


class Classifier(nn.Sequential):
    """Three convolutions and two linear layers for images of 8x8."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)),
        )


def measure_classifier() -> Iterator[str]:
    """Yield the lines of a table of how many digits are recognized."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(images))
    train, test = order[:1200], order[1200:]
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(12):
        for rows in train[torch.randperm(len(train))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    seen = [(images[rows],) for rows in train.split(100)]

    def right(plan: Plan) -> str:
        (scores,) = _run(plan, images[test])
        return f"{(scores.argmax(1) == labels[test].numpy()).sum()} of {len(test)}"

    yield from _table("digits that are right", model.eval(), (images[test],), seen, right)


class Letters(nn.Module):
    """A language model of the bytes of a text, with two blocks of attention."""

    def __init__(self, length: int = 64, width: int = 128) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(128, width), nn.Embedding(length, width)
        layers = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits ``[N, tokens, 128]``."""
        count = ids.shape[1]
        x = self.table(ids) + self.places(torch.arange(count))
        mask = nn.Transformer.generate_square_subsequent_mask(count)
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def measure_language_model(steps: int = 500) -> Iterator[str]:
    """Yield the lines of a table of the perplexity of bytes that were not in the training."""
    from pydoc_data.topics import topics

    torch.manual_seed(0)
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    data = torch.tensor(list(text))
    cut = 9 * len(data) // 10
    model = Letters()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        starts = torch.randint(0, cut - 65, (32,)).tolist()
        rows = torch.stack([data[i : i + 65] for i in starts])
        optimizer.zero_grad()
        logits = model(rows[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
    held = data[cut:][: 65 * 256].view(256, 65)
    seen = [(data[i * 640 : i * 640 + 640].view(10, 64),) for i in range(20)]

    def perplexity(plan: Plan) -> str:
        (logits,) = _run(plan, held[:, :-1])
        loss = nn.functional.cross_entropy(
            torch.from_numpy(logits).flatten(0, 1), held[:, 1:].flatten()
        )
        return f"{math.exp(float(loss)):.4f}"

    yield from _table("perplexity of a byte", model.eval(), (held[:, :-1],), seen, perplexity)


def _run(plan: Plan, x: torch.Tensor) -> list[np.ndarray]:
    """Run a plan of one input."""
    (name,) = plan.inputs
    found: list[np.ndarray] = taper_runtime.InferenceSession(plan).run(None, {name: x.numpy()})
    return found


def _table(
    what: str,
    model: nn.Module,
    inputs: tuple[torch.Tensor],
    seen: list[tuple[torch.Tensor]],
    judge: Callable[[Plan], str],
) -> Iterator[str]:
    """Yield the lines of a table with a row for each scheme."""
    yield f"| scheme | kB of weights | {what} |"
    yield "| --- | ---: | ---: |"
    plain = taper_frontend.export(model, inputs, verify=False, packing="at_open")
    yield _row("float32", plain, judge)
    for scheme in _SCHEMES:
        yield _row(f"`{scheme}`", quantize_plan(plain, scheme, verify=False), judge)
    for name, config in _WITH_DATA.items():
        small = taper_frontend.export(quantize(model, config, seen), inputs, verify=False)
        yield _row(name, small, judge)


def _row(name: str, plan: Plan, judge: Callable[[Plan], str]) -> str:
    stored = {id(array): array.nbytes for array in plan.constants.values()}
    stored |= {id(array): array.nbytes for array in plan.originals.values()}
    return f"| {name} | {sum(stored.values()) / 1e3:.1f} | {judge(plan)} |"
