"""Register passes by name: stages, their steps, and users' passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from taper_frontend.compiler.pipeline import Group, Pass, Stage, name_of
from taper_frontend.compiler.stages import STAGES
from taper_frontend.compiler.stages.schedule.split_into_microbatches import split_into_microbatches
from taper_frontend.compiler.stages.schedule.split_into_row_tiles import split_into_row_tiles
from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_frontend.compiler.analysis.chains import Room
    from taper_frontend.compiler.graph.graph import Graph


class _Named:
    """A user's pass under its registered name."""

    def __init__(self, name: str, run: Pass) -> None:
        self.__name__ = name
        self._run = run

    def __call__(self, graph: Graph) -> bool:
        return self._run(graph)


class _UserPass(NamedTuple):
    """A user's pass, and the stage or pass before or after which it runs."""

    run: _Named
    before: str | None
    after: str | None


_REGISTERED: dict[str, _UserPass] = {}

#: The passes that take the bytes that a part of a node may read and write.
_SPLITS = (split_into_microbatches, split_into_row_tiles)


def register_pass(
    name: str, fn: Pass, *, before: str | None = None, after: str | None = None
) -> None:
    """Register a custom pass for all later compilations of this process.

    With ``before`` or ``after`` it becomes part of the default pipeline. Otherwise it runs if the
    argument ``passes`` of an export, or of :func:`.compile.compile_graph`, names it.

    Parameters
    ----------
    name : str
        Its name in ``passes``, logs and reports.
    fn : callable
        ``(Graph) -> bool``: rewrites the graph in place and returns whether it changed anything.
    before, after : str, optional
        A stage or pass of the default pipeline, at its first occurrence; see :func:`pass_names`. A
        pass in a group is repeated with the group until nothing changes.

    Raises
    ------
    ValueError
        If the name is already registered, or both places are given.
    ExportError
        If there is no such place; the message lists those that exist.
    """
    if name in pass_names():
        raise ValueError(f"pass {name!r} is registered already")
    if before is not None and after is not None:
        raise ValueError(f"pass {name!r}: expected before or after, got both")
    registered = _UserPass(_Named(name, fn), before, after)
    _placed(default_pipeline(), registered)
    _REGISTERED[name] = registered


def unregister_pass(name: str) -> None:
    """Unregister a pass of :func:`register_pass`.

    Raises
    ------
    ExportError
        If there is no pass of this name; the message lists those that exist.
    """
    if name not in _REGISTERED:
        raise ExportError(unknown("pass", name, list(_REGISTERED)))
    del _REGISTERED[name]


def pass_names() -> list[str]:
    """Return the names of all stages and passes in the pipeline's order, then of users' passes."""
    return list(dict.fromkeys([*(name for name, _ in _walk(STAGES)), *_REGISTERED]))


def default_pipeline() -> tuple[Pass, ...]:
    """Return the stages, with the registered passes that have a place among them."""
    passes: tuple[Pass, ...] = STAGES
    for registered in _REGISTERED.values():
        passes = _placed(passes, registered)
    return passes


def registered_among(passes: Sequence[Pass | str] | None) -> list[str]:
    """Return the names of users' passes in an argument of :func:`find_passes`."""
    if passes is None:
        return [name for name, each in _REGISTERED.items() if each.before or each.after]
    return [each for each in passes if isinstance(each, str) and each in _REGISTERED]


def find_passes(passes: Sequence[Pass | str] | None) -> tuple[Pass, ...]:
    """Return the passes with the names in ``passes``; the default pipeline for None.

    Raises
    ------
    ExportError
        On a name that no stage or pass has, listing those that exist, or what is no list of names
        and passes.
    """
    if passes is None:
        return default_pipeline()
    _check_list(passes)
    known: dict[str, Pass] = {}
    if any(isinstance(pass_, str) for pass_ in passes):
        known |= reversed([*_walk(STAGES)])
        known |= {name: registered.run for name, registered in _REGISTERED.items()}
    for pass_ in passes:
        if isinstance(pass_, str) and pass_ not in known:
            raise ExportError(unknown("pass", pass_, pass_names()))
        if not (isinstance(pass_, str) or callable(pass_)):
            raise ExportError(f"passes: expected a pass or the name of one, got {pass_!r}")
    return tuple([known[pass_] if isinstance(pass_, str) else pass_ for pass_ in passes])


def with_room(passes: Iterable[Pass], room: Room) -> tuple[Pass, ...]:
    """Return the passes; those that split nodes make parts that fit in ``room``."""
    return tuple([_with_room(pass_, room) for pass_ in passes])


def _with_room(pass_: Pass, room: Room) -> Pass:
    if isinstance(pass_, Stage):
        return replace(pass_, steps=with_room(pass_.steps, room))
    if isinstance(pass_, Group):
        return Group(*with_room(pass_.passes, room))
    for split in _SPLITS:
        if pass_ is split:
            return _Named(name_of(pass_), partial(split, room=room))
    return pass_


def _check_list(passes: object) -> None:
    if not isinstance(passes, Sequence) or isinstance(passes, (str, bytes)):
        raise ExportError(f"passes: expected a list of passes or their names, got {passes!r}")


def _walk(passes: Iterable[Pass]) -> Iterator[tuple[str, Pass]]:
    """Yield names of stages and of the passes in them, in order."""
    for pass_ in passes:
        if not isinstance(pass_, Group):
            yield name_of(pass_), pass_
        yield from _walk(_inside(pass_))


def _inside(pass_: Pass) -> tuple[Pass, ...]:
    """Return the parts of a stage or a group."""
    if isinstance(pass_, Stage):
        return pass_.steps
    return pass_.passes if isinstance(pass_, Group) else ()


def _placed(passes: tuple[Pass, ...], registered: _UserPass) -> tuple[Pass, ...]:
    """Return the passes with a registered pass inserted at its place, if it has one."""
    target = registered.before or registered.after
    if target is None:
        return passes
    found = _insert(passes, target, registered)
    if found is None:
        raise ExportError(unknown("pass", target, [name for name, _ in _walk(passes)]))
    return found


def _insert(
    passes: tuple[Pass, ...], target: str, registered: _UserPass
) -> tuple[Pass, ...] | None:
    """Insert a pass next to the first ``target``, at any depth; return None if there is none."""
    for i, pass_ in enumerate(passes):
        if not isinstance(pass_, Group) and name_of(pass_) == target:
            pair = (registered.run, pass_) if registered.before else (pass_, registered.run)
            return (*passes[:i], *pair, *passes[i + 1 :])
        inside = _insert(_inside(pass_), target, registered)
        if inside is not None:
            made = replace(pass_, steps=inside) if isinstance(pass_, Stage) else Group(*inside)
            return (*passes[:i], made, *passes[i + 1 :])
    return None
