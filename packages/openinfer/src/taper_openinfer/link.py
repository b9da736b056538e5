"""Link a program to a model file: what its names and sizes are there, checked before it runs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from taper_openinfer.check.check_context import (
    TEMPORARY,
    Context,
    LinkedVariable,
    TooManyProblems,
)
from taper_openinfer.check.declarations import check_declarations, check_temporaries
from taper_openinfer.check.flow import Flow
from taper_openinfer.check.nodes import check_nodes
from taper_openinfer.check.ops import check_ops
from taper_openinfer.check.settings import settings_of
from taper_openinfer.check.tables import entry_name, entry_problem
from taper_openinfer.check.visits import walk
from taper_openinfer.errors import ProgramError, StepError, shown
from taper_openinfer.language.graph import ENTRY, VOLATILE, Single, describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_openinfer.errors import Problem
    from taper_openinfer.language.graph import Access, Block, Graph, Op
    from taper_openinfer.oinf.reader import Model

__all__ = ["TEMPORARY", "LinkedProgram", "LinkedVariable", "link"]


class LinkedProgram:
    """A program that has been linked: it can run.

    Attributes
    ----------
    graph : Graph
    model : Model
    variables : dict of str to LinkedVariable
        Those that memory sections declare, then temporaries.
    zeros : tuple of str
        The volatile variables that a step may read before it writes them, and that begin as zeros,
        for the file has no tensor of their names, and the program no ``@init``.
    flow : Flow
        What its blocks read and write.
    """

    def __init__(
        self,
        graph: Graph,
        model: Model,
        variables: dict[str, LinkedVariable],
        zeros: Sequence[str],
        flow: Flow,
    ) -> None:
        self.graph, self.model, self.variables = graph, model, variables
        self.zeros, self.flow = tuple(zeros), flow

    @property
    def blocks(self) -> dict[str, Block]:
        """The blocks of the graph."""
        return self.graph.blocks

    def settings(self, op: Op) -> dict[str, Any]:
        """Return the settings of an op with names replaced by what they mean.

        Constants that settings name are read from the file.
        """
        return settings_of(op, self.model, self.variables)

    def resolve(self, access: Access, values: Mapping[str, int]) -> str:
        """Return the tensor of the file that an entry of a prefix table is.

        Parameters
        ----------
        access : Access
        values : mapping of str to int
            What the names in its indices are now; sizevars are known.

        Raises
        ------
        StepError
            If the file has no such tensor, or it has another type or no data.
        """
        linked = self.variables[access.base]
        numbers = [self._number(index.value, values) for index in access.indices
                   if isinstance(index, Single)]  # fmt: skip
        tensor = entry_name(linked.declaration, numbers)
        problem = entry_problem(self.model, linked, tensor)
        if problem is not None:
            raise StepError(
                f"{shown(access.base)}: {problem}",
                variable=access.base,
                index=", ".join(map(str, numbers)),
            )
        return tensor

    def _number(self, value: int | str, values: Mapping[str, int]) -> int:
        if isinstance(value, int):
            return value
        return values[value] if value in values else self.model.size_of(value)


def link(graph: Graph, model: Model, *, strict: bool = False, device: str = "Cpu") -> LinkedProgram:
    """Check a program and link it to a model file, of which only header and tables are needed.

    Variables are linked to the file's tensors by name, or the name that @ref gives, and dims.

    Parameters
    ----------
    graph : Graph
    model : Model
    strict : bool
        Whether it is an error that a volatile variable which a step may read before it writes it
        begins as zeros: see :attr:`LinkedProgram.zeros`.
    device : str
        What is to run it; named where it has no kernel.

    Raises
    ------
    ProgramError
        With all problems, up to a thousand, in the order of their places.
    """
    context = Context(graph, model, strict, device)
    zeros: list[str] = []
    flow = None
    with suppress(TooManyProblems):
        check_declarations(context)
        steps = walk(context)
        check_temporaries(context, steps)
        check_ops(context, steps)
        check_nodes(context, steps)
        if ENTRY in graph.blocks:
            flow = Flow(context, [step.block for step in steps])
            zeros += _zeros(context, flow)
    if context.problems or flow is None:
        raise ProgramError(sorted(context.problems, key=_place), graph.name)
    return LinkedProgram(graph, model, context.variables, zeros, flow)


def _zeros(context: Context, flow: Flow) -> list[str]:
    """Return what begins as zeros and is read first; note it where that is an error."""
    early = flow.of_block(ENTRY).early
    found = []
    for name, linked in context.variables.items():
        if name not in early or linked.declaration.kind != VOLATILE:
            continue
        if linked.tensor is not None or linked.init is not None or linked.declaration.pattern:
            continue
        found.append(name)
        if context.strict:
            node = early[name]
            place = "" if node.place is None else f" at {node.place}"
            context.report(
                "expected a tensor of this name in the file, or @init, for a step reads it before "
                f"it writes it ('{describe(node.kind)}'{place}); it is linked strictly",
                linked.declaration.place,
                name,
            )
    return found


def _place(problem: Problem) -> tuple[int, int]:
    """Order problems by place; those without one come first."""
    return problem.place or (0, 0)
