"""Capture a module again, with larger examples or relaxed dims, if torch fixes a size.

torch.export fixes a dimension that is 0 or 1 in the example, and refuses a named Dim if it cannot
prove a guard for its range. So a module is captured with dimensions of size 1 doubled if possible,
and with hints instead of Dims if the Dims are refused. The plan must always be valid for the user's
own example and ranges; if it is not, the capture is repeated without these changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils._sympy.numbers import int_oo

from taper_frontend.capture.attributes import attributes_as_buffers
from taper_frontend.capture.capture import capture
from taper_frontend.errors import (
    BatchError,
    CaptureError,
    ExportError,
    FixedSizeError,
    NarrowSizeError,
    UnsupportedNodesError,
)
from taper_frontend.request.dims import check_equal, state_axes, told_range, torch_shapes
from taper_frontend.request.program_inputs import read_inputs
from taper_frontend.request.refusals import is_about_dims, of_dims
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UNBOUNDED, is_static, linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.export import ExportedProgram

    from taper_frontend.request.dims import Axis, Int
    from taper_frontend.request.notes import Note
    from taper_frontend.request.program_inputs import ProgramInputs
    from taper_frontend.request.request import Request
    from taper_runtime.plan.plan import Plan

_T = TypeVar("_T")


class CapturedProgram(NamedTuple):
    """A captured program, with everything else that compiling it needs.

    Attributes
    ----------
    program : ExportedProgram
        Its example is the user's.
    inputs : ProgramInputs
    axes : sequence of Axis
        What torch was told of the dimensions that were to vary.
    ints : sequence of Int
        The ints among the arguments that were to vary, in order.
    notes : sequence of Note
        Notes for the user that are known so far.
    doubled : bool
        Whether another example was captured, so that the user's must be tried.
    hinted : bool
        Whether torch did not check the user's ranges.
    """

    program: ExportedProgram
    inputs: ProgramInputs
    axes: Sequence[Axis] = ()
    ints: Sequence[Int] = ()
    notes: Sequence[Note] = ()
    doubled: bool = False
    hinted: bool = False


def attempt(request: Request, use: Callable[[CapturedProgram], _T]) -> _T:
    """Capture a module so that the axes vary, and use the first suitable capture.

    Meanwhile tensors in plain attributes of the module are buffers.

    Parameters
    ----------
    request : Request
    use : callable
        Uses a capture; raises :class:`ExportError` if it is not suitable.

    Raises
    ------
    ExportError
        The error of the capture, or of ``use``.
    """
    with attributes_as_buffers(request.module, request.args, request.kwargs) as notes:
        states = state_axes(request.module, request.others, are_outputs=request.are_outputs)
        axes = [*states, *request.axes]
        check_equal(axes)
        return _attempt(request._replace(notes=[*request.notes, *notes], axes=axes), use)


def _attempt(request: Request, use: Callable[[CapturedProgram], _T]) -> _T:
    """Capture with the user's dims; if torch refuses them, with hints instead."""
    try:
        return _with_larger_examples(request, use, hinted=False)
    except CaptureError as error:
        cause = error.__cause__
        if cause is None or not is_about_dims(cause):
            raise
        refused = ExportError(of_dims(cause, request.axes))
        hints = _hints(request.axes)
        if hints is None:
            raise refused from cause
        try:
            return _with_larger_examples(request._replace(axes=hints), use, hinted=True)
        except FixedSizeError as error:
            raise error from cause
        except NarrowSizeError as error:
            raise ExportError(f"{refused}: {error}") from cause
        except ExportError:
            raise refused from cause


def check_range(plan: Plan, axes: Sequence[Axis], inputs: ProgramInputs) -> None:
    """Check that a plan accepts all sizes of the Dims.

    Raises
    ------
    ExportError
        If it does not; a :class:`NarrowSizeError` if the accepted sizes are known.
    """
    for axis in axes:
        if not isinstance(axis.dim, Dim):
            continue
        size = axis.held_by(plan)
        expr = axis.captured_by(inputs).node.expr
        known = linear(size) if expr.is_symbol else None
        low, high = plan.sizes[known[0]] if known else (0, 0)
        # a Dim without a minimum starts where the model does, if the example is in range
        begins = low <= (axis.dim.min or axis.size)
        if known is None:
            raise ExportError(f"{axis.where}: the plan does not take every size")
        limited = not is_static(high)
        if known[1:] != (1, 0) or not begins or limited or high < (_end(axis) or UNBOUNDED):
            words = told_range(inputs.shape_env, expr, known, (low, high))
            raise NarrowSizeError(f"{axis.where} {words}")
    if any(note["kind"] == "branch" for note in plan.metadata["warnings"]):
        raise ExportError("expected one path through the model for all sizes, got several")


def _with_larger_examples(
    request: Request, use: Callable[[CapturedProgram], _T], *, hinted: bool
) -> _T:
    """Capture with dims of size 1 doubled: first all of them, then fewer, at last none."""
    module, args, kwargs, axes, ints, notes, names, *_ = request
    doubled = [axis for axis in axes if axis.size == 1 and axis.varies]
    while True:
        try:
            larger = _doubled(request, doubled)
            program = capture(
                module,
                larger.args,
                larger.kwargs,
                dynamic_shapes=torch_shapes(module, args, kwargs, axes, ints),
                states=larger.states,
                keep=request.keep,
            )
            if doubled:
                program.example_inputs = (args, kwargs)
            inputs = read_inputs(program, names)
            kept = [axis for axis in doubled if _varies(inputs, axis)]
            if len(kept) < len(doubled):
                doubled = kept
                continue
            varying = [*ints.values()]
            return use(
                CapturedProgram(program, inputs, axes, varying, notes, bool(doubled), hinted)
            )
        except BatchError:
            raise
        except ExportError as error:
            nodes = error.nodes if isinstance(error, UnsupportedNodesError) else ()
            if not doubled or (nodes and all(n.category != "dynamic shape" for n in nodes)):
                raise
        batches = [axis for axis in doubled if axis.axis == 0]
        doubled = batches if len(batches) < len(doubled) else []


class LargerExample(NamedTuple):
    """Arguments and states that a module is captured with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    states: dict[str, torch.Tensor]


def _doubled(request: Request, axes: Sequence[Axis]) -> LargerExample:
    """Return arguments and states with the rows along these axes repeated twice."""
    leaves, spec = tree_flatten((request.args, request.kwargs))
    ints, states = request.ints, request.states
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) or i in ints]
    for axis in axes:
        if axis.tensor is None:
            states[axis.input] = torch.cat([states[axis.input]] * 2, axis.axis)
        else:
            place = places[axis.tensor]
            leaves[place] = torch.cat([leaves[place]] * 2, axis.axis)
    args, kwargs = tree_unflatten(leaves, spec)
    return LargerExample(args, kwargs, states)


def _varies(inputs: ProgramInputs, axis: Axis) -> bool:
    size = axis.captured_by(inputs)
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _hints(axes: Sequence[Axis]) -> list[Axis] | None:
    """Return the axes with hints instead of Dims; None if a Dim is computed from another one.

    A hint that starts at 1 gets no minimum, because torch would start at 2.
    """
    if any(hasattr(axis.dim, "root") for axis in axes):
        return None
    return [
        axis._replace(dim=Dim.AUTO(min=_begin(axis), max=_end(axis))) if axis.required else axis
        for axis in axes
    ]


def _begin(axis: Axis) -> int | None:
    least: int = axis.dim.min or 0
    return least if least > 1 else None


def _end(axis: Axis) -> int | None:
    return None if axis.dim.max in (None, int_oo) else int(axis.dim.max)
