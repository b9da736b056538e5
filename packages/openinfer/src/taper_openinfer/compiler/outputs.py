"""Choose which variables of a program are the outputs of its plan."""

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
    """Records when a program last read and last wrote each variable, in one walk over it."""

    def __init__(self) -> None:
        self._clock = 0
        self._read: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def note(self, node: Node) -> None:
        """Record the reads and the writes of the next node."""
        self._clock += 1
        reads, writes = accesses(node.kind)
        self._read.update((access.base, self._clock) for access in reads)
        self._written.update((access.base, self._clock) for access in writes)

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return the names written and not read after that; all written ones if there is none."""
        written = [name for name in names if name in self._written]
        last = [name for name in written if self._read.get(name, -1) <= self._written[name]]
        return last or written


def find_outputs(program: LinkedProgram, wanted: Sequence[str] | None, uses: Uses) -> list[str]:
    """Return the names of the outputs, in order.

    If ``wanted`` is None, the outputs are the volatile and dynamic variables that the program
    writes and does not read after the last write, in the order of the text. If it reads each of
    them, all that it writes are outputs.

    Raises
    ------
    ExportError
        If a wanted name is no variable, or is a state or a prefix table.
    """
    if wanted is None:
        variables = program.graph.vars.items()
        return uses.unread(name for name, each in variables if each.kind != "persistent")
    _check_list(wanted)
    for name in wanted:
        _check(program, name)
    return list(dict.fromkeys(wanted))


def _check_list(wanted: object) -> None:
    if not isinstance(wanted, Sequence) or isinstance(wanted, (str, bytes)):
        raise ExportError(f"outputs: expected a list of names, got {shown(wanted)}")


def _check(program: LinkedProgram, name: object) -> None:
    if not is_one_of(name, program.variables):
        near = nearest(name, program.variables) if isinstance(name, str) else None
        hint = f"; do you mean {near!r}?" if near else f"; there are {', '.join(program.variables)}"
        raise ExportError(f"outputs: no variable {shown(name)}{hint}")
    declared = program.variables[name].declaration
    if declared.kind == "persistent":
        raise ExportError(f"outputs: {name!r} is a state; session.get_state({name!r}) reads it")
    if declared.is_prefix_table:
        raise ExportError(f"outputs: {name!r}: expected one tensor, got a prefix table")
