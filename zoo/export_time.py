"""Taper's export beside torch's own: `nox -s export_time`.

Of each architecture the CPU seconds of `taper_frontend.export`, with its checks, over those of
`torch.export.export` and one run of the module: in turns, the least of three. Every tenth
architecture, or those that are named.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from typing import TYPE_CHECKING

import torch

import taper_frontend
from zoo import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from zoo.architecture import Architecture

_TURNS = 3


def ratio(architecture: Architecture) -> float:
    """Return the time of Taper's export over that of torch's and one run of the module."""
    module, inputs = architecture.build()

    def torchs() -> None:
        with torch.no_grad():
            torch.export.export(module, (), inputs, strict=False)
            module(**inputs)

    def tapers() -> None:
        taper_frontend.export(module, (), inputs)

    turns = [(_seconds(torchs), _seconds(tapers)) for _ in range(_TURNS)]
    theirs, ours = (min(times) for times in zip(*turns, strict=True))
    return ours / theirs


def _seconds(action: Callable[[], None]) -> float:
    gc.collect()
    begin = time.process_time()
    action()
    return time.process_time() - begin


def main() -> None:
    """Print the ratio of each architecture, and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; every tenth by default")
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    architectures = {name: each for group in GROUPS.values() for name, each in group.items()}
    ratios = []
    for name in names or list(architectures)[::10]:
        try:
            ratios.append(ratio(architectures[name]))
        except Exception as error:  # torch.export refuses it
            print(f"{name}: {type(error).__name__}")
        else:
            print(f"{name}: {ratios[-1]:.2f}", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
