"""Measure what quantization does to the results of models with trained weights.

`nox -s accuracy` writes docs/results/quantized-accuracy.md; with `--only minilm` or another name
that part alone. Gemma takes half an hour on one core; `--tokens N` takes less of its text.
"""

from __future__ import annotations

import argparse
import os
import warnings
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.zoo.torchvision_ops import declare_torchvision_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "results" / "quantized-accuracy.md"

TITLES = {
    "gemma": "Gemma 3 270M",
    "minilm": "MiniLM",
    "classifier": "A classifier of digits",
    "letters": "A small language model",
    "craft": "CRAFT finds words",
    "crnn": "CRNN reads words",
    "mtcnn": "MTCNN finds faces",
    "crepe": "CREPE hears tones",
}


def lines_of(name: str, tokens: int) -> Iterator[str]:
    """Return the lines of a table."""
    if name == "gemma":
        from tools.accuracy import gemma

        return gemma.measure(tokens)
    if name == "minilm":
        from tools.accuracy import minilm

        return minilm.measure()
    if name in ("craft", "crnn", "mtcnn", "crepe"):
        from tools.accuracy import carried

        return carried.measure(name)
    from tools.accuracy import trained

    made = {"classifier": trained.measure_classifier, "letters": trained.measure_language_model}
    return made[name]()


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*TITLES], default=[*TITLES])
    parser.add_argument("--tokens", type=int, default=20_000, metavar="N")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    declare_torchvision_ops()  # before anything else imports torchvision
    for name in options.only:
        lines = []
        for line in lines_of(name, options.tokens):
            print(line, flush=True)
            lines.append(line)
        text = "\n".join([describe_setting(command_line("accuracy")), "", *lines])
        write_section(name, TITLES[name], text, PAGE)


if __name__ == "__main__":
    main()
