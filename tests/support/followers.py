"""A decoder written by hand whose state is the last inputs of a short convolution."""

from functools import cache
from typing import TYPE_CHECKING

import torch

from taper_frontend.decoders.decoder_module import count_positions
from taper_frontend.decoders.export_rows import ROW, ROWS, export_rows
from taper_runtime.generation.decoder_convention import DecoderConvention
from taper_runtime.plan.rewind_rule import RewindRule

if TYPE_CHECKING:
    from taper_runtime import Plan

WORDS, CONTEXT, WIDTH, TAPS = 12, 60, 4, 3


class Follower(torch.nn.Module):
    """Guess the next token by the last three."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.taps = torch.nn.Parameter(torch.randn(WIDTH, 1, TAPS))
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.register_buffer("conv_0", torch.zeros(rows, WIDTH, TAPS - 1))
        self.register_buffer("reached", torch.zeros(rows, dtype=torch.int64))

    def forward(
        self, input_ids: torch.Tensor, position: torch.Tensor, logits_to_keep: torch.Tensor
    ) -> torch.Tensor:
        """Return logits, ``[rows, kept, words]``."""
        count_positions(self, ["conv_0"], position, input_ids.shape[1])
        given = self.embed(input_ids).transpose(1, 2)
        whole = torch.cat([self.conv_0, given], -1)
        self.conv_0.copy_(whole[..., 1 - TAPS :])
        mixed = torch.nn.functional.conv1d(whole, self.taps, groups=WIDTH)
        logits: torch.Tensor = self.head(mixed.transpose(1, 2)[:, logits_to_keep])
        return logits


def text(prompt: list[int], count: int) -> list[int]:
    """Return the likeliest tokens after a prompt, each from the whole text."""
    ids = [*prompt]
    with torch.no_grad():
        for _ in range(count):
            last = torch.tensor([len(ids) - 1])
            logits = Follower(1)(torch.tensor([ids]), torch.tensor([0]), last)
            ids.append(int(logits[0, 0].argmax()))
    return ids[len(prompt) :]


@cache
def follower_plan(*, reads_one: bool) -> "Plan":
    """Return its plan; one may read one token in a run alone."""
    count = 1 if reads_one else 3
    axes = {
        "input_ids": ROW if reads_one else {0: "rows", 1: torch.export.Dim("count", max=CONTEXT)},
        "position": ROW,
        "logits_to_keep": {} if reads_one else {0: "kept"},
    }
    plan = export_rows(
        Follower(ROWS).eval(),
        {
            "input_ids": torch.ones((ROWS, count), dtype=torch.int64),
            "position": torch.arange(ROWS),
            "logits_to_keep": torch.arange(count)[:2],
        },
        {**axes, "conv_0": ROW, "reached": ROW},
        input_names=[*axes],
        output_names=["logits"],
        shared=["logits_to_keep"],
        verify=False,
    )
    rule = RewindRule("position", "reached", back=0, whole=0)
    return DecoderConvention(WORDS, CONTEXT).recorded(rule.recorded(plan))
