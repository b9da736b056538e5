"""Make a plan of a program that torch has captured: lower it, then compile that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from taper_frontend.capture.buffer_values import READ
from taper_frontend.capture.captured_calls import describe_program
from taper_frontend.capture.read_exported import read_program
from taper_frontend.capture.tensors import stored
from taper_frontend.errors import ExportError
from taper_frontend.export_progress import QUIET
from taper_frontend.lowered_to_plan import Compiled, LoweredProgram, compile_lowered
from taper_frontend.lowering import lower
from taper_frontend.lowering.keep import Keep
from taper_frontend.request.dims import of_ranges, settle
from taper_frontend.request.options import DEFAULTS

if TYPE_CHECKING:
    from taper_frontend.capture.attempts import CapturedProgram
    from taper_frontend.export_progress import ExportProgress
    from taper_frontend.request.options import Options


def compile_program(
    captured: CapturedProgram,
    options: Options = DEFAULTS,
    *,
    trusting: bool = False,
    title: str = "model",
    step: ExportProgress = QUIET,
) -> Compiled:
    """Make a plan of a captured program: :func:`lower_program`, then :func:`compile_lowered`."""
    lowered = lower_program(captured, options, trusting=trusting, step=step)
    return compile_lowered(lowered, options, title=title, step=step)


def lower_program(
    captured: CapturedProgram,
    options: Options = DEFAULTS,
    *,
    trusting: bool = False,
    step: ExportProgress = QUIET,
) -> LoweredProgram:
    """Lower a captured program.

    Parameters
    ----------
    captured : CapturedProgram
    options : Options
    trusting : bool
        Whether to take the least sizes from torch's ranges, without trying smaller ones.
    step : ExportProgress
        Gets the name of each step before it runs.

    Raises
    ------
    UnsupportedNodesError
        If nodes cannot be lowered; it lists all of them.
    ExportError
        If a dimension that has to vary does not, or the module decides by buffers which a session
        is to replace.
    """
    read = captured.program.graph_module.meta.get(READ)
    if options.replaceable and read:
        raise ExportError(
            "weights='replaceable': expected a module that computes the same for any values, got "
            f"one that reads the values of {', '.join(read)}; make them plain Python numbers"
        )
    inputs = captured.inputs
    dims = settle(inputs, captured.axes, captured.ints)
    step("lower")
    program = read_program(captured.program)
    lowered = lower(
        program,
        dims.names,
        ranged=dims.ranged,
        trusting=trusting,
        inputs=inputs.names,
        keep=Keep(options.keep),
        replaceable=options.replaceable,
    )
    return LoweredProgram(
        lowered,
        program.output_structure,
        list(map(stored, inputs.example)),
        f"torch {torch.__version__}",
        lambda: describe_program(captured.program),
        lambda: [
            *captured.notes,
            *dims.notes,
            *of_ranges(lowered, inputs, captured.axes, dims.names),
        ],
    )
