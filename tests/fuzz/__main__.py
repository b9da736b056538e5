"""Fuzz a reader and what it lets through, guided by coverage of the Python and of the C.

``python -m tests.fuzz TARGET FOLDER [more folders and options of libFuzzer]``, under
AddressSanitizer, is what `nox -s fuzz` runs. TARGET is one of ``tests.fuzz.targets``; FOLDER holds
the corpus, and gets what covers more; further folders are only read.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import atheris

os.environ.pop("LD_PRELOAD", None)  # what this process starts has no use for the fuzzer

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

with atheris.instrument_imports(include=["taper_runtime", "taper_frontend.quantized_checkpoint"]):
    from tests.fuzz.targets import find

    _target = find(sys.argv.pop(1))

_known: list[bytes] = []

#: Files that libFuzzer asks for without our mutator: it reads the corpus first.
_UNMUTATED = 20_000

_calls = {"check": 0, "mutate": 0}


def main() -> None:
    """Write the seeds into the folder, then fuzz."""
    corpus = Path(next(argument for argument in sys.argv[1:] if not argument.startswith("-")))
    corpus.mkdir(parents=True, exist_ok=True)
    for index, blob in enumerate(_target.seeds()):
        _known.append(blob)
        (corpus / f"seed-{index:04}").write_bytes(blob)
    atheris.Setup(sys.argv, _check, custom_mutator=_mutate)
    atheris.Fuzz()


def _check(blob: bytes) -> None:
    _calls["check"] += 1
    if _calls["check"] > _UNMUTATED and not _calls["mutate"]:
        raise RuntimeError("expected libFuzzer to change files by structure, it changes bytes")
    _target.check(blob)


def _mutate(blob: bytes, max_size: int, seed: int) -> bytes:
    _calls["mutate"] += 1
    rng = random.Random(seed)
    if rng.random() < 0.95:
        for base in (blob, rng.choice(_known)):
            try:
                made = _target.mutate(bytes(base), rng, _known)
            except _target.strange:
                continue
            if len(made) <= max_size:
                return made
    return bytes(atheris.Mutate(blob, max_size))


main()
