"""Let a module decide by buffers that it never writes: ``if self.initted:``.

torch captures a buffer as a tensor without values, and refuses a decision by it. Vector quantizers
and flows have a flag or a count of that kind, which only training changes. A module that torch
refuses for such a reason is captured again with the values of its small buffers. torch then
computes what depends on them alone, and the program holds the way that is taken.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.export import _trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.export import ExportedProgram

#: The key in a graph module's metadata that holds the names of the buffers that were read.
READ = "read buffers"

#: The most elements of a buffer, and of what is computed of it, whose values torch has.
_MOST = 4096

_READERS = frozenset({torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default})


@contextmanager
def buffer_values(unknown: Collection[str]) -> Iterator[None]:
    """Let torch's captures in the context read values of small buffers, except ``unknown``."""
    fakify: Callable[..., dict[str, Any]] = vars(_trace)["_fakify_params_buffers"]

    def fakify_with_values(mode: FakeTensorMode, module: torch.nn.Module) -> dict[str, Any]:
        fakes = fakify(mode, module)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if name in fakes and name not in unknown and buffer.numel() <= _MOST:
                fakes[name].constant = buffer.detach().clone()
        return fakes

    with (
        mock.patch.object(_trace, "_fakify_params_buffers", fakify_with_values),
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MOST),
    ):
        yield


def buffers_read(program: ExportedProgram) -> set[str]:
    """Return the names of the buffers whose values decided what the program computes."""
    buffers = program.graph_signature.inputs_to_buffers
    behind: dict[str, set[str]] = {}
    read: set[str] = set()
    for node in program.graph.nodes:
        own = {buffers[node.name]} if node.name in buffers else set()
        behind[node.name] = own.union(*(behind[each.name] for each in node.all_input_nodes))
        if node.target in _READERS and not isinstance(node.meta.get("val"), torch.SymInt):
            read |= behind[node.name]
    return read
