"""Define the record of one sample of an op."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sample(NamedTuple):
    """One test case: values in, attrs, and whether a native kernel is expected to serve it."""

    inputs: Sequence[Any]  # numpy.ndarray, or None where an optional one is absent
    attrs: Mapping[str, Any] = MappingProxyType({})
    native: bool = True
    formats: Mapping[int, str] = MappingProxyType({})  # of inputs that are not plain
