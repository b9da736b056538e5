"""Name the devices that a session computes on, as PyTorch spells them."""

from __future__ import annotations

import re

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple

_SPELLING = re.compile(r"(cpu|cuda)(?::(0|[1-9]\d{0,3}))?", re.ASCII)


class Device(NamedTuple):
    """A device.

    Attributes
    ----------
    kind : str
        ``"cpu"`` or ``"cuda"``.
    number : int
        Which of the kind.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return "cpu" if self == ("cpu", 0) else f"{self.kind}:{self.number}"


def parse_device(text: object) -> Device:
    """Return the device of a name: ``"cpu"``, ``"cuda"``, the first of its kind, or ``"cuda:1"``.

    Raises
    ------
    InputError
        If it is no such name.
    """
    found = _SPELLING.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"device: expected 'cpu', 'cuda' or 'cuda:<number>', got {text!r}")
    return Device(found[1], int(found[2] or 0))


def available_devices() -> list[Device]:
    """Return the devices that sessions can compute on: the CPU, whose cores are one device."""
    return [Device("cpu", 0)]


def check_device(text: str) -> None:
    """Check that a session can compute on a device.

    Raises
    ------
    InputError
        If it is not there; it lists those that are.
    """
    if parse_device(text) not in available_devices():
        there = ", ".join(map(str, available_devices()))
        raise InputError(f"device: expected one that is there ({there}), got {text!r}")
