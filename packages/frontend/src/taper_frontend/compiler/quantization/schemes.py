"""Say how weights and activations are quantized: schemes, and the options that choose them."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from taper_frontend.compiler.quantization.factored import FORMAT, GROUP, ROWS
from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.blocks import LEVELS
from taper_runtime.formats.panels import PANEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Bits of the integers that formats keep with and without zero points.
_BITS = [
    bits for bits, levels in LEVELS.items() if isinstance(bits, int) and "zeros" in levels.shifts
]

#: The scheme of a weight that stays as it is.
FLOAT32 = "float32"

#: Schemes that only round weights.
HALVES = ("float16", "bfloat16")

_SCALES = ("float16", "bfloat16", "float32")

#: The group of a scheme with fewer than 8 bits whose name has none.
_GROUP = 32

#: The groups that schemes may have.
_GROUPS = (8, 16, 32, 64, 128, 256)

#: How activations are quantized: not at all; by each run, to bfloat16, for each group of a row or
#: for each row; or by calibrated numbers.
ACTIVATIONS = ("", "rounded", "grouped", "dynamic", "static")

#: How the range of a calibrated tensor is chosen from what was seen of it.
OBSERVERS = ("minmax", "percentile", "mse")


class Scheme(NamedTuple):
    """Way to store a weight.

    Attributes
    ----------
    dtype : str
        ``"float16"``, ``"bfloat16"``, ``"float32"`` for weights that stay as they are, or
        ``"int"``.
    bits, group : int
        Bits of an integer; rows of a column that share a scale, 0 for all of them.
    shift : str
        What stands beside each scale: ``"zeros"`` a zero point, ``"offsets"`` an offset, empty
        nothing. With offsets, the scales of some groups have a common factor; see
        :mod:`.factored`.
    scales : str
        Dtype of the scales.
    """

    dtype: str
    bits: int = 32
    group: int = 0
    shift: str = ""
    scales: str = ""

    @property
    def name(self) -> str:
        """Return the name that :func:`parse_scheme` reads."""
        if self.dtype != "int":
            return self.dtype
        default = _default(self.bits)
        parts = [f"int{self.bits}"]
        if self.group != default.group:
            parts.append(str(self.group) if self.group else "channel")
        if self.shift:
            parts.append(self.shift)
        if self.scales != (default.scales if self.group == default.group else _SCALES[0]):
            parts.append(self.scales)
        return ".".join(parts)

    @property
    def least(self) -> int:
        """Return the least integer: symmetric integers of 8 bits have no -128."""
        least = -(1 << (self.bits - 1))
        return least + 1 if self.bits == 8 and not self.shift else least

    @property
    def most(self) -> int:
        """Return the largest integer."""
        return (1 << (self.bits - 1)) - 1

    def bytes(self, rows: int, columns: int) -> float:
        """Return how many bytes a matrix takes."""
        if self.dtype != "int":
            return rows * columns * DTYPES[self.dtype].size
        if self.shift == "offsets":
            of_rows = sum(FORMAT.head) + ROWS // GROUP * sum(FORMAT.block)
            return columns * rows / ROWS * of_rows / PANEL
        blocks = rows / (self.group or rows)
        beside = DTYPES[self.scales].size + (self.bits / 8 if self.shift else 0)
        return columns * (rows * self.bits / 8 + blocks * beside)

    def fitting(self, rows: int) -> Scheme:
        """Return the scheme of a matrix of so many rows: offsets need whole groups of groups."""
        has_offsets = self.shift == "offsets"
        return self._replace(shift="zeros") if has_offsets and rows % ROWS else self


def _default(bits: int) -> Scheme:
    if bits == 8:
        return Scheme("int", 8, 0, "", "float32")
    return Scheme("int", bits, _GROUP, "", "float16")


def parse_scheme(text: str) -> Scheme:
    """Read a scheme's name.

    Parameters
    ----------
    text : str
        ``"float32"``, ``"float16"``, ``"bfloat16"``, or ``"intBITS"`` with any of these parts
        behind it, joined by dots: a group or ``channel``, ``zeros``, and the dtype of the scales.
        ``"int4.offsets"`` has no other group or dtype.
        ``"int8"`` has a float32 scale for each channel, ``"int4"`` a float16 scale for each 32 rows
        of a column. Example: ``"int4.64.zeros.bfloat16"``.

    Raises
    ------
    ExportError
        If there is no such scheme.
    """
    first, *parts = text.split(".")
    if first in (FLOAT32, *HALVES) and not parts:
        return Scheme(first, 8 * DTYPES[first].size)
    digits = first.removeprefix("int")
    if first == digits or digits not in set(map(str, _BITS)):
        raise _unknown(text)
    scheme = _default(int(digits))
    if parts and (parts[0] == "channel" or parts[0] in map(str, _GROUPS)):
        group = 0 if parts[0] == "channel" else int(parts[0])
        scheme = scheme._replace(group=group, scales=_SCALES[0])
        if group == _default(scheme.bits).group:
            scheme = _default(scheme.bits)
        parts.pop(0)
    if parts == ["offsets"] and scheme == _default(4):
        return scheme._replace(shift=parts[0])
    if parts and parts[0] == "zeros":
        scheme = scheme._replace(shift=parts.pop(0))
    if parts and parts[0] in _SCALES:
        scheme = scheme._replace(scales=parts.pop(0))
    if parts or scheme.group % LEVELS[scheme.bits].rows:
        raise _unknown(text)
    return scheme


def _unknown(text: object) -> ExportError:
    ints = ", ".join(f"int{bits}" for bits in sorted(_BITS, reverse=True))
    return ExportError(
        f"scheme: expected {FLOAT32}, {', '.join(HALVES)}, or one of {ints} with optional parts "
        f".GROUP (channel, {', '.join(map(str, _GROUPS))}; of int2 from 16 on), "
        f".zeros and .{', .'.join(_SCALES)}, or int4.offsets; got {text!r}"
    )


class QuantizationConfig(NamedTuple):
    """Choice of what to quantize, and how.

    Attributes
    ----------
    weights : str
        The scheme of weights; see :func:`parse_scheme`.
    activations : str
        One of :data:`ACTIVATIONS`. With ``"grouped"``, products by weights of 4 or 8 bits round
        their activations to int8 in groups of up to 128 of a row, in each run. With ``"rounded"``,
        products by bfloat16 weights round their activations to bfloat16. With ``"dynamic"``
        and ``"static"`` weights are int8 with a scale for each channel, and a module is needed:
        see :func:`taper_frontend.quantize`.
    layers : mapping of str to str
        Schemes of single layers: patterns of the names of their weights, as in
        ``{"*.head.*": "int8", "embed*": "float32"}``. The first pattern that matches counts.
    search : bool
        Whether to search for the scales with the least squared error, instead of those that the
        largest magnitude needs.
    max_bytes : int, optional
        The most bytes of all weights: layers get the narrowest of ``choices``, and then a wider
        one where that removes the most error for its bytes.
    max_error : float, optional
        The largest relative error of a weight: each layer gets the narrowest of ``choices`` that
        keeps it.
    choices : tuple of str
        The schemes for ``max_bytes`` and ``max_error``.
    observer : str
        One of :data:`OBSERVERS`, for static activations.
    reduce_range : bool
        Whether static activations have 7 bits, levels from 0 to 127. CPUs without dot products of
        bytes (VNNI on x86) multiply these faster; the others do not.
    correction : bool
        Whether integers of fewer than 8 bits are chosen with the calibration data (GPTQ).
    all_layers : bool
        Whether activations are also quantized of layers that are predicted to be slower with bytes
        than with floats. By default these layers stay float32.
    """

    weights: str = "int8"
    activations: str = ""
    layers: Mapping[str, str] = {}
    search: bool = True
    max_bytes: int | None = None
    max_error: float | None = None
    choices: tuple[str, ...] = ("int4", "int8", FLOAT32)
    observer: str = "minmax"
    reduce_range: bool = False
    correction: bool = True
    all_layers: bool = False

    def check(self) -> None:
        """Check all that can be checked without a model.

        Raises
        ------
        ExportError
            If an option is invalid; the message names it.
        """
        for name in (self.weights, *self.layers.values(), *self.choices):
            parse_scheme(name)
        for option, value, known in (
            ("activations", self.activations, ACTIVATIONS),
            ("observer", self.observer, OBSERVERS),
        ):
            if value not in known:
                raise ExportError(f"{option}: expected one of {known}, got {value!r}")
        if self.max_bytes is not None and self.max_error is not None:
            raise ExportError("max_bytes, max_error: expected one of them, got both")
        if self.max_error is not None and not 0 < self.max_error < math.inf:
            raise ExportError(f"max_error: expected a positive number, got {self.max_error}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ExportError(f"max_bytes: expected at least 1, got {self.max_bytes}")
        if self.reduce_range and self.activations != "static":
            raise ExportError(
                f"reduce_range: expected activations='static' beside it, got {self.activations!r}"
            )
        if self.activations == "rounded" and self.weights not in ("bfloat16", FLOAT32):
            raise ExportError(
                f"weights: expected 'bfloat16' beside activations='rounded', got {self.weights!r}"
            )
        if self.needs_module and parse_scheme(self.weights) != _default(8):
            raise ExportError(
                f"weights: expected 'int8' beside activations={self.activations!r}, got "
                f"{self.weights!r}"
            )

    @property
    def needs_module(self) -> bool:
        """Return whether the module is quantized, rather than a plan's weights alone."""
        return self.activations in ("dynamic", "static")

    def named(self, names: Iterable[str]) -> Scheme | None:
        """Return the scheme that ``layers`` has for a weight made of these parameters.

        A weight of several parameters, as of products that were merged, gets the widest scheme
        that one of them has. None if no pattern matches all of them.
        """
        found = [
            next((parse_scheme(s) for p, s in self.layers.items() if fnmatchcase(name, p)), None)
            for name in names
        ]
        schemes = [self.default if scheme is None else scheme for scheme in found]
        return max(schemes, key=lambda s: s.bits) if any(found) else None

    def check_patterns(self, names: Sequence[str]) -> None:
        """Check that each pattern of ``layers`` matches one of the names of weights.

        Raises
        ------
        ExportError
            If one matches none; the message has some of the names.
        """
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in names):
                few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                raise ExportError(
                    f"layers: expected patterns of weights, but {pattern!r} matches none of {few}"
                )

    @property
    def default(self) -> Scheme:
        """Return the scheme of weights that ``layers`` does not name."""
        return parse_scheme(self.weights)


#: Names of common options, for ``quantize=`` and the command line.
PRESETS = {
    "bfloat16_rounded": QuantizationConfig("bfloat16", activations="rounded"),
    "int4_grouped": QuantizationConfig("int4", activations="grouped"),
    "int8_grouped": QuantizationConfig("int8", activations="grouped"),
    "int8_dynamic": QuantizationConfig(activations="dynamic"),
    "int8_static": QuantizationConfig(activations="static"),
}


def read_quantization(given: object) -> QuantizationConfig:
    """Return options from what a user passes: options, or a preset's or a scheme's name.

    Raises
    ------
    ExportError
        If it is none of these, or an option is invalid.
    """
    if isinstance(given, str):
        given = PRESETS.get(given) or QuantizationConfig(weights=given)
    if not isinstance(given, QuantizationConfig):
        raise ExportError(
            "quantize: expected the name of a scheme or a taper_frontend.QuantizationConfig, "
            f"got {given!r}"
        )
    given.check()
    return given
