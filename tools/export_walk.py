"""Count how often one export goes from one file of the frontend to another.

A change of file is a call of a function of one file of ``taper_frontend`` whose nearest caller in
``taper_frontend`` is a function of another file. Frames of other packages between the two are
passed over. A property, a comprehension, a lambda and each resume of a generator are calls, as
:func:`sys.setprofile` tells of them. Three counts are made:

- changes: all of them. It grows with the nodes of the model, and with what is asked of each node.
- outside: those where neither file is of the compiler nor of the lowering: request, capture,
  verification and the files that lead from one to the other.
- distinct: each pair of functions once, however often it is called. It is what someone has to
  follow who reads an export from beginning to end.

The models are exported twice, and the second export is counted: the first fills caches. The counts
are the same in each run of one commit. The file imports nothing of ``tools``, so that the frontend
of another commit can be counted with it::

    python -m tools.export_walk
    /path/of/another/worktree/.venv/bin/python tools/export_walk.py --pairs 30
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import taper_frontend

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_ROOT = os.path.dirname(taper_frontend.__file__) + os.sep

#: A file below the frontend's root, and the name of a function in it.
Function = tuple[str, str]


class Walk(NamedTuple):
    """The changes of file of one export.

    Attributes
    ----------
    files : frozenset of str
        The files that it entered.
    calls : Counter of (Function, Function)
        Caller and called function of each change of file -> how often.
    """

    files: frozenset[str]
    calls: Counter[tuple[Function, Function]]

    @property
    def changes(self) -> int:
        """How many changes there were."""
        return self.calls.total()

    @property
    def outside(self) -> int:
        """How many were between two files that are not of the compiler and the lowering."""
        return sum(
            times
            for ends, times in self.calls.items()
            if not any(file.startswith(("compiler/", "lowering/")) for file, _ in ends)
        )

    @property
    def distinct(self) -> int:
        """How many pairs of functions there were."""
        return len(self.calls)


class Encoder(torch.nn.Module):
    """Token and position embeddings, two transformer layers and a classifier, as BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 32)
        self.positions = torch.nn.Embedding(16, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = torch.nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Classify ids of shape [batch, length]."""
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.classify(self.layers(x)[:, 0])


def mlp() -> None:
    """Export two linear layers with fixed sizes."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)
    taper_frontend.export(torch.nn.Sequential(*layers).eval(), (torch.randn(4, 16),))


def encoder() -> None:
    """Export an encoder whose batch varies."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 12))
    taper_frontend.export(Encoder().eval(), (ids,), dynamic_shapes={"ids": {0: "batch"}})


MODELS = {"mlp": mlp, "encoder": encoder}


def walk(export: Callable[[], None]) -> Walk:
    """Return the changes of file of a function that exports; it is called twice."""
    export()
    files: set[str] = set()
    calls: Counter[tuple[Function, Function]] = Counter()

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (file := _file(frame)):
            return
        files.add(file)
        caller = frame.f_back
        while caller is not None and not _file(caller):
            caller = caller.f_back
        if caller is not None and _file(caller) != file:
            ends = (_file(caller), caller.f_code.co_name), (file, frame.f_code.co_name)
            calls[ends] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        export()
    finally:
        sys.setprofile(before)
    return Walk(frozenset(files), calls)


def _file(frame: FrameType) -> str:
    """Return the file of a frame below the frontend's root, empty if it is elsewhere."""
    name = frame.f_code.co_filename
    return name[len(_ROOT) :].replace(os.sep, "/") if name.startswith(_ROOT) else ""


def main() -> None:
    """Print the counts of each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=0, help="list so many of the frequent calls")
    pairs = parser.parse_args().pairs
    print("model    changes  outside  distinct  files")
    for name, export in MODELS.items():
        found = walk(export)
        counts = found.changes, found.outside, found.distinct, len(found.files)
        print(f"{name:8} {counts[0]:7} {counts[1]:8} {counts[2]:9} {counts[3]:6}")
        for ((file, function), (other, called)), times in found.calls.most_common(pairs):
            print(f"  {times:6}  {file} {function} -> {other} {called}")


if __name__ == "__main__":
    main()
