"""Capture a module, an exported program or a ``.pt2`` file as ATen ops with handlers."""

from __future__ import annotations

import copy
import os
import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from taper_frontend.capture.attributes import drop_unread
from taper_frontend.capture.buffer_values import (
    READ,
    buffer_values,
    buffers_read,
    computes_with_buffers,
)
from taper_frontend.capture.captured import Captured
from taper_frontend.capture.decompose import decompose_calls, trace_kept, written
from taper_frontend.capture.functional import make_ready, stride_owners
from taper_frontend.capture.fx_nodes import CAPTURED, TRAINING, called, draws
from taper_frontend.capture.lifted import (
    LiftedModule,
    placeholders,
    with_buffers,
    with_own_names,
)
from taper_frontend.capture.module_state import ModuleAttributes
from taper_frontend.capture.packed import packed_calls
from taper_frontend.capture.quiet import quiet
from taper_frontend.capture.shape_rules import shape_rules
from taper_frontend.capture.stand_ins import without_numbers
from taper_frontend.errors import BatchError, CaptureError, ExportError, UnsupportedNodesError
from taper_frontend.lowering.handlers import HANDLERS
from taper_frontend.lowering.keep import Keep
from taper_frontend.pt2.choose_model import chosen_model, open_archive
from taper_frontend.request.arguments import check_model
from taper_frontend.request.guards import user_lines
from taper_frontend.request.refusals import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._ops import OperatorBase

_T = TypeVar("_T")

Model = torch.nn.Module | ExportedProgram | str | os.PathLike[str]


def capture(
    model: Model,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    states: Mapping[str, torch.Tensor] | None = None,
    keep: Keep | None = None,
) -> ExportedProgram:
    """Capture a model as a functional graph of ATen ops.

    Ops with a handler are kept whole. All others are decomposed as far as torch can, so that
    composites without a handler become Core ATen ops. The module is captured in its current mode
    (call ``eval()`` first), and is not changed.

    Parameters
    ----------
    model : torch.nn.Module, ExportedProgram, str or os.PathLike
        A path names a ``.pt2`` file.
    args, kwargs
        Example arguments of a module. A program and a file carry theirs.
    dynamic_shapes
        As ``torch.export.export`` takes them; only for a module. The dimensions of states stand
        under :data:`~taper_frontend.request.dims.STATES`.
    states : mapping of str to torch.Tensor, optional
        Examples of a module's buffers that have dimensions which vary.
    keep : Keep, optional
        The ops whose calls are not decomposed.

    Returns
    -------
    ExportedProgram

    Raises
    ------
    ExportError
        If torch cannot capture the model or read the file.
    """
    model = read_model(model)
    # first the lock between captures: the others change torch for all threads
    with torch.no_grad(), shape_rules(), user_lines(), warnings.catch_warnings():
        # torch.export copies its own specs in a way that torch has deprecated
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        # taper_frontend.capture.attributes reports those that later calls depend on
        warnings.filterwarnings("ignore", r"The tensor attributes? self", UserWarning)
        if isinstance(model, torch.nn.Module):
            program = _capture_module(model, args, kwargs, dynamic_shapes, states or {})
        elif dynamic_shapes is not None:
            raise ExportError(
                "dynamic_shapes: expected None, because an exported program already has its shapes"
            )
        else:
            program = model
        captured = _attempt(
            "decompose the program",
            lambda: _decomposed(model, program, states or {}, keep or Keep()),
        )
        if states:
            assert isinstance(model, torch.nn.Module)
            captured = with_buffers(captured, model, states)
        training = isinstance(model, torch.nn.Module) and model.training
        captured.graph_module.meta[TRAINING] = training
        captured.graph_module.meta[READ] = program.graph_module.meta.get(READ, ())
        return captured


def _decomposed(
    model: Model,
    program: ExportedProgram,
    states: Mapping[str, Any],
    keep: Keep,
) -> ExportedProgram:
    """Decompose a program call by call, or as a whole; a user's own program is not changed."""
    keep.check(called(program.graph_module))
    table = {op: rule for op, rule in decompositions().items() if str(op) not in keep.targets}
    if program is model:
        program = copied_program(program)
    stride_owners(program)
    captured = Captured(program, placeholders(program, states))
    became: dict[str, str] = {}
    complete = decompose_calls(program, table, became, keep)
    captured.note_calls(became)
    if not complete:
        make_ready(program)
        with _unread_draws_kept(program):
            decomposed: ExportedProgram = program.run_decompositions(table)
        captured.note_program(decomposed)
        program = decomposed
    keep.check_kept(called(program.graph_module))
    trace_kept(program, table, keep)
    program.graph_module.meta[CAPTURED] = captured
    return program


def copied_program(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program with shared tensors, and with its own graph and names.

    A copied node is renamed if its name is one of Python's, such as ``input``.
    """
    graph_module, signature = copy.deepcopy((program.graph_module, program.graph_signature))
    pairs = zip(program.graph.nodes, graph_module.graph.nodes, strict=True)
    names = {node.name: copied.name for node, copied in pairs}
    for spec in (*signature.input_specs, *signature.output_specs):
        if getattr(spec.arg, "name", None) in names:
            spec.arg.name = names[spec.arg.name]
    result: ExportedProgram = program._update(graph_module, signature)
    return result


def _capture_module(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    shapes: Any,
    states: Mapping[str, torch.Tensor],
) -> ExportedProgram:
    """Capture by running the module, or by its code if it writes buffers through other objects.

    A static cache of transformers is such an object. A run treats its tensors as constants, while
    capture by code recognizes the module's buffers.
    """
    captured = LiftedModule(model, states) if states else model
    args = (dict(states), *args) if states else args

    def export(strict: bool) -> ExportedProgram:
        with without_numbers(model):
            return torch.export.export(
                captured,
                _own(tuple(args)),
                _own(dict(kwargs or {})),
                dynamic_shapes=shapes,
                strict=strict,
            )

    attributes = ModuleAttributes(model)
    try:
        try:
            program = _attempt("capture the module", lambda: export(strict=False))
        except CaptureError as refused:
            if "__obj_flatten__" in refused.reason:  # torch has no word for packed parameters
                packed = packed_calls(model, args, kwargs or {})
                raise UnsupportedNodesError(packed) from refused.__cause__
            if refused.category != "data-dependent" or states:
                raise
            known = _with_values(lambda: export(strict=False))
            if known is None:
                raise
            program = known
        else:
            if not states and computes_with_buffers(program):
                program = _with_values(lambda: export(strict=False)) or program
    finally:
        attributes.restore()  # torch does not put back what stands in objects
    if states:
        program = with_own_names(program, model, states)
        if others := [*_written_constants(program)]:
            raise BatchError(
                "expected a dimension that varies for every tensor that the module writes to, got "
                f"none for {', '.join(sorted(others))}, which is not a buffer"
            )
    if _written_constants(program):
        assigned = _written_buffers(program)
        program = _attempt("capture the module", lambda: export(strict=True))
        if lost := assigned - _written_buffers(program):
            raise CaptureError(
                "capture the module",
                f"torch loses the module's assignments to {', '.join(sorted(lost))}, because the "
                "module also writes to tensors that are not buffers; write into the buffer: "
                "self.name.copy_(...)",
                "mutation",
                "",
            )
    drop_unread(model, program)
    return program


def _with_values(export: Callable[[], ExportedProgram]) -> ExportedProgram | None:
    """Capture a module with the values of tensors that it does not write; None if torch cannot."""
    unknown: set[str] = set()
    while True:
        try:
            with buffer_values(unknown):
                program = _attempt("capture the module", export)
        except CaptureError:
            return None
        read = buffers_read(program)
        written = read & (_written_buffers(program) | _written_constants(program))
        if not written:
            program.graph_module.meta[READ] = tuple(sorted(read))
            return program
        if written <= unknown:
            return None  # torch has the value by another name
        unknown |= written  # later runs would decide otherwise


def _written_buffers(program: ExportedProgram) -> set[str]:
    """Return the names of the buffers that nodes change, directly or through a view."""
    buffers = program.graph_signature.inputs_to_buffers
    return {buffers[name] for name in written(program) if name in buffers}


def _written_constants(program: ExportedProgram) -> set[str]:
    """Return the tensors that are no buffers and that nodes change, themselves or through views."""
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    return {constants[name] for name in written(program) if name in constants}


def read_model(model: Model, name: str | None = None) -> torch.nn.Module | ExportedProgram:
    """Return a model as it is, or the program in a file.

    Parameters
    ----------
    model : torch.nn.Module, ExportedProgram, str or os.PathLike
    name : str, optional
        The name of the program in the file; by default the only one.

    Raises
    ------
    ExportError
        If it is not a model (the message says what it is), torch cannot read the file, or the file
        has no program of this name (the message lists those that it has).
    """
    check_model(model)
    if isinstance(model, str | os.PathLike):
        path = model
        return _attempt(f"read {os.fspath(path)!r}", lambda: _load(path, name))
    if name is not None:
        raise ExportError(f"model: expected None for a {type(model).__name__}, got {name!r}")
    return model


def _load(path: str | os.PathLike[str], name: str | None) -> ExportedProgram:
    """Load a program of a file."""
    try:
        archive = open_archive(path)
    except ExportError:
        if name is not None:
            raise
        return torch.export.load(path)  # of another form, or torch says what is wrong
    chosen = chosen_model(archive, path, name)
    if chosen == "model":  # torch's own name
        return torch.export.load(path)
    from torch.export.pt2_archive._package import load_pt2

    program: ExportedProgram = load_pt2(os.fspath(path)).exported_programs[chosen]
    return program


@contextmanager
def _unread_draws_kept(program: ExportedProgram) -> Iterator[None]:
    """Keep unused random draws in the context, by adding a reader to each.

    Decomposing removes unused values. But the module draws them, and later draws depend on that.
    """
    graph = program.graph
    readers = []
    for node in graph.nodes:
        if draws(node) and not node.users and isinstance(node.meta["val"], torch.Tensor):
            with graph.inserting_after(node):
                check = torch.ops.aten._assert_tensor_metadata.default
                readers.append(graph.call_function(check, (node,)))
    try:
        yield
    finally:
        for reader in readers:
            graph.erase_node(reader)


def decompositions() -> dict[OperatorBase, Callable[..., Any]]:
    """Return torch's table of decompositions without the ops that have a handler."""
    return {op: rule for op, rule in _torch_decompositions().items() if str(op) not in HANDLERS}


@cache
def _torch_decompositions() -> dict[OperatorBase, Callable[..., Any]]:
    """Return torch's table, which takes a third of a second to make."""
    table: dict[OperatorBase, Callable[..., Any]] = torch.export.default_decompositions()
    return dict(table.items())


def _own(arguments: _T) -> _T:
    """Copy the tensors, because torch would treat sizes of a view as varying."""
    copied: _T = tree_map_only(torch.Tensor, torch.Tensor.clone, arguments)
    return copied


def _attempt(what: str, action: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Run one of torch's steps, which may raise any error."""
    try:
        with quiet():
            return action()
    except ExportError:
        raise
    except Exception as error:  # torch raises many types; the cause is kept
        refusal = read(error)
        raise CaptureError(what, refusal.text, refusal.category, refusal.source) from error
