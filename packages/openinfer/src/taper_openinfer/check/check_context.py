"""Share among the checks of a program what they check, what they found, what a name means."""

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

#: The kind of memory of what ``assign`` declares. A step's temporaries end with it.
TEMPORARY = "temporary"

#: Kinds of element types whose values are whole numbers.
_WHOLE = ("signed", "unsigned", "packed_signed", "packed_unsigned")

_MAX_INDEX = (1 << 63) - 1

#: How many names are compared with one that is unknown, and how many problems are noted: a stranger
#: can write more of both than anybody wants to wait for.
_MAX_HINTED = 200
_MAX_PROBLEMS = 1000


class TooManyProblems(Exception):
    """So much is wrong that it is of no use to look further."""


@dataclass(frozen=True)
class LinkedVariable:
    """A variable of a program and what the model file says of it.

    Attributes
    ----------
    declaration : Variable
        Of kind ``"temporary"`` for what ``assign`` declares, and for what an op alone writes.
    dtype : str
    shape : tuple of int
        As declared. Of a table: of an entry; of what grows: before it grows.
    tensor : str or None
        The tensor of the file that it starts with; None where it starts with ``init``, or is a
        prefix table, each entry of which has its tensor.
    init : int, float, bool or None
        Of every element that no tensor gives: the file's metadata, else what the program says; None
        is zero, which no constant has.
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
        Whether what a step reads before it writes it has to be in the file, or have ``@init``.
    device : str
        What is to run the program.

    Attributes
    ----------
    problems : list of Problem
    variables : dict of str to LinkedVariable
    unsound : set of str
        Variables whose declarations are wrong.
    entries_left : int
        How many entries of prefix tables may still be looked for.
    broken : set of str
        Variables of which nothing is known, since what declares or computes them is wrong. What
        follows from them is no problem of its own.
    valueless : set of str
        Constants that have no value.
    missing : set of str
        Names that stand for no variable, each of which was reported.
    made : dict of str to Visit
        Names that no section and no assign declares, and the first node that writes each.
    varying : dict of str to Node
        Variables whose shapes are known only when the program runs, and the ``cache.read`` for
        which that is so.
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
        """Note a problem; one of a variable begins with its name."""
        if variable is not None:
            message = f"{shown(variable)}: {message}"
        self.problems.append(Problem(message, place, variable))
        if len(self.problems) == _MAX_PROBLEMS:
            raise TooManyProblems

    def add(
        self, declaration: Variable, tensor: str | None = None, place: TextPosition | None = None
    ) -> LinkedVariable:
        """Resolve a declaration's element type and dims, and know the variable from now on."""
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
        """Check a name, which a graph may have from elsewhere than a text."""
        if not (name.isascii() and name.isidentifier()):
            self.report(f"expected a name of letters, digits and _, got {shown(name)}", place)

    def find(
        self, name: str, place: TextPosition | None, what: str = "a variable"
    ) -> LinkedVariable | None:
        """Return a variable; if there is none of this name, note that once."""
        if name not in self.variables:
            if name not in self.missing:
                message = f"expected {what}, got {shown(name)}{hint(name, self.variables)}"
                self.report(message, place)
                self.missing.add(name)
            return None
        return self.variables[name]

    def lose(self, name: str, dtype: str = "f32") -> None:
        """Know a variable of which nothing is known but that something is wrong with it."""
        self.broken.add(name)
        if name not in self.variables:
            self.variables[name] = LinkedVariable(Variable(name, TEMPORARY, dtype), dtype, ())

    def is_scalar(self, linked: LinkedVariable) -> bool:
        """Whether a variable is one number, as far as is known."""
        declaration = linked.declaration
        return declaration.name in self.broken or not (
            declaration.dims or declaration.table_indices or declaration.is_cache
        )

    def is_whole(self, linked: LinkedVariable) -> bool:
        """Whether a variable is one whole number, as far as is known."""
        is_broken = linked.declaration.name in self.broken
        return is_broken or (self.is_scalar(linked) and DTYPES[linked.dtype].kind in _WHOLE)

    def check_value(
        self,
        value: Value,
        place: TextPosition | None,
        loops: Sequence[str],
        cache: Variable | None = None,
    ) -> None:
        """Check what an index is: a literal, or a name that means a number there.

        A name is a sizevar, a count of ``cache``, the variable of one of ``loops``, or a persistent
        number, in this order.
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
    """Say what a variable is: ``"a volatile f32[B, 4]"``."""
    declaration = linked.declaration
    dims = f"[{', '.join(declaration.dims)}]" if declaration.dims else ""
    indices = f"({', '.join(declaration.table_indices)})" if declaration.table_indices else ""
    return f"a {declaration.kind} {linked.dtype}{dims}{indices}"


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question whether a name like this one was meant."""
    words = list(itertools.islice(known, _MAX_HINTED + 1))
    is_cheap = len(name) < 100 and len(words) <= _MAX_HINTED
    near = nearest(name, words) if is_cheap else None
    return f"; do you mean {shown(near)}?" if near and near != name else ""
