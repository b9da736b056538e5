"""Hold what the checks of a program share: the program, the problems found, the variables."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import OpenInferError, Problem, TextPosition, shown
from taper_openinfer.language.graph import Graph, Node, Value, Variable
from taper_runtime.base.text import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taper_openinfer.check.visits import Visit
    from taper_openinfer.oinf.reader import Model

#: The kind of memory of a variable that ``assign`` declares. It lives until the end of the step.
TEMPORARY = "temporary"

#: Kinds of element types whose values are whole numbers.
_WHOLE = ("signed", "unsigned", "packed_signed", "packed_unsigned")

_MAX_INDEX = (1 << 63) - 1

#: Limits on the names compared with an unknown one, and on the problems reported. A hostile program
#: can have enough of both to make the checks run for hours.
_MAX_HINTED = 200
_MAX_PROBLEMS = 1000


class TooManyProblems(Exception):
    """The limit on the number of problems is reached; checking stops."""


@dataclass(frozen=True)
class LinkedVariable:
    """A variable of a program, with what the model file says about it.

    Attributes
    ----------
    declaration : Variable
        Its kind is ``"temporary"`` if ``assign`` declares it, or if no declaration exists and an
        op writes it.
    dtype : str
    shape : tuple of int
        As declared: for a table, the shape of one entry; for a growing variable, its first shape.
    tensor : str or None
        The tensor of the file that gives the initial value. None if ``init`` gives it, and for a
        prefix table, each of whose entries has its own tensor.
    init : int, float, bool or None
        The initial value of every element that no tensor gives: from the file's metadata, else from
        the program. None means zero; a constant never has None.
    """

    declaration: Variable
    dtype: str
    shape: tuple[int, ...]
    tensor: str | None = None
    init: int | float | bool | None = None


class Context:
    """A program that is being checked.

    Parameters
    ----------
    graph : Graph
    model : Model
    strict : bool
        Whether a variable that a step reads before it writes it must be in the file or have
        ``@init``.
    device : str
        The device that will run the program.

    Attributes
    ----------
    problems : list of Problem
    variables : dict of str to LinkedVariable
    unsound : set of str
        Variables whose declarations are wrong.
    entries_left : int
        How many more entries of prefix tables may be looked up.
    broken : set of str
        Variables of unknown type, because their declaration or the op that computes them is wrong.
        Problems that follow from them are not reported.
    valueless : set of str
        Constants that have no value.
    missing : set of str
        Names of no variable; each was reported once.
    made : dict of str to Visit
        Undeclared names, and the first node that writes each.
    varying : dict of str to Node
        Variables whose shapes only a run knows, and the ``cache.read`` that causes it.
    """

    def __init__(self, graph: Graph, model: Model, strict: bool, device: str) -> None:
        self.graph, self.model, self.strict, self.device = graph, model, strict, device
        self.problems: list[Problem] = []
        self.variables: dict[str, LinkedVariable] = {}
        self.unsound: set[str] = set()
        self.broken: set[str] = set()
        self.valueless: set[str] = set()
        self.missing: set[str] = set()
        self.made: dict[str, Visit] = {}
        self.varying: dict[str, Node] = {}
        self.entries_left = 1 << 16

    def report(
        self, message: str, place: TextPosition | None = None, variable: str | None = None
    ) -> None:
        """Add a problem; the message of one about a variable begins with its name."""
        if variable is not None:
            message = f"{shown(variable)}: {message}"
        self.problems.append(Problem(message, place, variable))
        if len(self.problems) == _MAX_PROBLEMS:
            raise TooManyProblems

    def add(
        self, declaration: Variable, tensor: str | None = None, place: TextPosition | None = None
    ) -> LinkedVariable:
        """Resolve a declaration's element type and dims, and add the variable."""
        name, place = declaration.name, place or declaration.place
        self.check_name(name, place)
        shape: tuple[int, ...] = ()
        if declaration.dtype not in DTYPES:
            self.report(
                f"expected an element type ({', '.join(DTYPES)}), got {shown(declaration.dtype)}",
                place,
                name,
            )
            declaration = Variable(name, declaration.kind, "f32")
            self.broken.add(name)
        try:
            self.model.resolve_len(declaration.dims)
            shape = self.model.resolve_shape(declaration.dims)
        except OpenInferError as error:
            self.report(str(error), place, name)
            self.broken.add(name)
        linked = LinkedVariable(declaration, declaration.dtype, shape, tensor, declaration.init)
        self.variables[name] = linked
        return linked

    def check_name(self, name: str, place: TextPosition | None) -> None:
        """Check the spelling of a name: a graph need not come from a parsed text."""
        if not (name.isascii() and name.isidentifier()):
            self.report(f"expected a name of letters, digits and _, got {shown(name)}", place)

    def find(
        self, name: str, place: TextPosition | None, what: str = "a variable"
    ) -> LinkedVariable | None:
        """Return a variable, or None after reporting once that no variable has this name."""
        if name not in self.variables:
            if name not in self.missing:
                message = f"expected {what}, got {shown(name)}{hint(name, self.variables)}"
                self.report(message, place)
                self.missing.add(name)
            return None
        return self.variables[name]

    def lose(self, name: str, dtype: str = "f32") -> None:
        """Mark a variable as broken, so that problems that follow from it are not reported."""
        self.broken.add(name)
        if name not in self.variables:
            self.variables[name] = LinkedVariable(Variable(name, TEMPORARY, dtype), dtype, ())

    def is_scalar(self, linked: LinkedVariable) -> bool:
        """Return whether a variable is a single number, as far as is known."""
        declaration = linked.declaration
        return declaration.name in self.broken or not (
            declaration.dims or declaration.table_indices or declaration.is_cache
        )

    def is_whole(self, linked: LinkedVariable) -> bool:
        """Return whether a variable is a single whole number, as far as is known."""
        is_broken = linked.declaration.name in self.broken
        return is_broken or (self.is_scalar(linked) and DTYPES[linked.dtype].kind in _WHOLE)

    def check_value(
        self,
        value: Value,
        place: TextPosition | None,
        loops: Sequence[str],
        cache: Variable | None = None,
    ) -> None:
        """Check an index: a literal, or a name that means a number in this place.

        A name is looked up as a sizevar, then a count of ``cache``, then a variable of ``loops``,
        then a persistent scalar.
        """
        if isinstance(value, int):
            if abs(value) > _MAX_INDEX:
                self.report(f"expected an index of at most {_MAX_INDEX}, got {value}", place)
            return
        if value in self.model.sizevars or value in loops:
            return
        if cache is not None and value in cache.auto_dim:
            return
        linked = self.variables.get(value)
        if linked is None and value in self.missing:
            return
        if linked is None:
            self.missing.add(value)
            known = [*self.model.sizevars, *loops, *self.variables]
            self.report(
                f"expected an index: a number, a sizevar, the variable of a loop around it or a "
                f"persistent number, got {shown(value)}{hint(value, known)}",
                place,
            )
        elif linked.declaration.kind != "persistent" or not self.is_whole(linked):
            self.report(
                f"expected a persistent whole number as index, got {describe_variable(linked)}",
                place,
                value,
            )


def describe_variable(linked: LinkedVariable) -> str:
    """Describe a variable for a message: ``"a volatile f32[B, 4]"``."""
    declaration = linked.declaration
    dims = f"[{', '.join(declaration.dims)}]" if declaration.dims else ""
    indices = f"({', '.join(declaration.table_indices)})" if declaration.table_indices else ""
    return f"a {declaration.kind} {linked.dtype}{dims}{indices}"


def hint(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests a known name similar to this one, or an empty text."""
    words = list(itertools.islice(known, _MAX_HINTED + 1))
    is_cheap = len(name) < 100 and len(words) <= _MAX_HINTED
    near = nearest(name, words) if is_cheap else None
    return f"; do you mean {shown(near)}?" if near and near != name else ""
