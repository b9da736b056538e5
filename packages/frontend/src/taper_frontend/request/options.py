"""Hold what an export was asked for, as one record."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.compiler.partition import Regions, find_backend
from taper_frontend.compiler.pass_registry import registered_among
from taper_frontend.errors import ExportError
from taper_frontend.lowering.keep import Keep
from taper_runtime.base.option_values import PACKING
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from taper_frontend.compiler.pipeline import Pass

#: What ``weights`` of an export may be.
WEIGHTS = ("fixed", "replaceable")

#: What ``verify`` may be, and the depth that it is to :func:`.verify_plan`.
DEPTHS = {True: "example", "outputs": "outputs", "deep": "deep", False: ""}

#: What does not change a plan: who is told of it, and where weights are read that the graph names.
_ASIDE = frozenset({"progress", "checkpoint"})


class Options(NamedTuple):
    """The arguments of :func:`taper_frontend.export` other than the module and its example.

    Attributes are its parameters; ``trace`` is what :func:`.trace_path` makes of it.
    """

    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    dynamic_shapes: Any = None
    dynamic_axes: Mapping[str, Any] | None = None
    passes: Sequence[Pass | str] | None = None
    keep: Sequence[str] = ()
    partition: Regions | None = None
    delegate: str | None = None
    verify: bool | str = True
    progress: bool | Callable[[str], None] = False
    metadata: Mapping[str, str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    trace: Path | None = None
    weights: str = "fixed"
    packing: str = "stored"

    def check(self) -> None:
        """Check what can be checked without a module.

        Raises
        ------
        ExportError
            Naming the parameter.
        """
        if not all(
            isinstance(text, str) for pair in (self.metadata or {}).items() for text in pair
        ):
            raise ExportError(f"metadata: expected texts by name, got {self.metadata!r}")
        if (self.partition is None) != (self.delegate is None):
            raise ExportError("partition, delegate: expected both or none")
        if self.delegate is not None:
            find_backend(self.delegate)
        if type(self.verify) not in (bool, str) or self.verify not in DEPTHS:
            expected = ", ".join(map(repr, DEPTHS))
            raise ExportError(f"verify: expected one of {expected}, got {self.verify!r}")
        for name, value, known in (
            ("weights", self.weights, WEIGHTS),
            ("packing", self.packing, PACKING),
        ):
            if value not in known:
                raise ExportError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        Keep(self.keep)

    @property
    def depth(self) -> str:
        """How deeply a plan is verified; empty for not at all."""
        return DEPTHS[self.verify]

    @property
    def replaceable(self) -> bool:
        """Whether a session may replace weights."""
        return self.weights == "replaceable"

    @property
    def packs_at_open(self) -> bool:
        """Whether the plan is to have plain weights, which sessions pack."""
        return self.packing == "at_open"

    def fingerprint(self) -> str:
        """Return a SHA-256, in hexadecimal, of what decides the plan, equal in every process.

        Raises
        ------
        ExportError
            If something of it is not plain data, which therefore has none: a pass that is a
            function, a partition, a trace to be written. It names the first such parameter.
        """
        given = self._asdict().items()
        parts = [(name, _plain(name, value)) for name, value in given if name not in _ASIDE]
        users = registered_among(self.passes)
        if users:
            raise ExportError(f"passes: expected Taper's for a fingerprint, got {users[0]!r}")
        return sha256(repr(parts).encode()).hexdigest()


#: What an export is asked for where nobody says anything.
DEFAULTS = Options()


def _plain(name: str, value: object) -> object:
    """Return a value as plain data, whose repr is one for equal values."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict):
        items = [(_plain(name, key), _plain(name, item)) for key, item in value.items()]
        return "dict", sorted(items, key=repr)
    if isinstance(value, torch.export.Dim):
        return "Dim", value.__name__, value.min, value.max
    if isinstance(value, type(torch.export.Dim.AUTO)):
        return "hint", repr(value)
    raise ExportError(f"{name}: expected plain data for a fingerprint, got {value!r}")
