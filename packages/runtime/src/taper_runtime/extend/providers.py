"""List execution providers: what may compute nodes, in order of preference.

``NativeCPU`` are our kernels in C, ``Numpy`` the ops' own evaluators; ``CPUExecutionProvider``, a
name of ONNX Runtime's, is both. Kernels of users have providers of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import nearest

if TYPE_CHECKING:
    from taper_runtime.extend.delegates import Delegate

CPU = "CPUExecutionProvider"
NATIVE, NUMPY = "NativeCPU", "Numpy"
OURS = (NATIVE, NUMPY)

#: Names that ONNX Runtime has for providers that are absent here.
_ABSENT = tuple(
    f"{name}ExecutionProvider"
    for name in (
        "NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "Dnnl", "Tvm",
        "VitisAI", "QNN", "SNPE", "Nnapi", "VSINPU", "Js", "CoreML", "ArmNN", "ACL", "Dml",
        "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure",
    )
)  # fmt: skip

_NO_DELEGATES: Mapping[str, type[Delegate]] = {}


class Dispatch(NamedTuple):
    """What may compute a session's nodes.

    Attributes
    ----------
    providers : tuple of str
        In order of preference: ``NativeCPU``, ``Numpy`` and those of users' kernels.
    delegates : mapping of str to type of Delegate
        By backend. The regions of a backend that is absent are run as the graphs that they are.
    isa : str or None
        The level of our kernels; None is that of ``TAPER_ISA``, else the best of this CPU.
    """

    providers: tuple[str, ...] = OURS
    delegates: Mapping[str, type[Delegate]] = _NO_DELEGATES
    isa: str | None = None

    def without_numpy(self) -> Dispatch:
        """Return what remains where numpy is not to compute anything."""
        return self._replace(providers=tuple(name for name in self.providers if name != NUMPY))


#: What computes where nobody says anything: our kernels, then numpy.
CPU_ALONE = Dispatch()


def get_available_providers() -> list[str]:
    """Return what ``providers`` of a session may name: users' providers, and the CPU's."""
    return [*_users(), CPU, *OURS]


def get_all_providers() -> list[str]:
    """Return every provider's name that a session knows; those that are absent first."""
    return [*_ABSENT, *get_available_providers()]


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def choose_providers(
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
) -> tuple[str, ...]:
    """Check the providers a session is asked for, and warn of those that are absent.

    Returns
    -------
    tuple of str
        Those that are here, each once, as they were called. The CPU's where none is; by default
        those of users before it.

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
    absent = [name for name in dict.fromkeys(names) if name in _ABSENT]
    if absent:
        import warnings

        warnings.warn(
            f"{', '.join(absent)}: not available here, the CPU computes instead; available: "
            f"{', '.join(get_available_providers())}",
            UserWarning,
            stacklevel=3,
        )
    here = tuple(name for name in dict.fromkeys(names) if name not in _ABSENT)
    return here or ((*_users(), CPU) if not names else (CPU,))


def computing(names: Sequence[str]) -> tuple[str, ...]:
    """Return what computes for these names: two providers for the CPU's."""
    found = [name for each in names for name in (OURS if each == CPU else (each,))]
    return tuple(dict.fromkeys(found))


def _users() -> list[str]:
    """Return the providers of users' kernels; there are none before that module is imported."""
    if "taper_runtime.extend.kernels" not in sys.modules:
        return []
    from taper_runtime.extend.kernels import user_providers

    return user_providers()


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
    known = get_all_providers()
    if name not in known:
        near = nearest(name, known) or CPU
        raise InputError(
            f"providers: unknown provider {name!r}; did you mean {near!r}? Expected some of "
            f"{', '.join(get_available_providers())}"
        )
    return name


def _check_options(options: object) -> None:
    if not isinstance(options, Mapping):
        raise InputError(f"provider options: expected a mapping, got {options!r}")
