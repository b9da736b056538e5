"""Name the devices of sessions in PyTorch's spelling."""

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
        The number of the device among those of its kind.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        return "cpu" if self == ("cpu", 0) else f"{self.kind}:{self.number}"


def parse_device(name: object) -> Device:
    """Parse a device name: ``"cpu"``; ``"cuda"``, which is the first one; or ``"cuda:1"``.

    An object whose text is such a name will do, as a ``torch.device``.

    Raises
    ------
    InputError
        If it is not such a name.
    """
    found = _SPELLING.fullmatch(str(name))
    if found is None:
        raise InputError(f"device: expected 'cpu', 'cuda' or 'cuda:<number>', got {name!r}")
    return Device(found[1], int(found[2] or 0))


def available_devices() -> list[Device]:
    """Return the devices that sessions can use: the CPU, whose cores are one device."""
    return [Device("cpu", 0)]


def check_device(text: str) -> None:
    """Check that a session can use a device.

    Raises
    ------
    InputError
        If it is not available; the message lists the available ones.
    """
    if parse_device(text) not in available_devices():
        known = ", ".join(map(str, available_devices()))
        raise InputError(f"device: expected one of {known}, got {text!r}")
