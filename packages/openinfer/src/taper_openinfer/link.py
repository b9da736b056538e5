"""Link a program to a model file: resolve its names and sizes, and check it before it runs."""

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
    """A program that was checked against a model file, ready to run.

    Attributes
    ----------
    graph : Graph
    model : Model
    variables : dict of str to LinkedVariable
        The variables of the memory sections, then temporaries.
    zeros : tuple of str
        The volatile variables that start as zeros, because they have neither a tensor in the file
        nor ``@init``, and that a step may read before it writes them.
    flow : Flow
        The reads and writes of the blocks.
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
        """Return the blocks of the graph."""
        return self.graph.blocks

    def settings(self, op: Op) -> dict[str, Any]:
        """Return the settings of an op, with names replaced by their values.

        Constants named in settings are read from the file.
        """
        return settings_of(op, self.model, self.variables)

    def resolve(self, access: Access, values: Mapping[str, int]) -> str:
        """Return the name of the tensor that holds an entry of a prefix table.

        Parameters
        ----------
        access : Access
        values : mapping of str to int
            The current values of the names in its indices, except sizevars.

        Raises
        ------
        StepError
            If the file has no such tensor, or the tensor has the wrong type or no data.
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
    """Check a program and link it to a model file; reads only the file's header and tables.

    Variables are linked to the file's tensors by name, or by the name in @ref, and by dims.

    Parameters
    ----------
    graph : Graph
    model : Model
    strict : bool
        Whether the variables in :attr:`LinkedProgram.zeros` are errors.
    device : str
        The device that will run the program; errors about missing kernels name it.

    Raises
    ------
    ProgramError
        If there are problems: up to a thousand are listed, in the order of the text.
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
    """Return the variables that start as zeros and are read first; report them if strict."""
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
                "expected a tensor of this name in the file, or @init, because linking is strict "
                f"and a step reads it before it writes it ('{describe(node.kind)}'{place})",
                linked.declaration.place,
                name,
            )
    return found


def _place(problem: Problem) -> tuple[int, int]:
    """Return a sort key: problems are ordered by position, those without one first."""
    return problem.place or (0, 0)
