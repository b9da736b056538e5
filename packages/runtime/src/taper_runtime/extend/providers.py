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
    from taper_runtime.machine.choices import Choice
    from taper_runtime.native._kernels import Kernel

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
_NO_KERNELS: Mapping[str, str] = {}


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
    kernels : mapping of str to str
        By op, the name of the only kernel, or of the only variant of one, that may compute it.
    choice : Choice or None
        Chooses among the kernels that serve a node; with None the first of them is taken.
    """

    providers: tuple[str, ...] = OURS
    delegates: Mapping[str, type[Delegate]] = _NO_DELEGATES
    isa: str | None = None
    kernels: Mapping[str, str] = _NO_KERNELS
    choice: Choice | None = None

    def chooser(self, op: str) -> Choice | None:
        """Return what chooses among the kernels of an op; None where the first one is taken."""
        if op not in self.kernels:
            return self.choice
        from taper_runtime.machine.choices import FIRST, Forced

        return Forced(self.kernels[op], self.choice or FIRST)

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


def check_kernels(names: Mapping[str, str], isa: str | None) -> None:
    """Check the names of kernels and variants that a session is asked for, by op.

    Raises
    ------
    InputError
        On an unknown op, or a name that no kernel of the op and no variant has; with those that
        exist.
    """
    if not names:
        return
    from taper_runtime.base.text import unknown
    from taper_runtime.native._kernels import find_kernels
    from taper_runtime.ops import REGISTRY

    for op, name in names.items():
        if op not in REGISTRY:
            raise InputError(f"kernels: {unknown('op', op, REGISTRY)}")
        found = [*_user_kernels(op), *find_kernels(op, isa)]
        known = [kernel.name for kernel in found]
        known += [variant.name for kernel in found for variant in kernel.variants]
        if name not in known:
            raise InputError(f"kernels: {unknown(f'kernel of {op}', name, known)}")


def _user_kernels(op: str) -> list[Kernel]:
    """Return the kernels of an op in users' libraries."""
    if "taper_runtime.extend.kernels" not in sys.modules:
        return []
    from taper_runtime.extend.kernels import library_kernels

    return library_kernels(op)


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
