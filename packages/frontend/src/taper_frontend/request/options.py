"""Hold the options of an export in one record."""

from __future__ import annotations

import os
import sys
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.partition import Subgraphs, find_backend
from taper_frontend.compiler.pass_registry import registered_among
from taper_frontend.compiler.quantization.schemes import read_quantization
from taper_frontend.errors import ExportError
from taper_frontend.lowering.keep import Keep
from taper_runtime.base.option_values import PACKING
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.tuned_choice import machine_setting
from taper_runtime.native._kernels import active_isa
from taper_runtime.session.opening import thread_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from taper_frontend.compiler.pipeline import Pass
    from taper_frontend.compiler.quantization.schemes import QuantizationConfig
    from taper_runtime.file.measurements import MachineSetting

#: The values of ``weights``.
WEIGHTS = ("fixed", "replaceable")

#: What ``verify`` may be, and the depth that it is to :func:`.verify_plan`.
DEPTHS = {True: "example", "outputs": "outputs", "deep": "deep", False: ""}

#: Options that do not change the plan of a graph: progress, the place of the weights that the graph
#: names, the name of the program that it was read from, and the cache.
_ASIDE = frozenset({"progress", "checkpoint", "model", "cache"})


class Options(NamedTuple):
    """The arguments of :func:`taper_frontend.export` other than the module and its example.

    Attributes are the function's parameters; ``trace`` is the result of :func:`.trace_path`.
    """

    input_names: Sequence[str] | None = None
    output_names: Sequence[str] | None = None
    dynamic_shapes: Any = None
    dynamic_axes: Mapping[str, Any] | None = None
    passes: Sequence[Pass | str] | None = None
    keep: Sequence[str] = ()
    partition: Subgraphs | None = None
    delegate: str | None = None
    verify: bool | str = True
    progress: bool | Callable[[str], None] = False
    metadata: Mapping[str, str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    trace: Path | None = None
    weights: str = "fixed"
    packing: str = "stored"
    model: str | None = None
    quantize: QuantizationConfig | str | None = None
    strict: bool = False
    cache: str | os.PathLike[str] | bool | None = None
    memory_budget: int | None = None
    tuned: str | os.PathLike[str] | None = None
    require_tuned: bool = False
    other_bits: bool = False

    def check(self) -> None:
        """Check everything that can be checked without a module.

        Raises
        ------
        ExportError
            If an option is invalid; the message names the parameter.
        """
        if not all(
            isinstance(text, str) for pair in (self.metadata or {}).items() for text in pair
        ):
            raise ExportError(f"metadata: expected a dict of strings, got {self.metadata!r}")
        if (self.partition is None) != (self.delegate is None):
            raise ExportError("partition, delegate: expected both or neither, got one of them")
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
        if self.memory_budget is not None:
            self._check_budget(self.memory_budget)
        self._check_tuned(self.tuned)
        if self.quantize is not None:
            read_quantization(self.quantize)
            if self.replaceable:
                raise ExportError(
                    "quantize: expected None beside weights='replaceable', since other weights "
                    "would need other scales"
                )

    def _check_tuned(self, tuned: object) -> None:
        """Check the options about measured times."""
        for name in ("require_tuned", "other_bits"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise ExportError(f"{name}: expected True or False, got {value!r}")
            if value and tuned is None:
                raise ExportError(
                    f"{name}: expected the database of `taper tune` in tuned, got None"
                )
        if tuned is None:
            return
        if not isinstance(tuned, (str, os.PathLike)) or not os.fspath(tuned):
            raise ExportError(f"tuned: expected a path or None, got {tuned!r}")
        for name in ("memory_budget", "quantize"):
            if getattr(self, name) is not None:
                raise ExportError(
                    f"tuned: expected None beside {name}, for which the plan is made again in "
                    "other forms; export with one of them"
                )

    def _check_budget(self, budget: object) -> None:
        if type(budget) is not int or not 1 <= budget < 1 << 63:
            raise ExportError(
                f"memory_budget: expected bytes, an int from 1 to 2**63 - 1, got {budget!r}"
            )

    @property
    def depth(self) -> str:
        """Return the depth of verification; empty for none."""
        return DEPTHS[self.verify]

    @property
    def replaceable(self) -> bool:
        """Return whether a session may replace weights."""
        return self.weights == "replaceable"

    @property
    def packs_at_open(self) -> bool:
        """Return whether the plan has plain weights, which sessions pack."""
        return self.packing == "at_open"

    @property
    def keeps_plain(self) -> bool:
        """Return whether a plan needs plain weights until the end of the export."""
        return self.packs_at_open or self.quantize is not None or self.tuned is not None

    @property
    def quantizes_activations(self) -> bool:
        """Return whether a module is quantized before it is captured."""
        return self.quantize is not None and read_quantization(self.quantize).needs_module

    @property
    def quantizes_weights(self) -> bool:
        """Return whether weights are quantized in the finished plan."""
        return self.quantize is not None and not self.quantizes_activations

    def fingerprint(self) -> str:
        """Return a SHA-256, in hexadecimal, of the options that decide the plan.

        It is equal in every process.

        Raises
        ------
        ExportError
            If an option is not plain data, and so has no fingerprint: a pass that is a function, a
            partition, or a trace to be written. The message names the first such parameter.
        """
        given = {**self._asdict(), "tuned": self._times()}.items()
        parts = [(name, _plain(name, value)) for name, value in given if name not in _ASIDE]
        users = registered_among(self.passes)
        if users:
            raise ExportError(
                f"passes: expected only passes of Taper for a fingerprint, got {users[0]!r}"
            )
        return sha256(repr(parts).encode()).hexdigest()

    def _times(self) -> object:
        """Return the parts of the fingerprint about measured times: digest of the file, machine."""
        if self.tuned is None:
            return None
        try:
            with open(self.tuned, "rb") as file:
                digest = file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExportError(f"tuned: {error}") from error
        return [digest, *map(str, machine_of_export())]


def machine_of_export() -> MachineSetting:
    """Return the machine whose times an export uses: this one, with the default threads."""
    return machine_setting(active_isa(), thread_count())


#: The default options.
DEFAULTS = Options()


def _plain(name: str, value: object) -> object:
    """Convert a value to plain data whose repr is the same for equal values."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict):
        items = [(_plain(name, key), _plain(name, item)) for key, item in value.items()]
        return "dict", sorted(items, key=repr)
    if "torch" in sys.modules:
        from torch.export import Dim

        if isinstance(value, Dim):
            return "Dim", value.__name__, value.min, value.max
        if isinstance(value, type(Dim.AUTO)):
            return "hint", repr(value)
    raise ExportError(f"{name}: expected plain data for a fingerprint, got {value!r}")
