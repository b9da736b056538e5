"""Compile a program of a PT2 archive to a plan where torch is not installed."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.trace import trace_path
from taper_frontend.errors import ExportError, UnsupportedNodesError
from taper_frontend.export_progress import show_progress
from taper_frontend.lowered_to_plan import LoweredProgram, compile_lowered, finish_plan
from taper_frontend.lowering import HANDLERS, lower
from taper_frontend.lowering.aten_program import BodyGraph, SymbolicNumber, TensorValue
from taper_frontend.lowering.keep import Keep
from taper_frontend.plan_cache import cached_file
from taper_frontend.pt2.choose_model import chosen_model, open_archive
from taper_frontend.pt2.read_program import read_program
from taper_frontend.request.names import check_names, input_names
from taper_frontend.request.notes import Note, warn
from taper_frontend.request.options import Options
from taper_frontend.request.size_names import name_by_place, name_int
from taper_runtime.base.errors import InternalError, PlanFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_frontend.lowering.aten_program import Node
    from taper_frontend.pt2.read_program import ReadProgram
    from taper_runtime.plan.plan import Plan

#: Advice in errors about models that need torch.
INSTALL = "install it with `pip install 'taper-frontend[torch]'`"

#: Exceptions of the lowering if a program breaks a rule that torch's own programs keep.
_DAMAGED = (
    *(ArithmeticError, AssertionError, AttributeError, InternalError, LookupError),
    *(RecursionError, StopIteration, TypeError, ValueError),
)

#: Options that need torch, with what they may be here.
_OF_TORCH = {"dynamic_shapes": None, "dynamic_axes": None, "checkpoint": None, "verify": False}


def export_archive(
    module: str | os.PathLike[str],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Export a program of a PT2 archive where torch is not installed.

    It is what :func:`taper_frontend.export` does there. The program's ops must have handlers: call
    ``run_decompositions()`` before ``torch.export.save``. The plan has no samples, because those of
    an archive are pickled, and is not compared with the module.

    Parameters
    ----------
    module : str or os.PathLike
        A ``.pt2`` file.
    args, kwargs
        Not read: a program has its own arguments.
    **options
        Those of :func:`taper_frontend.export` that need no torch.

    Returns
    -------
    Plan

    Raises
    ------
    UnsupportedNodesError
        If nodes cannot be exported; the message lists all of them.
    ExportError
        If ``module`` is not a path or an option needs torch, or the file is not such an archive or
        has no such program.
    PlanFormatError
        If the program is damaged, or of another version of torch's schema.
    """
    if not isinstance(module, str | os.PathLike):
        raise ExportError(
            f"expected the path of a PT2 archive, because torch is not installed, got a "
            f"{type(module).__name__}; {INSTALL}"
        )
    for name, value in _OF_TORCH.items():
        if options.get(name, value) != value:
            raise ExportError(f"{name}={options[name]!r} needs torch; {INSTALL}")
    asked = Options(**{**options, "verify": False, "trace": trace_path(options.get("trace"))})
    asked.check()
    plan = cached_file(module, asked, partial(_export, module))
    warn([Note(**note) for note in plan.metadata["warnings"]])
    return plan


def _export(module: str | os.PathLike[str], asked: Options) -> Plan:
    """Export a program with options that were checked."""
    with show_progress(asked.progress) as step:
        step("capture")
        archive = open_archive(module)
        read = read_program(archive, chosen_model(archive, module, asked.model))
        step("lower")
        try:
            lowered = _lower(read, asked)
        except _DAMAGED as error:
            raise PlanFormatError(
                os.fspath(module),
                "expected a program as torch writes it, got one whose parts do not fit together: "
                f"{type(error).__name__}: {error}",
            ) from error
        plan = compile_lowered(lowered, asked, title=asked.model or "model", step=step).plan
        return finish_plan(plan, asked)


def _lower(read: ReadProgram, options: Options) -> LoweredProgram:
    """Lower a program with its inputs and sizes named as :func:`taper_frontend.export` does."""
    program = read.program
    keep = Keep(options.keep)
    keep.check(_called(program.nodes))
    arguments = [spec.name for spec in program.inputs if spec.kind == "input"]
    names = input_names(arguments, program.input_structure, read.arguments)
    placeholders = {node.name: node for node in program.nodes if node.op == "placeholder"}
    inputs = {
        name: placeholders[name].value
        for name in arguments
        if isinstance(placeholders[name].value, TensorValue | SymbolicNumber)
    }
    if options.input_names is not None:
        check_names("input_names", options.input_names, [names[name] for name in inputs])
        names |= zip(inputs, options.input_names, strict=True)
    sizes: dict[str, str] = {}
    for name, value in inputs.items():
        if isinstance(value, SymbolicNumber):
            name_int(sizes, str(value.expr), names[name])
    varying = [
        (names[name], axis, size)
        for name, value in inputs.items()
        for axis, size in enumerate(getattr(value, "shape", ()))
        if not isinstance(size, int)
    ]
    name_by_place(sizes, varying)
    try:
        lowered = lower(program, sizes, inputs=names, keep=keep, replaceable=options.replaceable)
    except UnsupportedNodesError as error:
        raise UnsupportedNodesError([_hinted(node) for node in error.nodes]) from None
    return LoweredProgram(
        lowered,
        program.output_structure,
        (),
        f"torch {read.torch_version}",
        list,
        list,
    )


def _hinted(node: Any) -> Any:
    """Return a refusal of an op without a handler with what to do about it."""
    if node.op in HANDLERS or not node.reason.startswith("no handler lowers this op"):
        return node
    return node._replace(
        reason="no handler lowers this op, and only torch can decompose it; save the program after "
        "run_decompositions(), or export the archive where torch is installed"
    )


def _called(nodes: list[Node]) -> Iterator[str]:
    """Yield the functions that the nodes and the nodes of their bodies call."""
    for node in nodes:
        if node.op == "call_function":
            yield node.target
        elif isinstance(node.attribute, BodyGraph):
            yield from _called(node.attribute.nodes)
