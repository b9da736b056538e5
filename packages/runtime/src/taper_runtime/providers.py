"""Execution providers as ONNX Runtime names them. Here is one: the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taper_runtime.errors import InputError
from taper_runtime.text import nearest

CPU = "CPUExecutionProvider"

#: Names that ONNX Runtime has for providers that are absent here.
_ABSENT = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "Dnnl", "Tvm",
        "VitisAI", "QNN", "SNPE", "Nnapi", "VSINPU", "Js", "CoreML", "ArmNN", "ACL", "Dml",
        "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure",
    )
)  # fmt: skip


def get_available_providers() -> list[str]:
    """Return the providers of this installation: the CPU's."""
    return [CPU]


def get_all_providers() -> list[str]:
    """Return every provider's name that a session knows, the CPU's last."""
    return [*_ABSENT, CPU]


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def check_providers(
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
) -> None:
    """Check the providers a session is asked for, and warn of those that are absent.

    The CPU computes what they would, in whatever order they stand. Their options have no effect.

    Raises
    ------
    InputError
        On a name that is no provider's, or options that are no mappings, one per provider.
    """
    names = [_name(item) for item in _list("providers", providers)]
    options = _list("provider_options", provider_options)
    if options and len(options) != len(names):
        raise InputError(
            f"provider_options: expected one per provider, {len(names)}, got {len(options)}"
        )
    for item in options:
        _check_options(item)
    absent = [name for name in dict.fromkeys(names) if name != CPU]
    if absent:
        import warnings

        warnings.warn(
            f"{', '.join(absent)}: not available here, the CPU computes instead; available: {CPU}",
            UserWarning,
            stacklevel=3,
        )


def _list(what: str, value: object) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"{what}: expected a list, got {value!r}")
    return value


def _name(item: object) -> str:
    name = item
    if isinstance(item, tuple) and len(item) == 2:
        name, options = item
        _check_options(options)
    if not isinstance(name, str):
        raise InputError(f"providers: expected names or (name, options), got {item!r}")
    if name != CPU and name not in _ABSENT:
        near = nearest(name, get_all_providers()) or CPU
        raise InputError(f"providers: unknown provider {name!r}; did you mean {near!r}?")
    return name


def _check_options(options: object) -> None:
    if not isinstance(options, Mapping):
        raise InputError(f"provider options: expected a mapping, got {options!r}")
