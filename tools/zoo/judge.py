"""One architecture: exported, saved, run where torch cannot be imported, compared with torch."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import taper_frontend
from taper_frontend.errors import UnsupportedOpError
from taper_frontend.verify.compare import TOLERANCE, difference

if TYPE_CHECKING:
    from tools.zoo.architecture import Architecture

# What can become of an architecture. The last is not held against Taper.
RIGHT = "right"
WRONG = "wrong"
RUN = "does not run"
EXPORT = "not exported"
REFUSED = "refused by torch.export"
VERDICTS = (RIGHT, WRONG, RUN, EXPORT, REFUSED)

_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # whoever imports it gets an ImportError
import numpy, taper_runtime
session = taper_runtime.InferenceSession(sys.argv[1])
numpy.savez(sys.argv[2], *session.run(None, dict(session.plan.samples)))
"""


class Verdict(NamedTuple):
    """What became of an architecture.

    Attributes
    ----------
    verdict : str
        One of :data:`VERDICTS`.
    cause : str
        Why it is not right.
    nodes : int
        Of the plan.
    fallbacks : tuple of str
        Ops of the nodes that numpy computes.
    error : float
        Largest relative L2 difference of an output to torch's.
    """

    verdict: str
    cause: str = ""
    nodes: int = 0
    fallbacks: tuple[str, ...] = ()
    error: float = 0.0


def judge(architecture: Architecture) -> Verdict:
    """Judge an architecture. What stands in the way of it is the verdict's cause."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models warn of their own configs
    module, inputs = architecture.build()
    with torch.no_grad():
        leaves = tree_leaves(module(**inputs))
        wanted = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            program = torch.export.export(module, (), inputs)
        except Exception as error:  # torch may raise anything
            return Verdict(REFUSED, _summary(error))
    try:
        plan = taper_frontend.export(program, verify=False)
    except Exception as error:  # the verdict says what it was
        return Verdict(EXPORT, _summary(error))
    fallbacks = tuple(sorted(node["op"] for node in plan.metadata["fallbacks"]))
    with TemporaryDirectory() as directory:
        path, results = Path(directory, "model.taper"), Path(directory, "results.npz")
        plan.save(path)
        command = [sys.executable, "-c", _WITHOUT_TORCH, str(path), str(results)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode:
            cause = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
            return Verdict(RUN, cause, len(plan.nodes), fallbacks)
        with np.load(results) as arrays:
            error = largest_error(list(arrays.values()), wanted)
    right = error <= TOLERANCE
    cause = "" if right else f"differs from torch by {error:.1e}"
    return Verdict(RIGHT if right else WRONG, cause, len(plan.nodes), fallbacks, error)


def largest_error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest relative L2 difference of an array to the one wanted; integers must be equal."""
    if [a.shape for a in got] != [a.shape for a in wanted]:
        return np.inf
    return max(difference(*pair).relative for pair in zip(got, wanted, strict=True))


def _summary(error: Exception) -> str:
    """The kind of an error and its message, without what torch adds about itself."""
    if isinstance(error, UnsupportedOpError):
        first, *others = dict.fromkeys(f"{n.op} [{n.category}]: {n.reason}" for n in error.nodes)
        return f"{first}; and {len(others)} more" if others else first
    text = str(error).split("\n\n", 1)[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"
