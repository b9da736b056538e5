"""Express torch's symbolic sizes as size expressions."""

from __future__ import annotations

import math
from functools import reduce
from math import lcm
from typing import TYPE_CHECKING, Any

import sympy

from taper_frontend.lowering.aten_program import (
    SymbolicNumber,
    TensorValue,
    hint,
    symbols_in,
    unbacked,
)
from taper_frontend.lowering.float_sizes import (
    ROUNDINGS,
    convert_rounding,
    floats_as_written,
    spelled,
)
from taper_frontend.lowering.relations import assertions, difference_name, related, solved
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.size_values import ranged, size_at
from taper_runtime.base.sizes import (
    UNBOUNDED,
    UndecidedError,
    bounds,
    largest,
    linear,
    smallest,
    variable,
    variables,
)
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.type_rules import broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from taper_frontend.lowering.aten_program import AtenProgram, Node, SymbolicSize

#: The most sizes of a variable that are tried against torch's guards.
_TRIED = 1024

#: A range that is accepted up to here has no end.
_FAR = 2**20


#: Ops whose result has at most as many items as their first input has elements.
_FINDERS = frozenset(
    {
        "aten.nonzero.default", "aten.nonzero_numpy.default", "aten.argwhere.default",
        "aten.where.default", "aten._unique2.default", "aten.unique_consecutive.default",
    }
)  # fmt: skip


class Measured(NamedTuple):
    """A size variable whose value a node computes.

    Attributes
    ----------
    limits : tuple of int
        The smallest and the largest value; the latter may be an expression.
    example : int
        A typical value.
    """

    limits: tuple[int, int]
    example: int


class Unmeasured(NamedTuple):
    """A torch symbol without a value yet, and the size variables that depend on it.

    Attributes
    ----------
    symbol : sympy.Symbol
    variable : str or None
        The symbol is ``step * variable + base``; None if it is ``base``.
    base : sympy.Expr
        An expression in symbols that have values.
    step : int
    checks : tuple of (str, sympy.Expr or int)
        Variables that must be 0: the symbol minus an expression, or modulo a number. A run fails if
        one has another value.
    """

    symbol: sympy.Symbol
    variable: str | None
    base: sympy.Expr = sympy.S.Zero
    step: int = 1
    checks: tuple[tuple[str, sympy.Expr | int], ...] = ()


class SizeError(OpError):
    """A size of the model cannot be expressed in a plan."""


class Sizes:
    """The size variables of a program, and its symbolic sizes as expressions of them.

    Parameters
    ----------
    program : AtenProgram
    names : mapping of str to str
        Names for torch's symbols; others keep torch's names. Symbols with one name are one
        variable.
    ranged : collection of str
        The symbols whose smallest size was given by the user.
    limited : mapping of str to int
        The variables whose ranges end where torch's guards and another variable say, and how much
        before that.
    trusting : bool, optional
        Whether ranges that the user did not give start where torch says.
    least : mapping of str to int, optional
        The starts of ranges that the user did not give. Ranges not listed here start at 0 if torch
        says 2, which is its default: most programs also work with smaller sizes.

    Attributes
    ----------
    ranges : dict of str to tuple of int
        The smallest and the largest value of each variable. The graph is valid for sizes from 1 on;
        the plan's verification tries what the program does with an empty dimension.
    examples : dict of str to int
        The value of each variable in the example inputs; if it is unknown, the smallest from 1 on.
    symbols : dict of sympy.Symbol to size
        torch's symbols, as expressions in the variables.
    default_float : str
        The dtype of Python's floats.
    measured : dict of str to Measured
        The variables whose values nodes compute.
    unmeasured : dict of size to Unmeasured
        The symbols that get their values next, by their expressions in the variables.
    """

    def __init__(
        self,
        program: AtenProgram,
        names: Mapping[str, str],
        ranged: Collection[str] = (),
        least: Mapping[str, int] | None = None,
        limited: Mapping[str, int] | None = None,
        *,
        trusting: bool = False,
    ) -> None:
        """Make the size variables of the inputs' shapes.

        Symbols with one name in ``names`` become one variable. Examples are read from the shapes of
        the example inputs, or from torch's hints.
        """
        self.measured: dict[str, Measured] = {}
        self.unmeasured: dict[int, Unmeasured] = {}
        self._asserted = assertions(program)
        self._constraints = program.ranges
        self._hints = program.hints
        self.default_float = program.default_float
        self._written = floats_as_written(program.nodes)
        self._names = names
        self._trusting = trusting
        self._least = least or {}
        # the starts of torch's ranges, for variables whose range the user did not give
        self._torch_least: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.examples: dict[str, int] = {}
        self.symbols: dict[sympy.Symbol, int] = {}
        inputs = [
            (node.name, node.value)
            for node in program.nodes
            if node.op == "placeholder" and isinstance(node.value, TensorValue)
        ]
        groups: dict[str, dict[sympy.Symbol, SymbolicSize]] = {}
        for _, value in inputs:
            for size in value.shape:
                if not isinstance(size, int):
                    for symbol in sorted(size.free_symbols, key=str):
                        groups.setdefault(names.get(str(symbol), ""), {}).setdefault(symbol, size)
        for symbol, size in groups.pop("", {}).items():
            groups[str(symbol)] = {symbol: size}
        for name, sizes in groups.items():
            self._add(name, sizes, program, ranged)
        self._guards = _joint_guards(groups, program.guards)
        self._limit(limited or {})
        shapes = program.example_shapes
        for name, value in inputs:
            for axis, size in enumerate(value.shape):
                if not isinstance(size, int) and (known := linear(self.size(size))):
                    variable_, factor, addend = known
                    example = shapes[name][axis] if name in shapes else hint(size, program.hints)
                    if example is not None:
                        self.examples[variable_] = (example - addend) // factor

    def _add(
        self,
        name: str,
        sizes: Mapping[sympy.Symbol, SymbolicSize],
        program: AtenProgram,
        ranged: Collection[str],
    ) -> None:
        """Make one variable for one or several of torch's symbols."""
        step, least, high, by_guards = 1, 0, UNBOUNDED, False
        for symbol, size in sizes.items():
            limits = program.ranges[symbol]
            least, high = max(least, limits.lower), min(high, limits.upper)
            if str(symbol) not in ranged:
                demand = _demand(symbol, size, program)
                step = lcm(step, demand.step)
                least, high = max(least, demand.least), min(high, demand.most)
                by_guards = by_guards or demand.least > demand.step
        if step > 1:
            name = f"{name}_div_{step}"
            least = -(-least // step)
            high = high if high == UNBOUNDED else high // step
        if all(str(symbol) not in ranged for symbol in sizes):
            self._torch_least[name] = least
            below = step * least <= 2 and not by_guards and not self._trusting
            least = self._least.get(name, 0 if below else least)
        low = max(least, 1)
        self.symbols |= dict.fromkeys(sizes, step * variable(name, low, high))
        if low < high:
            self.ranges[name] = least, high
            self.examples[name] = low

    def hint(self, size: SymbolicSize) -> int:
        """Return the value of a size in the captured call.

        Raises
        ------
        SizeError
            If it is not known.
        """
        if (value := hint(size, self._hints)) is None:
            raise SizeError(f"expected a size that inputs determine, got {size}")
        return value

    def limits(self, name: str) -> list[sympy.Expr]:
        """Return what a variable must not exceed, as torch's guards say, in other symbols."""
        return [
            relation.side
            for symbol, size in self.symbols.items()
            if linear(size) == (name, 1, 0) and name in self.ranges
            for guard in self._guards
            if (relation := solved(symbol, guard)) is not None
            and relation.kind == "<="
            and relation.side.free_symbols <= self.symbols.keys()
        ]

    def _limit(self, limited: Mapping[str, int]) -> None:
        """Let the ranges of variables end where others and torch's guards say."""
        ends: dict[str, list[int]] = {}
        above: dict[str, set[str]] = {}

        def limits(name: str) -> set[str]:
            """Return the names of the variables that limit one, and of those that limit them."""
            names = above.get(name, set())
            return names.union(*map(limits, names))

        for name in limited:
            for end in map(self.convert, self.limits(name)):
                names = {atom.text for atom in variables(end)}
                if not any(name in {other, *limits(other)} for other in names):
                    ends.setdefault(name, []).append(end)
                    above.setdefault(name, set()).update(names)
        if not ends:
            return
        made: dict[str, int] = {}
        old, self.ranges = self.ranges, {}
        for name in sorted(old, key=lambda name: len(limits(name))):  # each after its limits
            least, high = old[name]
            for end in ends.get(name, ()):
                end = ranged(end, made) - limited[name]
                high = end if high == UNBOUNDED else smallest(high, end)
            self.ranges[name] = least, high
            made[name] = variable(name, max(least, 1), high)
        self.symbols = {symbol: ranged(size, made) for symbol, size in self.symbols.items()}

    def raised(self, name: str) -> int | None:
        """Return a larger start for a variable's range; None if there is none."""
        if name in self.measured:
            return 1 if self.measured[name].limits[0] < 1 else None
        if name not in self._torch_least:
            return None
        least, _ = self.ranges[name]
        if least < self._torch_least[name]:
            return self._torch_least[name]
        # in steps of 1 at first, then in larger steps for programs that need whole windows
        least = least + 1 if least < 4 else 2 * least
        return least if least <= self.examples[name] else None

    def knows(self, value: SymbolicNumber) -> bool:
        """Return whether each symbol in ``value`` is an expression in the variables."""
        return bool(value.expr.free_symbols <= self.symbols.keys())

    def bind(self, node: Node) -> None:
        """Make variables of the symbols that a node determines, if they can be sizes."""
        for symbol in node.defines:
            limits = self._constraints.get(symbol)
            if symbol in self.symbols or limits is None or limits.lower < 0:
                continue
            most = limits.upper
            capacity = self._capacity(node)
            if capacity is not None:
                # torch's own limit is too low if the mask is larger than the tensor before
                # broadcasting
                own = math.prod(self._shape(node.all_input_nodes[0]))
                if most in (UNBOUNDED, own) or not isinstance(capacity, int):
                    most = capacity
            self._bind(symbol, limits.lower, most)

    def _bind(self, symbol: sympy.Symbol, low: int, most: int) -> None:
        """Make a variable of a symbol, or an expression if torch's checks define one."""
        relations = related(symbol, self._asserted, self.symbols)
        sides = {relation.kind: relation.side for relation in reversed(relations)}
        for relation in related(symbol, self._asserted, self._constraints):
            side = relation.side if relation.kind in ("==", "<=") else None
            if side is not None and (limit := self._most(side, {symbol})) is not None:
                most = smallest(most, limit)
        name = str(symbol)
        if "==" in sides:
            size = self.convert(sides["=="])
            check = self._new(difference_name(name, sides["=="]), (0, 0), 0)
            waiting = Unmeasured(symbol, None, checks=((check, sides["=="]),))
        elif "multiple" in sides:
            step = int(sides["multiple"])
            checks = ((self._new(f"{name}_mod_{step}", (0, 0), 0), step),)
            made = self._vary(f"{name}_div_{step}", -(-low // step), most // step)
            size = step * variable(made, *self.measured[made].limits)
            waiting = Unmeasured(symbol, made, step=step, checks=checks)
        elif ">=" in sides and low <= bounds(base := self.convert(sides[">="]))[0]:
            most = UNBOUNDED if most == UNBOUNDED else most - base
            made = self._vary(difference_name(name, sides[">="]), 0, most)
            size = base + variable(made, *self.measured[made].limits)
            waiting = Unmeasured(symbol, made, sides[">="])
        else:
            made = self._vary(name, low, most)
            size = variable(made, *self.measured[made].limits)
            waiting = Unmeasured(symbol, made)
        self.symbols[symbol] = size
        self.unmeasured[size] = waiting

    def _most(self, side: sympy.Expr, seen: set[sympy.Symbol]) -> int | None:
        """Return an upper bound of an expression, for all values of symbols without a value.

        The bound of a symbol without a limit is that of another symbol which it does not exceed.
        ``seen`` has the symbols on the path, and is extended.
        """
        for symbol in sorted(side.free_symbols - self.symbols.keys(), key=str):
            limits = self._constraints[symbol]
            rises = side.coeff(symbol) > 0
            limit = limits.upper if rises else limits.lower
            if abs(limit) < UNBOUNDED:
                side = side.xreplace({symbol: sympy.Integer(limit)})
                continue
            seen.add(symbol)
            relations = related(symbol, self._asserted, self._constraints) if rises else []
            mosts = (
                self._most(side.xreplace({symbol: relation.side}), seen)
                for relation in relations
                if relation.kind in ("==", "<=") and not relation.side.free_symbols & seen
            )
            return next((most for most in mosts if most is not None), None)
        return self.convert(side)

    def _vary(self, name: str, low: int, most: int) -> str:
        """Add a variable whose value a node computes; return its name."""
        low = max(low, self._least.get(name, 0))
        typical = size_at(most, self.examples)
        if low >= typical:
            raise SizeError(f"size {name}: expected a size that varies, got {low} always")
        example = max(low, typical // 2 if typical < UNBOUNDED else 16)
        return self._new(name, (low, most), example)

    def _new(self, name: str, limits: tuple[int, int], example: int) -> str:
        while name in self.ranges or name in self.measured:
            name += "_"
        self.measured[name] = Measured(limits, example)
        self.examples[name] = example
        return name

    def add_int(self, symbol: sympy.Symbol, example: int | None) -> int:
        """Make a variable of the symbol of an int argument; return it.

        Raises
        ------
        SizeError
            If the int cannot be a size variable.
        """
        limits = self._constraints.get(symbol)
        low = 0 if limits is None else max(limits.lower, 0)
        most = UNBOUNDED if limits is None else limits.upper
        name = self._names.get(str(symbol), str(symbol))
        low = max(low, self._least.get(name, 0))
        if low >= most:
            raise SizeError(f"int {name}: expected an int that varies, got {low} always")
        name = self._new(name, (low, most), max(low, example or 1))
        size = self.symbols[symbol] = variable(name, low, most)
        self.unmeasured[size] = Unmeasured(symbol, name)
        return size

    def _capacity(self, node: Node) -> int | None:
        """Return an upper bound of the number of items that a node finds; None if unknown."""
        args: Any = node.args
        axis: int
        shapes = [self._shape(each) for each in node.all_input_nodes]
        match node.target:
            case "aten.masked_select.default":
                return math.prod(broadcast("masked_select", shapes))
            case "aten.index.Tensor":
                masks = [each for each in args[1] if each is not None]
                shapes = [self._shape(e) for e in masks if e.value.dtype == "bool"]
                return math.prod(shapes[0]) if len(shapes) == 1 else None
            case "torchvision.nms.default":
                return shapes[0][0]
            case "aten.unique_dim.default":
                axis = args[1]
                return shapes[0][axis]
            case "aten.slice.Tensor":
                axis = args[1] if len(args) > 1 else 0
                return shapes[0][axis]
            case text if text in _FINDERS:
                return math.prod(shapes[0])
        return None

    def _shape(self, node: Node) -> tuple[int, ...]:
        """Return the shape of a node's result; empty if it is not a tensor."""
        value = node.value
        if not isinstance(value, TensorValue):
            return ()
        return tuple(self.size(size) for size in value.shape)

    def type(self, value: Any) -> TensorType | None:
        """Return dtype and shape of a tensor; None for a value that has no type in a plan."""
        dtype = value.seen_dtype if isinstance(value, TensorValue) else ""
        if not dtype:
            return None
        if not unbacked(symbols_in(value.shape)) <= self.symbols.keys():
            return None
        return TensorType(dtype, tuple(self.size(size) for size in value.shape))

    def types(self, node: Node) -> list[TensorType | None]:
        """Return the types of a node's results."""
        return [self.type(v) for v in (node.value if node.has_several_results else [node.value])]

    def size(self, value: SymbolicSize) -> int:
        """Return a size in the form of plans: an int, or an expression in the size variables.

        Raises
        ------
        SizeError
            If torch computes it in a way that size expressions do not have.
        """
        return value if isinstance(value, int) else self.convert(value)

    def convert(self, expr: sympy.Expr) -> int:
        """Convert an expression in torch's symbols to one in the size variables.

        Raises
        ------
        SizeError
            If torch computes it in a way that size expressions do not have.
        """
        if expr.is_Integer:
            return int(expr)
        if expr in self.symbols:
            return self.symbols[expr]
        if type(expr).__name__ in ROUNDINGS:
            return self._round(expr)
        args = [self.convert(arg) for arg in expr.args]
        match type(expr).__name__:
            case "Add":
                return sum(args)
            case "Mul":
                return reduce(lambda a, b: a * b, args)
            case "Pow" if type(args[1]) is int and args[1] > 0:
                return reduce(lambda a, b: a * b, [args[0]] * args[1])
            case "FloorDiv" | "CleanDiv":
                return self._quotient(expr, args)
            case "Mod" | "PythonMod":
                return args[0] - args[1] * self._quotient(expr, args)
            case "Min":
                return reduce(smallest, args)
            case "Max":
                return reduce(largest, args)
        text = spelled(expr, self.convert)
        raise SizeError(f"expected a size that plans can compute, got {text}")

    def _quotient(self, expr: sympy.Expr, args: list[int]) -> int:
        """Divide the arguments of an expression; round up in a way that bounds of products take.

        ``-(-n // 4)`` is ``(n + 3) // 4``, while its canonical form is ``n - 3 * n // 4``.
        """
        a, b = args
        if type(b) is int and b > 0 and expr.args[0].could_extract_minus_sign():
            return -((b - 1 - a) // b)
        return a // b

    def _round(self, expr: sympy.Expr) -> int:
        """Convert a float that is rounded to a whole number, as the program writes the float."""
        function, real = type(expr).__name__, expr.args[0]
        try:
            readings = [
                convert_rounding(function, written, self.convert)
                for written in self._written.get(real, (real,))
            ]
        except UndecidedError:
            raise
        except OpError as error:
            raise SizeError(str(error)) from None
        if any(reading != readings[0] for reading in readings):
            raise SizeError(f"the size {spelled(expr, self.convert)} is computed in two ways")
        return readings[0]


def _joint_guards(
    groups: Mapping[str, Mapping[sympy.Symbol, SymbolicSize]], guards: Iterable[sympy.Expr]
) -> list[sympy.Expr]:
    """Return torch's guards about several sizes; none if no input has a size that varies."""
    if not any(groups.values()):
        return []
    return [guard for guard in dict.fromkeys(guards) if len(guard.free_symbols) > 1]


class _Demand(NamedTuple):
    """The sizes that a program accepts: multiples of ``step`` from ``least`` to ``most``."""

    step: int = 1
    least: int = 0
    most: int = UNBOUNDED


def _demand(symbol: sympy.Symbol, size: SymbolicSize, program: AtenProgram) -> _Demand:
    """Return the sizes that torch's guards allow, if the user gave no range.

    Networks that halve and double sizes, or split images into windows, have guards like
    ``s == 2 * (s // 2)``; those that end in a fixed window have guards like ``s // 32 == 7``.
    Trying small sizes shows which multiples are accepted, and trying twice as large ones where that
    ends: ``(s + (-s) % 256) // 256 == 1``, of lengths that are padded to whole chunks, ends at 256.
    """
    example = hint(size, program.hints)
    if size != symbol or example is None:
        return _Demand()
    about = [
        guard
        for guard in dict.fromkeys(program.guards)
        if isinstance(guard, sympy.Eq) and guard.free_symbols == {symbol}
    ]
    if not about:
        return _Demand()

    def accepts(n: int) -> bool:
        return all(holds(guard, symbol, n) for guard in about)

    tried = range(1, min(max(128, 4 * example), _TRIED) + 1)
    taken = set(filter(accepts, tried))
    if not taken:
        return _Demand()
    least, most = min(taken), max(taken)
    steps = (n for n in range(1, example + 1) if example % n == 0)
    every = (n for n in steps if taken.issuperset(range(-(-least // n) * n, most + 1, n)))
    step = next(every, None)
    if step is None:
        return _Demand()
    # if the larger half of the tried sizes is accepted, the range goes on
    end = _end(accepts, step, most) if 2 * most > tried.stop else most
    if not least <= example <= end:
        return _Demand()
    return _Demand(step, least if least > 1 else 0, end)


def _end(accepts: Callable[[int], bool], step: int, most: int) -> int:
    """Return the largest size that is accepted, of multiples of ``step`` from ``most`` on."""
    low = most // step
    while low * step < _FAR and accepts(2 * low * step):
        low *= 2
    if low * step >= _FAR:
        return UNBOUNDED
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle * step) else (low, middle)
    return low * step


def holds(guard: sympy.Expr, symbol: sympy.Symbol, size: int) -> bool:
    """Return whether a guard about one size holds for a value of it."""
    try:
        return guard.xreplace({symbol: sympy.Integer(size)}) is not sympy.false
    except (AssertionError, ZeroDivisionError):  # for example 3 % (3 // 8)
        return False
