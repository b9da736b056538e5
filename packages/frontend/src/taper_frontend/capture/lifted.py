"""Capture a module whose buffers have dims that vary: as arguments, then as buffers again.

torch.export fixes the shapes of buffers, and lets those of arguments vary.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.utils._pytree import TreeSpec

from taper_frontend.capture.module_state import TensorPlaces
from taper_frontend.errors import BatchError
from taper_frontend.request.dims import STATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.export import ExportedProgram

#: The attribute of a :class:`LiftedModule` that has the module.
_PREFIX = "module."

#: Key in the metadata of a program's graph module: what checks the sizes of the states and inputs.
GUARDS = "guards"


class LiftedModule(torch.nn.Module):
    """A module that takes some of its buffers as its first argument, a dict by name."""

    def __init__(self, module: torch.nn.Module, names: Mapping[str, Any]) -> None:
        """Wrap the module in one whose ``forward`` takes the states first."""
        super().__init__()
        self.training = module.training
        self.module = module
        places = TensorPlaces(module, names)

        def forward(*args: Any, **kwargs: Any) -> Any:
            states, *rest = args
            with places.holding(states):
                return module(*rest, **kwargs)

        # torch calls arguments by the names of the signature
        own = inspect.signature(module.forward)
        first = inspect.Parameter(STATES, inspect.Parameter.POSITIONAL_ONLY)
        changed = own.replace(parameters=[first, *own.parameters.values()])
        forward.__signature__ = changed  # type: ignore[attr-defined]
        self.forward = forward


def with_own_names(
    program: ExportedProgram, module: torch.nn.Module, states: Mapping[str, torch.Tensor]
) -> ExportedProgram:
    """Return what was captured of a :class:`LiftedModule` with the module's own names.

    Parameters
    ----------
    program : ExportedProgram
        As ``torch.export.export`` gives it; its graph is changed.
    module : torch.nn.Module
    states : mapping of str to torch.Tensor
        What it was captured with, by the names of the buffers.

    Raises
    ------
    BatchError
        If the module reads such a buffer in a way that is not seen: through a view of it, say.
    """
    buffers = dict(module.named_buffers(remove_duplicate=False))
    memory = {_memory(buffers[name]): name for name in states}
    nodes = {node.name: node for node in program.graph.nodes}
    tensors = {**program.state_dict, **program.constants}
    specs = []
    for spec in program.graph_signature.input_specs:
        name = memory.get(_memory(tensors.get(spec.target or "")))
        if name is None:
            specs.append(spec)
        elif nodes[spec.arg.name].users:
            raise BatchError(
                f"state {name!r}: expected a buffer that the module reads only as an attribute or "
                "in a list, tuple or dict, got one that it also reads through a view or in another "
                "object; its dimensions cannot vary"
            )
        else:
            program.graph.erase_node(nodes[spec.arg.name])
    for spec in specs:
        if spec.target:
            spec.target = _own(spec.target)
    for node in program.graph.nodes:
        if stack := node.meta.get("nn_module_stack"):
            inner = [(key, (_own(path), kind)) for key, (path, kind) in stack.items() if path]
            node.meta["nn_module_stack"] = dict(inner)
    result: ExportedProgram = program._update(
        program.graph_module,
        ExportGraphSignature(specs, program.graph_signature.output_specs),
        state_dict={_own(name): tensor for name, tensor in program.state_dict.items()},
        constants={_own(name): tensor for name, tensor in program.constants.items()},
    )
    return result


def _memory(tensor: Any) -> int | None:
    """Return a key that tensors in the same memory share; None for a tensor without memory."""
    is_plain = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
    return (tensor.untyped_storage().data_ptr() or None) if is_plain else None


def _own(path: str) -> str:
    """Return the module's path for a path in a :class:`LiftedModule`."""
    return path.removeprefix(_PREFIX) if path != _PREFIX[:-1] else ""


def placeholders(program: ExportedProgram, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the placeholder of each state that stands among a program's arguments -> its name."""
    arguments = [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.USER_INPUT
    ]
    return dict(zip(arguments, names, strict=False))


def with_buffers(
    program: ExportedProgram, module: torch.nn.Module, states: Mapping[str, torch.Tensor]
) -> ExportedProgram:
    """Return a decomposed program whose first argument, the states, are buffers.

    The placeholders of these keep their sizes that vary. A buffer's own tensor is what it is.

    Raises
    ------
    BatchError
        If the program writes to a buffer that is not among the states, or does not to one that is.
    """
    lifted = placeholders(program, states)
    transient = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    signature = program.graph_signature
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    written = {spec.target for spec in signature.output_specs if spec.kind in kinds}
    if others := written & {*signature.inputs_to_buffers.values()}:
        raise BatchError(
            f"state {min(others)!r}: expected a dimension that varies with the batch, like that of "
            f"{', '.join(states)}, got none: all rows would share the state; give each row its own"
        )
    for placeholder, name in lifted.items():
        if placeholder not in written:
            raise BatchError(
                f"dynamic_shapes of {name!r}: expected a buffer that the module writes to, got one "
                "that it only reads; make it an argument"
            )
    inputs = [
        InputSpec(InputKind.BUFFER, spec.arg, name, name not in transient) if name else spec
        for spec in signature.input_specs
        for name in (lifted.get(spec.arg.name),)
    ]
    outputs = [
        OutputSpec(OutputKind.BUFFER_MUTATION, spec.arg, lifted[spec.target])
        if spec.kind == OutputKind.USER_INPUT_MUTATION and spec.target in lifted
        else spec
        for spec in signature.output_specs
    ]
    guards = getattr(program.module(), "_guards_fn", None)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    own = {name: buffers[name].detach() for name in states}
    result: ExportedProgram = program._update(
        program.graph_module,
        ExportGraphSignature(inputs, outputs),
        state_dict=program.state_dict | {n: t for n, t in own.items() if n not in transient},
        constants=program.constants | {n: t for n, t in own.items() if n in transient},
    )
    root = result.module_call_graph[0].signature
    assert root is not None
    root.inputs = root.inputs[len(states) :]
    root.in_spec = _without_first(root.in_spec)
    if root.forward_arg_names:
        root.forward_arg_names = root.forward_arg_names[1:]
    args, kwargs = program.example_inputs
    result.example_inputs = (args[1:], kwargs)
    result.graph_module.meta |= program.graph_module.meta | {GUARDS: guards}
    return result


def _without_first(spec: TreeSpec) -> TreeSpec:
    """Return the structure of ``(args, kwargs)`` without the first of ``args``."""
    args, kwargs = spec.children()
    return TreeSpec(tuple, None, [TreeSpec(tuple, None, args.children()[1:]), kwargs])
