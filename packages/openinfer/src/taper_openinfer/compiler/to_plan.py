"""Compile a program and a file of weights to a plan."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_frontend.errors import ExportWarning
from taper_openinfer.compiler.lower_program import lower
from taper_openinfer.language import load_program
from taper_openinfer.language.graph import Graph
from taper_openinfer.link import link
from taper_openinfer.oinf.reader import Model, open_model

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from taper_frontend.compiler.pipeline import Pass
    from taper_openinfer.link import LinkedProgram
    from taper_runtime.plan.plan import Plan


def compile_program(
    program: Graph | str | os.PathLike[str],
    model: Model | str | os.PathLike[str],
    *,
    outputs: Sequence[str] | None = None,
    strict: bool = False,
    passes: Sequence[Pass | str] | None = None,
) -> Plan:
    """Compile a program to a plan; one run of the plan is one step of the program.

    Parameters
    ----------
    program : Graph, str or os.PathLike
        A path names a file with a program's text or JSON.
    model : Model, str or os.PathLike
        The initial values of the variables; a path names an ``.oinf`` file.
    outputs : sequence of str, optional
        The variables that a run returns. By default these are the volatile and dynamic ones that
        the program writes and does not read after the last write, or all that it writes if it reads
        each of them.
    strict : bool
        Whether to raise an error, instead of a warning, if a variable starts as zeros and a step
        reads it before writing it.
    passes : sequence of callable or str, optional
        See :func:`taper_frontend.export`.

    Returns
    -------
    Plan
        Its inputs are the dynamic variables and its states the persistent ones, under their own
        names. An output with the name of an input gets the prefix ``output_``.

    Warns
    -----
    ExportWarning
        If a variable starts as zeros and a step reads it before writing it.

    Raises
    ------
    ProgramError
        Listing every error in the program, and every node that a plan cannot express, with line and
        column.
    ExportError
        If one of ``outputs`` is no variable that has a value after a step.
    OinfError
        If the file is not a valid model.
    """
    graph = program if isinstance(program, Graph) else load_program(program)
    with nullcontext(model) if isinstance(model, Model) else open_model(model) as opened:
        linked = link(graph, opened, strict=strict)
        lowered = lower(linked, outputs)
        nodes = len(lowered.graph.nodes)
        records = compile_graph(lowered.graph, passes, output_names=lowered.output_names)
        report: dict[str, Any] = {
            "producer": f"taper_frontend {_version()}, a program of OpenInfer",
            "nodes_lowered": nodes,
            "passes": [
                {"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed
            ],
            "warnings": [{"kind": "zeros", "text": text} for text in _of_zeros(linked)],
        }
        plan = make_plan(lowered.graph, metadata=report)
    for warning in report["warnings"]:
        warnings.warn(ExportWarning(**warning), stacklevel=2)
    return plan


def _of_zeros(program: LinkedProgram) -> list[str]:
    """Return a message for each variable that starts as zeros and is read first."""
    if not program.zeros:
        return []
    names = ", ".join(program.zeros)
    return [
        (
            f"a step reads {names} before it writes them, and they begin as zeros, because the "
            "file has no tensors of these names and the program has no @init"
        )
    ]


def _version() -> str:
    from taper_frontend import __version__

    return __version__
