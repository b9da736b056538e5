"""Tell which variables of a program are the outputs of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from taper_frontend.errors import ExportError
from taper_openinfer.errors import shown
from taper_openinfer.language.kinds import accesses
from taper_runtime.base.text import is_one_of, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_openinfer.language.graph import Node
    from taper_openinfer.link import LinkedProgram


class Uses:
    """When a program read and wrote each variable last, as a walk over it in order finds."""

    def __init__(self) -> None:
        self._clock = 0
        self._read: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def note(self, node: Node) -> None:
        """Note what the next node does."""
        self._clock += 1
        reads, writes = accesses(node.kind)
        self._read.update((access.base, self._clock) for access in reads)
        self._written.update((access.base, self._clock) for access in writes)

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return which are written and not read after that; all that are written if none is."""
        written = [name for name in names if name in self._written]
        last = [name for name in written if self._read.get(name, -1) <= self._written[name]]
        return last or written


def find_outputs(program: LinkedProgram, wanted: Sequence[str] | None, uses: Uses) -> list[str]:
    """Return the names of the outputs, in order.

    Where none are wanted they are the volatile and dynamic variables that the program writes and
    never reads after the last write, in the order of the text; all that it writes if there is none
    of that kind.

    Raises
    ------
    ExportError
        If a wanted one is no variable, or a state or a family of tensors.
    """
    if wanted is None:
        variables = program.graph.vars.items()
        return uses.unread(name for name, each in variables if each.kind != "persistent")
    if not isinstance(wanted, Sequence) or isinstance(wanted, (str, bytes)):
        raise ExportError(f"outputs: expected a list of names, got {shown(wanted)}")
    for name in wanted:
        _check(program, name)
    return list(dict.fromkeys(wanted))


def _check(program: LinkedProgram, name: str) -> None:
    if not is_one_of(name, program.variables):
        near = nearest(name, program.variables) if isinstance(name, str) else None
        hint = f"; do you mean {near!r}?" if near else f"; there are {', '.join(program.variables)}"
        raise ExportError(f"outputs: no variable {shown(name)}{hint}")
    declared = program.variables[name].declaration
    if declared.kind == "persistent":
        raise ExportError(f"outputs: {name!r} is a state; session.get_state({name!r}) reads it")
    if declared.is_prefix_table:
        raise ExportError(f"outputs: {name!r} is a family of tensors, expected one")
