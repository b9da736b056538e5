"""Map devices to levels of kernels, and refuse devices that this CPU or build lacks."""

from __future__ import annotations

import platform

from taper_openinfer.errors import OpenInferError, check_choice
from taper_runtime.native._kernels import available_isas

#: The level of each device's kernels. There are no kernels for AVX alone: a CPU with AVX and
#: nothing newer runs those of the baseline.
LEVELS = {
    "Cpu": "baseline",
    "CpuAvx": "baseline",
    "CpuAvx2": "avx2",
    "CpuAvx512": "avx512",
    "Neon": "neon",
}
_X86 = ("x86_64", "amd64")


def level_of(device: str) -> str:
    """Return the level of a device's kernels.

    Raises
    ------
    OpenInferError
        If the device is unknown, or this build or this CPU does not support it.
    """
    if check_choice("device", device, (*LEVELS, "Vulkan")) == "Vulkan":
        raise OpenInferError(
            "device 'Vulkan' is not built: Taper computes on CPUs alone; expected one of "
            f"{', '.join(available_devices())}"
        )
    if device not in available_devices():
        raise OpenInferError(
            f"device {device!r}: this CPU lacks it; expected one of "
            f"{', '.join(available_devices())}"
        )
    return LEVELS[device]


def available_devices() -> list[str]:
    """Return the devices that this CPU and this build support."""
    levels = available_isas()
    is_x86 = platform.machine().lower() in _X86
    return [
        device
        for device, level in LEVELS.items()
        if level in levels and (device != "CpuAvx" or is_x86)
    ]
