"""One architecture: exported, saved, run where torch cannot be imported, compared with torch."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sympy
import torch
from torch.utils._pytree import tree_leaves

import taper_frontend
from taper_frontend.errors import UnsupportedNodesError
from taper_frontend.request.guards import shape_env
from taper_runtime.plan.compare import TOLERANCE, difference

if TYPE_CHECKING:
    from collections.abc import Mapping

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
options = taper_runtime.RunOptions()
options.seed = 0
with numpy.load(sys.argv[2]) as inputs:
    numpy.savez(sys.argv[3], *session.run(None, dict(inputs), options))
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
    """Judge an architecture. What stands in the way of it is the verdict's cause.

    One with axes that vary is run with sizes that are one more than those it is exported with.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models warn of their own configs
    module, inputs = architecture.build()
    varying = architecture.varying
    with torch.no_grad():
        try:
            program = torch.export.export(module, (), inputs, dynamic_shapes=_dims(inputs, varying))
        except Exception as error:  # torch may raise anything
            return Verdict(REFUSED, summary(error))
        if fixed := _fixed(program, varying):
            return Verdict(REFUSED, f"torch.export made the size of {', '.join(fixed)} fixed")
        given = inputs | {name: _grown(inputs[name], axis) for name, axis in varying.items()}
        torch.manual_seed(0)  # the session's run draws the same numbers
        leaves = tree_leaves(module(**given))
        wanted = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    try:
        plan = taper_frontend.export(program, verify=False)
    except Exception as error:  # the verdict says what it was
        return Verdict(EXPORT, summary(error))
    fallbacks = tuple(sorted(node["op"] for node in plan.metadata["fallbacks"]))
    with TemporaryDirectory() as directory:
        path, arrays, results = (
            Path(directory, name) for name in ("model.taper", "inputs.npz", "results.npz")
        )
        plan.save(path)
        np.savez(arrays, **{**plan.samples, **{name: given[name].numpy() for name in varying}})
        command = [sys.executable, "-c", _WITHOUT_TORCH, *map(str, (path, arrays, results))]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode:
            cause = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
            return Verdict(RUN, cause, len(plan.nodes), fallbacks)
        with np.load(results) as outputs:
            error = largest_error(list(outputs.values()), wanted)
    right = error <= TOLERANCE
    cause = "" if right else f"differs from torch by {error:.1e}"
    return Verdict(RIGHT if right else WRONG, cause, len(plan.nodes), fallbacks, error)


def _dims(
    inputs: Mapping[str, torch.Tensor], varying: Mapping[str, int]
) -> dict[str, dict[int, Any] | None] | None:
    """What torch.export is told of the sizes; None where none of them varies."""
    if not varying:
        return None
    auto = torch.export.Dim.AUTO
    return {name: {varying[name]: auto} if name in varying else None for name in inputs}


def _fixed(program: torch.export.ExportedProgram, varying: Mapping[str, int]) -> list[str]:
    """The inputs whose size varies by request, but not in the program, or not by its guards."""
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    sizes = {name: sympy.sympify(values[name].shape[axis]) for name, axis in varying.items()}
    env = shape_env(program)
    grown = {
        size: sympy.Integer(values[name].shape[varying[name]].node.hint + 1)
        for name, size in sizes.items()
        if size.is_symbol
    }
    broken: set[sympy.Symbol] = set()
    for guard in env.guards if env is not None else []:
        if guard.expr.free_symbols <= grown.keys() and guard.expr.xreplace(grown) is sympy.false:
            broken |= guard.expr.free_symbols
    return [name for name, size in sizes.items() if size.is_number or size in broken]


def _grown(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The tensor with its first element along an axis once more at the end."""
    return torch.cat((tensor, tensor.narrow(axis, 0, 1)), axis)


def largest_error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest relative L2 difference of an array to the one wanted; integers must be equal."""
    if [a.shape for a in got] != [a.shape for a in wanted]:
        return np.inf
    return max(difference(*pair).relative for pair in zip(got, wanted, strict=True))


def summary(error: Exception) -> str:
    """The kind of an error and its message, without what torch adds about itself."""
    if isinstance(error, UnsupportedNodesError):
        first, *others = dict.fromkeys(f"{n.op} [{n.category}]: {n.reason}" for n in error.nodes)
        return f"{first}; and {len(others)} more" if others else first
    text = str(error).split("\n\n", 1)[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"
