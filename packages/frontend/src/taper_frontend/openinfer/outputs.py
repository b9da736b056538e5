"""Tell which variables of a program are the outputs of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.errors import ExportError
from taper_frontend.openinfer.beside import Beside
from taper_frontend.openinfer.touched import accesses, all_nodes
from taper_runtime.openinfer.graph import ENTRY, Yield
from taper_runtime.text import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.openinfer.graph import Graph, Node
    from taper_runtime.openinfer.link import Program


def find_outputs(program: Program, wanted: Sequence[str] | None) -> list[str]:
    """Return the names of the outputs, in order.

    Where none are wanted they are the volatile and dynamic variables that the program writes and
    never reads after the last write, in the order of the text; all that it writes if there is none
    of that kind.

    Raises
    ------
    ExportError
        If a wanted one is no variable, or a state or a family of tensors.
    """
    graph = program.graph
    if wanted is not None:
        for name in wanted:
            _check(program, name)
        return list(dict.fromkeys(wanted))
    last: dict[str, int] = {}
    read: dict[str, int] = {}
    for place, node in enumerate(_in_order(graph)):
        reads, writes = accesses(node.kind)
        read.update((access.base, place) for access in reads)
        last.update((access.base, place) for access in writes)
    kinds = {name: variable.kind for name, variable in graph.vars.items()}
    written = [name for name in graph.vars if name in last and kinds[name] != "persistent"]
    return [name for name in written if read.get(name, -1) <= last[name]] or written


def _in_order(graph: Graph) -> Iterator[Node]:
    """Yield the nodes as a step runs them; blocks beside the entry block follow its `yield`."""
    beside = Beside(graph).blocks
    for node in all_nodes(graph, graph.blocks[ENTRY].nodes):
        yield node
        if isinstance(node.kind, Yield):
            for name in beside:
                yield from all_nodes(graph, graph.blocks[name].nodes)


def _check(program: Program, name: str) -> None:
    if name not in program.variables:
        near = nearest(name, program.variables)
        hint = f"; do you mean {near!r}?" if near else f"; there are {', '.join(program.variables)}"
        raise ExportError(f"outputs: no variable {name!r}{hint}")
    declared = program.variables[name].declaration
    if declared.kind == "persistent":
        raise ExportError(f"outputs: {name!r} is a state; session.get_state({name!r}) reads it")
    if declared.is_prefix_table:
        raise ExportError(f"outputs: {name!r} is a family of tensors, expected one")
