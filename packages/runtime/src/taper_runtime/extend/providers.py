"""List execution providers, which can compute nodes, in order of preference.

``NativeCPU`` is our kernels in C. ``Numpy`` is the ops' evaluators. ``CPUExecutionProvider``, a
name of ONNX Runtime, is both. Users' kernels have providers of their own.
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
    from taper_runtime.extend.fallbacks import Fallbacks
    from taper_runtime.machine.choices import Choice
    from taper_runtime.native._kernels import Kernel

CPU = "CPUExecutionProvider"
NATIVE, NUMPY = "NativeCPU", "Numpy"
OURS = (NATIVE, NUMPY)

#: ONNX Runtime's names of providers that do not exist here.
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
    """The means by which a session may compute its nodes.

    Attributes
    ----------
    providers : tuple of str
        The providers in order of preference: ``NativeCPU``, ``Numpy`` and those of users' kernels.
    delegates : mapping of str to type of Delegate
        The delegates by backend. If a backend is absent, its subgraphs are run as graphs.
    isa : str or None
        The ISA level of our kernels. None is that of ``TAPER_ISA``, or else the best of this CPU.
    kernels : mapping of str to str
        For an op, the name of the only kernel or variant that may compute it.
    choice : Choice or None
        Chooses among the kernels that support a node; with None the first one is used.
    fallbacks : Fallbacks or None
        Makes the delegates of a session; with None these are objects of their classes.
    """

    providers: tuple[str, ...] = OURS
    delegates: Mapping[str, type[Delegate]] = _NO_DELEGATES
    isa: str | None = None
    kernels: Mapping[str, str] = _NO_KERNELS
    choice: Choice | None = None
    fallbacks: Fallbacks | None = None

    def chooser(self, op: str) -> Choice | None:
        """Return the choice among the kernels of an op; None if the first one is used."""
        if op not in self.kernels:
            return self.choice
        from taper_runtime.machine.choices import FIRST, Forced

        return Forced(self.kernels[op], self.choice or FIRST)

    def without_numpy(self) -> Dispatch:
        """Return the same dispatch without numpy."""
        return self._replace(providers=tuple(name for name in self.providers if name != NUMPY))


#: The default: our kernels, then numpy.
CPU_ALONE = Dispatch()


def get_available_providers() -> list[str]:
    """Return the valid names for a session's ``providers``: users' providers, and the CPU's."""
    return [*_users(), CPU, *OURS]


def get_all_providers() -> list[str]:
    """Return every provider's name that a session knows; unavailable ones come first."""
    return [*_ABSENT, *get_available_providers()]


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def choose_providers(
    providers: Sequence[str | tuple[str, Mapping[str, object]]] | None,
    provider_options: Sequence[Mapping[str, object]] | None = None,
) -> tuple[str, ...]:
    """Check the requested providers, and warn of those that do not exist here.

    Returns
    -------
    tuple of str
        The available ones, without duplicates, under the requested names. If none is available, the
        CPU's. By default users' providers, then the CPU's.

    Raises
    ------
    InputError
        If a name is not a provider's, or the options are not mappings, one per provider.
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
    """Check the requested names of kernels and variants, by op.

    Raises
    ------
    InputError
        If an op is unknown, or no kernel or variant of the op has the name. The message lists those
        that exist.
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
    """Return the providers that these names mean; the CPU's name means two."""
    found = [name for each in names for name in (OURS if each == CPU else (each,))]
    return tuple(dict.fromkeys(found))


def _users() -> list[str]:
    """Return the providers of users' kernels; none before that module is imported."""
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
    """Return the name of a provider, checked; options beside it are checked, too."""
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
