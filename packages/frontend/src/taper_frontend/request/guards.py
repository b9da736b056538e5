"""Find what torch learned about sizes during a capture, and from which lines."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from itertools import islice, product
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakKeyDictionary

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from taper_frontend.lowering.relations import solved
from taper_frontend.lowering.source_line import describe_line
from taper_frontend.lowering.symbols import holds
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import bounds, variables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from types import FrameType

    from torch.export import ExportedProgram

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep


#: The most sets of sizes with which a guard is tried.
_TRIED = 400

#: The files and lines where a module's own code used a size as a condition.
_DECISIONS: WeakKeyDictionary[ShapeEnv, set[tuple[str, int]]] = WeakKeyDictionary()


class TakenBranch(NamedTuple):
    """A branch that the module took for the example's sizes, but not for all sizes in range.

    Attributes
    ----------
    condition : str
        The condition that was true, with the names of the sizes.
    sizes : dict of str to int
        Sizes for which it is false.
    line : str
        The line of the user's model.
    """

    condition: str
    sizes: dict[str, int]
    line: str


@contextmanager
def user_lines() -> Iterator[None]:
    """Make torch record the user's source line for each guard instead of its own."""
    if not hasattr(ShapeEnv, "_get_user_frame"):  # a torch version without the user's lines
        yield
        return

    def user_frame(env: ShapeEnv) -> FrameType | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename in uninteresting_files():
            frame = frame.f_back
        if frame is not None and not frame.f_code.co_filename.startswith(_TORCH):
            place = (frame.f_code.co_filename, frame.f_lineno)
            _DECISIONS.setdefault(env, set()).add(place)
        while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back
        return frame

    with mock.patch.object(ShapeEnv, "_get_user_frame", user_frame):
        yield


def shape_env(program: ExportedProgram) -> ShapeEnv | None:
    """Return torch's knowledge of a program's sizes; None for a program without tensors."""
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            env: ShapeEnv | None = mode.shape_env
            return env
    return None


def line_that_fixed(env: ShapeEnv | None, source: str) -> str:
    """Return the user's line that fixed a size; empty if unknown.

    Parameters
    ----------
    env : ShapeEnv
    source : str
        torch's name of the size: ``"L['x'].size()[0]"``.
    """
    symbol = env.source_to_var.get(source) if env is not None else None
    while env is not None and symbol is not None:
        value = env.replacements.get(symbol)
        if value is None or value.is_number:
            return _line(env.replacements_slocs.get(symbol))
        symbol = next(iter(value.free_symbols), None)
    return ""


def lines_that_bound(
    env: ShapeEnv | None,
    symbol: sympy.Symbol,
    beyond: Collection[int],
    *,
    by_others: bool = False,
) -> list[str]:
    """Return the user's lines with guards on one size, those that bound it first.

    Parameters
    ----------
    env : ShapeEnv
    symbol : sympy.Symbol
        The size.
    beyond : collection of int
        Sizes that are not accepted. If guards exclude some of them, only those guards' lines are
        returned.
    by_others : bool
        Whether other sizes limit it; the guards that say so come first.
    """
    if env is None:
        return []
    excluded: dict[str, int] = {}
    for guard in env.guards:
        expr = env.replace(guard.expr)
        if by_others and (relation := solved(symbol, expr)) and relation.kind == "<=":
            excluded.setdefault(_line(guard.sloc), len(beyond) + 1)
        if expr.free_symbols == {symbol} and (line := _line(guard.sloc)):
            count = sum(not holds(expr, symbol, size) for size in beyond)
            excluded[line] = max(excluded.get(line, 0), count)
    excluded.pop("", None)
    bounding = [line for line, count in excluded.items() if count] or list(excluded)
    return sorted(bounding, key=excluded.__getitem__, reverse=True)


def decisions(
    env: ShapeEnv | None,
    symbols: Mapping[sympy.Symbol, int],
    ranges: Mapping[str, tuple[int, int]],
    examples: Mapping[str, int],
) -> list[TakenBranch]:
    """Find decisions of the module's own code that other sizes in range would change.

    torch captures the branch that the example takes. Only some sizes in range are tried.

    Parameters
    ----------
    env : ShapeEnv
    symbols : mapping of sympy.Symbol to size
        torch's symbols, as expressions in the size variables.
    ranges, examples
        The ranges and the examples of the size variables.
    """
    if env is None:
        return []
    found: dict[str, TakenBranch] = {}
    for guard in env.guards:
        frame = getattr(guard.sloc, "framework_loc", None)
        place = getattr(frame, "filename", ""), getattr(frame, "lineno", 0)
        expr = env.replace(guard.expr)
        free = expr.free_symbols
        # a dim of 1 is a special case, with which the plan is tried
        of_one = isinstance(expr, sympy.Ne) and expr.lhs.is_Symbol
        decides = place in _DECISIONS.get(env, ()) and not of_one
        if not (decides and free and free <= symbols.keys()):
            continue
        names = sorted({atom.text for symbol in free for atom in variables(symbols[symbol])})
        points = product(*(_tried(ranges[name], examples[name]) for name in names))
        for values in islice(points, _TRIED):
            sizes = dict(zip(names, values, strict=True))
            if any(sizes[name] > _most(ranges[name][1], sizes) for name in names):
                continue
            point = {symbol: sympy.Integer(size_at(symbols[symbol], sizes)) for symbol in free}
            if expr.xreplace(point) is sympy.false:
                words = {symbol: sympy.Symbol(str(symbols[symbol])) for symbol in free}
                line = _line(guard.sloc)
                found.setdefault(line, TakenBranch(str(expr.xreplace(words)), sizes, line))
                break
    return list(found.values())


def _most(limit: int, sizes: Mapping[str, int]) -> int:
    """Return the largest value of a size, beside others whose values are known."""
    known = all(atom.text in sizes for atom in variables(limit))
    return size_at(limit, sizes) if known else bounds(limit)[1]


def _tried(limits: tuple[int, int], example: int) -> list[int]:
    low, high = max(limits[0], 1), bounds(limits[1])[1]
    sizes = {*range(low, low + 4), *range(example - 1, example + 8), 2 * example, 4 * example}
    return sorted(size for size in sizes if low <= size <= high)


def _line(sloc: Any) -> str:
    frame = getattr(sloc, "framework_loc", None)
    if frame is None or isinstance(frame, str) or frame.filename.startswith(_OWN):
        return ""  # no user's code between torch and this module
    return describe_line(frame.filename, frame.lineno, frame.name, frame.line or "")
