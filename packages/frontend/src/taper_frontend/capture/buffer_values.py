"""Let a module decide by tensors that it holds and never writes: ``if self.initted:``.

torch captures a buffer, or a tensor in a plain attribute, as a tensor without values. It refuses a
decision by it, and does not know a number that is computed from it. Vector quantizers and flows
have a flag or a count of that kind, which only training changes, and padded convolutions have their
kernel's size. Such a module is captured again with the values of its small tensors. torch then
computes what depends on them alone, and the program holds the way that is taken.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch.export import _trace
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch._ops import OperatorBase
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.export import ExportedProgram

#: The key in a graph module's metadata that holds the names of the tensors that were read.
READ = "read buffers"

#: The most elements of a tensor, and of what is computed of it, whose values torch has.
_MOST = 4096

_aten = torch.ops.aten
_FILLS = frozenset(
    {_aten.arange, _aten.full, _aten.linspace, _aten.ones, _aten.scalar_tensor, _aten.zeros}
)
_SYMBOLIC = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool

_READERS = frozenset({_aten.item.default, _aten._local_scalar_dense.default})


@contextmanager
def buffer_values(unknown: Collection[str]) -> Iterator[None]:
    """Let torch's captures in the context read values of small tensors, except ``unknown``.

    They are the module's buffers and the tensors in its plain attributes, and what a call makes of
    numbers alone, such as ``torch.arange(3)``.
    """
    dispatch = fake_tensor.FakeTensorMode.dispatch
    fakify: Callable[..., dict[str, Any]] = vars(_trace)["_fakify_params_buffers"]
    attributes: list[torch.Tensor] = []  # torch's own references are weak

    def fakify_with_values(mode: FakeTensorMode, module: torch.nn.Module) -> dict[str, Any]:
        fakes = fakify(mode, module)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if name in fakes and name not in unknown and buffer.numel() <= _MOST:
                fakes[name].constant = buffer.detach().clone()
        for name, tensor in _plain_tensors(module):
            if name not in unknown and tensor.numel() <= _MOST:
                fake = mode.from_tensor(tensor, static_shapes=True)
                fake.constant = tensor.detach().clone()
                attributes.append(fake)
        return fakes

    def dispatch_with_values(
        mode: FakeTensorMode,
        op: OpOverload[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made: Any = dispatch(mode, op, types, args, kwargs or {})
        if _fills(op, args, kwargs or {}) and made.constant is None and made.numel() <= _MOST:
            with no_dispatch():
                made.constant = op(*args, **kwargs or {})
            mode.fake_tensor_converter.add_constant_storage_mapping(made)
        return made

    with (
        mock.patch.object(_trace, "_fakify_params_buffers", fakify_with_values),
        mock.patch.object(fake_tensor.FakeTensorMode, "dispatch", dispatch_with_values),
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MOST),
    ):
        yield


def _fills(op: OperatorBase, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call makes a tensor of known numbers alone, without drawing them."""
    return (
        isinstance(op, OpOverload)
        and op.overloadpacket in _FILLS
        and not any(isinstance(leaf, _SYMBOLIC) for leaf in tree_leaves((args, kwargs)))
    )


def _plain_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in plain attributes of a module and its parts, and their paths."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if type(value) is torch.Tensor:
                yield f"{path}.{name}" if path else name, value


def buffers_read(program: ExportedProgram) -> set[str]:
    """Return the names of the tensors whose values decided what the program computes."""
    held, behind = _held(program), _placeholders_behind(program)
    read = (
        behind[node.name]
        for node in _readers(program)
        if not isinstance(node.meta.get("val"), torch.SymInt)
    )
    return {held[name] for name in set[str]().union(*read) if name in held}


def computes_with_buffers(program: ExportedProgram) -> bool:
    """Return whether tensors of the module alone give a whole number that may be negative.

    A plan can read a number in each run, but only one that is not negative can be a size.
    """
    numbers = [
        node
        for node in _readers(program)
        if isinstance(number := node.meta.get("val"), torch.SymInt)
        and number.node.shape_env.bound_sympy(number.node.expr).lower < 0
    ]
    if not numbers:
        return False
    held, behind = _held(program), _placeholders_behind(program)
    return any(behind[node.name] <= held.keys() for node in numbers)


def _readers(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.target in _READERS]


def _held(program: ExportedProgram) -> dict[str, str]:
    """Return the placeholders of tensors whose values can be read -> the tensors' names."""
    signature = program.graph_signature
    return {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}


def _placeholders_behind(program: ExportedProgram) -> dict[str, set[str]]:
    """Return the names of the placeholders on which each node's value depends, by its name."""
    behind: dict[str, set[str]] = {}
    for node in program.graph.nodes:
        own = {node.name} if node.op == "placeholder" else set()
        behind[node.name] = own.union(*(behind[each.name] for each in node.all_input_nodes))
    return behind
