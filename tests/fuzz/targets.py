"""List what can be fuzzed: first files, how files are changed, and what any file may do."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator


class Target(NamedTuple):
    """A reader of files, and what lies behind it.

    Attributes
    ----------
    seeds : callable
        Gives valid files.
    mutate : callable
        Returns a file changed by its structure, given random numbers and files that parts may come
        from; raises one of ``strange`` where it cannot.
    strange : tuple of exception types
    check : callable
        Reads a file and uses what it says; returns what became of it, and raises whatever a user
        would not expect from the documents.
    """

    seeds: Callable[[], Iterator[bytes]]
    mutate: Callable[[bytes, random.Random, list[bytes]], bytes]
    strange: tuple[type[Exception], ...]
    check: Callable[[bytes], str]


#: Modules of each target: those that have ``seeds``, ``mutate`` and ``STRANGE``, ``check``.
_MODULES = {
    "plans": ("seeds", "mutation", "target"),
    "loader": ("seeds", "mutation", "loader"),
    "oinf": ("oinf",) * 3,
    "programs": ("programs",) * 3,
    "checkpoints": ("checkpoints",) * 3,
}


def find(name: str) -> Target:
    """Import a target."""
    seeds, mutation, target = [import_module(f"tests.fuzz.{part}") for part in _MODULES[name]]
    return Target(seeds.seeds, mutation.mutate, mutation.STRANGE, target.check)
