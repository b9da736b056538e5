"""torch's symbolic sizes as size expressions."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PythonMod
from torch.utils._sympy.numbers import int_oo

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import OpError
from taper_runtime.ops.opdef import TensorType
from taper_runtime.sizes import UNBOUNDED, is_name, largest, nonempty, smallest, variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.export import ExportedProgram
    from torch.fx import Node

DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES}


class SizeError(OpError):
    """A size of the model is none that a plan could compute."""


class Sizes:
    """The size variables of a program, and what its symbolic sizes are in them.

    Parameters
    ----------
    program : ExportedProgram
    names : mapping of str to str, optional
        What to call torch's symbols; others keep torch's names.
    least : mapping of str to int, optional
        Where the ranges of variables start that nobody gave a range. Others of them start at 0
        where torch says 2, as it does of every one: most programs take less as well.

    Attributes
    ----------
    ranges : dict of str to tuple of int
        The least and the largest value of each variable. The graph is about those from 1 on: what a
        program does with an empty dimension is tried when the plan is verified.
    examples : dict of str to int
        The value of each in the program's example inputs; the least from 1 on where that cannot be
        told.
    """

    def __init__(
        self,
        program: ExportedProgram,
        names: Mapping[str, str],
        least: Mapping[str, int] | None = None,
    ) -> None:
        self._least = least or {}
        # where torch says that the variables' ranges start that nobody gave one
        self._torch_least: dict[str, int] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        self.examples: dict[str, int] = {}
        self._symbols: dict[sympy.Symbol, int] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor):
                for size in node.meta["val"].shape:
                    if isinstance(size, torch.SymInt):
                        for symbol in sorted(size.node.expr.free_symbols, key=str):
                            self._add(symbol, program, names)
                        if size.node.expr in self._symbols and size.node.has_hint():
                            name = str(self._symbols[size.node.expr])
                            self.examples[name] = int(size.node.hint)

    def _add(
        self, symbol: sympy.Symbol, program: ExportedProgram, names: Mapping[str, str]
    ) -> None:
        if symbol in self._symbols:
            return
        limits = program.range_constraints[symbol]
        high = UNBOUNDED if limits.upper == int_oo else min(int(limits.upper), UNBOUNDED)
        name = names.get(str(symbol), str(symbol))
        if not is_name(name) or name in self.ranges:
            name = str(symbol)
        least = int(limits.lower)
        if str(symbol) not in names:
            self._torch_least[name] = least
            least = self._least.get(name, least if least > 2 else 0)
        low, _ = nonempty(least, high)
        self._symbols[symbol] = variable(name, low, high)
        if low < high:
            self.ranges[name] = least, high
            self.examples[name] = low

    def raised(self, name: str) -> int | None:
        """Return where else a variable's range may start; None if it was given or is at its end."""
        if name not in self._torch_least:
            return None
        least, _ = self.ranges[name]
        if least < self._torch_least[name]:
            return self._torch_least[name]
        # one by one where few elements are at stake, in a few steps where windows are
        least = least + 1 if least < 4 else 2 * least
        return least if least <= self.examples[name] else None

    def type(self, value: Any) -> TensorType | None:
        """Return dtype and shape of a tensor; None for what has none in a plan."""
        if not isinstance(value, torch.Tensor) or refused_type(value):
            return None
        if free_unbacked_symbols(value):
            return None
        return TensorType(DTYPE_NAMES[value.dtype], tuple(self.size(size) for size in value.shape))

    def types(self, node: Node) -> list[TensorType | None]:
        """Return the types of a node's results."""
        value = node.meta.get("val")
        return [self.type(v) for v in (value if isinstance(value, list | tuple) else [value])]

    def size(self, value: int | torch.SymInt) -> int:
        """Return a size as a plan has it: an int, or an expression in the size variables.

        Raises
        ------
        SizeError
            If torch computes it in a way that size expressions do not have.
        """
        return self._convert(value.node.expr) if isinstance(value, torch.SymInt) else value

    def _convert(self, expr: sympy.Expr) -> int:
        if expr.is_Integer:
            return int(expr)
        if expr in self._symbols:
            return self._symbols[expr]
        args = [self._convert(arg) for arg in expr.args]
        match expr:
            case sympy.Add():
                return sum(args)
            case sympy.Mul():
                return reduce(lambda a, b: a * b, args)
            case sympy.Pow() if type(args[1]) is int and args[1] > 0:
                return reduce(lambda a, b: a * b, [args[0]] * args[1])
            case FloorDiv() | CleanDiv():
                return args[0] // args[1]
            case Mod() | PythonMod():
                return args[0] % args[1]
            case Min() | sympy.Min():
                return reduce(smallest, args)
            case Max() | sympy.Max():
                return reduce(largest, args)
        raise SizeError(f"a size is computed in a way that plans do not know: {expr}")


def refused_type(value: torch.Tensor) -> str:
    """Return what is wrong with the type of a tensor, empty if nothing is."""
    if value.layout != torch.strided:
        return f"expected a dense tensor, got {value.layout}"
    if value.dtype not in DTYPE_NAMES:
        return f"expected one of {', '.join(DTYPES)}, got {value.dtype}"
    return ""
