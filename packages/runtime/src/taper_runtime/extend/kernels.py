"""Register kernels of users: Python functions, and C libraries, by op or by ATen target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import flag
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import is_one_of, unknown
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    import os

    import numpy as np

    from taper_runtime.extend.servers import Server
    from taper_runtime.native._kernels import Kernel
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import PlanNode

#: ``(inputs, outputs, attrs)``: writes ``outputs``, returns nothing.
Function = Callable[
    [tuple["np.ndarray | None", ...], tuple["np.ndarray", ...], Mapping[str, Any]], None
]

#: The provider of kernels that name none.
USER = "User"

_PREFIX = "torch.ops."


class UserKernel(NamedTuple):
    """A kernel that is not ours.

    Attributes
    ----------
    name : str
    key : str
        The op, or the ATen target, whose nodes it computes.
    provider : str
    dtypes : frozenset of str
        What its inputs and outputs may be; any where it is empty.
    code : callable, type of Server or Kernel
    """

    name: str
    key: str
    provider: str
    dtypes: frozenset[str]
    code: Function | type[Server] | Kernel


_KERNELS: dict[str, UserKernel] = {}  # by name, the one registered last at the end


def register_kernel(
    target: str,
    kernel: Function | type[Server],
    *,
    name: str,
    dtypes: Sequence[str] | None = None,
    provider: str = USER,
    replace: bool = False,
) -> None:
    """Register a kernel in Python that computes nodes, for sessions opened from now on.

    It comes before our kernels in a session whose ``providers`` have its provider before
    ``"NativeCPU"``, as they have by default. Of two for one node the one registered last is taken.

    Parameters
    ----------
    target : str
        An op of Taper, ``"RELU"``: all its nodes, whatever their attrs are. Or an ATen op,
        ``"aten.relu.default"`` or ``"torch.ops.aten.relu.default"``: its calls in plans that were
        exported with ``keep=["aten.relu.default"]``.
    kernel : callable or type of Server
        A function ``kernel(inputs, outputs, attrs)`` that writes every element of the arrays in
        ``outputs`` and returns nothing. ``inputs`` are read-only arrays, None for those that are
        absent; those of a call are its tensors in order. ``attrs`` are the op's, all of them, or
        the call's arguments that are no tensors, by name. Several threads may call it at once, and
        it must not keep the arrays. What it writes outside of them is not detected. A kernel that
        keeps something made of its weights or sizes is a subclass of :class:`taper_runtime.Server`
        instead, of which each session makes an object for each node.
    name : str
        What profiles and ``session.kernel_kinds()`` call it.
    dtypes : sequence of str, optional
        It computes only nodes all of whose tensors have one of these. bfloat16 comes as uint16.
    provider : str
        What ``providers`` calls it; several kernels may have one provider.
    replace : bool
        Take the place of a kernel of this name.

    Raises
    ------
    InputError
        If there is such a name already; on an unknown op or dtype, listing those that exist; on a
        provider's name that is one of ours.
    """
    for field, text in (("target", target), ("name", name), ("provider", provider)):
        if not isinstance(text, str):
            raise InputError(f"{field}: expected a string, got {type(text).__name__}")
    if isinstance(kernel, type):
        from taper_runtime.extend.servers import Server

        if not issubclass(kernel, Server) or kernel.kind != Server.kind:
            raise InputError(
                f"kernel {name!r}: expected a function, or a subclass of Server that is no "
                f"Delegate, got {kernel.__name__}"
            )
    elif not callable(kernel):
        raise InputError(f"kernel {name!r}: expected a function, got {type(kernel).__name__}")
    names = () if dtypes is None else dtypes
    if isinstance(names, str) or not isinstance(names, (Sequence, Set)):
        got = type(names).__name__
        raise InputError(f"kernel {name!r}: expected a list of names of dtypes, got {got}")
    for dtype in names:
        if not is_one_of(dtype, DTYPES):
            raise InputError(
                f"kernel {name!r}: unknown dtype {dtype!r}; expected some of {list(DTYPES)}"
            )
    replaces = flag("replace", replace)
    _add(UserKernel(name, _key(name, target), provider, frozenset(names), kernel), replaces)


def load_kernels(path: str | os.PathLike[str], *, provider: str = USER) -> list[str]:
    """Load a library of kernels in C, for sessions opened from now on; its code runs in here.

    The library exports ``const taper_library *taper_kernels(void)``, see ``taper/kernels.h`` in
    :func:`get_include`. Its kernels' ops are names of Taper's ops or of ATen ops, as the targets of
    :func:`register_kernel`.

    Parameters
    ----------
    path : path
        Of a shared library. Load those alone whose makers you trust.
    provider : str
        As in :func:`register_kernel`.

    Returns
    -------
    list of str
        The names of its kernels.

    Raises
    ------
    InputError
        If it has no such function, was built for another version of the interface, has a kernel of
        an unknown op or with other attrs than the op, or a name that is taken: nothing of it is
        registered then.
    OSError
        If it cannot be loaded.
    """
    import ctypes
    import os

    from taper_runtime.file.mapping import check_path
    from taper_runtime.native._kernels import read_library

    check_path(path)
    if not isinstance(provider, str):
        raise InputError(f"provider: expected a string, got {type(provider).__name__}")
    library = ctypes.CDLL(os.fspath(path))
    try:
        table = library.taper_kernels
    except AttributeError:
        raise InputError(f"{os.fspath(path)}: expected a function taper_kernels") from None
    table.restype = ctypes.c_void_p
    found = read_library(table() or 0, library, os.fspath(path))
    kernels = []
    for code in found:
        key = _key(code.name, code.op)
        op = REGISTRY["CALL" if key not in REGISTRY else key]
        defined = {name: attr.type for name, attr in op.attrs.items()}
        if code.attrs != defined:
            raise InputError(
                f"{os.fspath(path)}: kernel {code.name!r}: expected the attrs of {op.name}, "
                f"{defined}, got {code.attrs}"
            )
        kernels.append(UserKernel(code.name, key, provider, frozenset(), code))
    for kernel in kernels:
        _check(kernel, False)
    for kernel in kernels:
        _KERNELS[kernel.name] = kernel
    return [kernel.name for kernel in kernels]


def unregister_kernel(name: str) -> None:
    """Forget a kernel; sessions that are open keep it.

    Raises
    ------
    InputError
        If there is none of this name, listing those that exist.
    """
    if not is_one_of(name, _KERNELS):
        raise InputError(unknown("kernel", str(name), _KERNELS))
    del _KERNELS[name]


def get_include() -> str:
    """Return the folder of the C headers that :func:`load_kernels` is about."""
    from importlib.resources import files

    # By way of a file: in an editable installation the folder is another one.
    header = str(files("taper_runtime").joinpath("include", "taper", "kernels.h"))
    return header[: -len("/taper/kernels.h")]


def user_providers() -> list[str]:
    """Return the providers of the registered kernels, the one registered last first."""
    return list(dict.fromkeys(kernel.provider for kernel in reversed(_KERNELS.values())))


def library_kernels(op: str) -> list[Kernel]:
    """Return the kernels for an op that users' libraries have."""
    codes = [kernel.code for kernel in _KERNELS.values() if kernel.key == op]
    return [code for code in codes if not callable(code)]


def find_kernels(
    provider: str, node: PlanNode, types: Sequence[TensorType | None]
) -> list[UserKernel]:
    """Return a provider's kernels for a node, the one registered last first.

    Parameters
    ----------
    provider : str
    node : PlanNode
    types : sequence of TensorType or None
        Of the inputs and outputs. A Python function gets plain tensors only.
    """
    keys = {node.op, *(node.targets if node.op == "CALL" else ())}
    present = [type_ for type_ in types if type_ is not None]
    dtypes = {type_.dtype for type_ in present}
    plain = all(type_.format == PLAIN for type_ in present)
    return [
        kernel
        for kernel in reversed(_KERNELS.values())
        if kernel.provider == provider
        and kernel.key in keys
        and (not kernel.dtypes or dtypes <= kernel.dtypes)
        and (plain or not callable(kernel.code))
    ]


def _key(name: str, target: str) -> str:
    """Return the op or the ATen target that a kernel is for."""
    key = target.removeprefix(_PREFIX)
    if key in REGISTRY and REGISTRY[key].blocks:
        raise InputError(f"kernel {name!r}: expected an op without blocks, got {key!r}")
    if key in REGISTRY or key.count(".") >= 1:
        return key
    text = unknown("op", key, REGISTRY)
    raise InputError(f"kernel {name!r}: {text}, or an ATen target such as 'aten.relu.default'")


def _add(kernel: UserKernel, replace: bool) -> None:
    _check(kernel, replace)
    _KERNELS.pop(kernel.name, None)
    _KERNELS[kernel.name] = kernel


def _check(kernel: UserKernel, replace: bool) -> None:
    from taper_runtime.extend.providers import OURS

    if kernel.name in _KERNELS and not replace:
        raise InputError(f"kernel {kernel.name!r} is registered already")
    if kernel.provider.endswith("ExecutionProvider") or kernel.provider in OURS:
        raise InputError(
            f"kernel {kernel.name!r}: provider {kernel.provider!r}: expected a name of your own"
        )
