"""Register users' kernels, Python functions and C libraries, by op or by ATen target."""

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

#: A function of ``(inputs, outputs, attrs)`` that writes ``outputs`` and returns nothing.
Function = Callable[
    [tuple["np.ndarray | None", ...], tuple["np.ndarray", ...], Mapping[str, Any]], None
]

#: The provider of kernels registered without one.
USER = "User"

_PREFIX = "torch.ops."

#: The attrs of a kernel in C of an ATen target, with their types.
_CALL_ATTRS = {"arguments": "string"}


class UserKernel(NamedTuple):
    """A kernel of a user.

    Attributes
    ----------
    name : str
    key : str
        The op or the ATen target whose nodes it computes.
    provider : str
    dtypes : frozenset of str
        The dtypes that its inputs and outputs may have; empty for any.
    code : callable, type of Server or Kernel
    library : str
        The path of the library that a kernel in C comes from.
    """

    name: str
    key: str
    provider: str
    dtypes: frozenset[str]
    code: Function | type[Server] | Kernel
    library: str = ""


_KERNELS: dict[str, UserKernel] = {}  # by name, in the order of registration


def register_kernel(
    target: str,
    kernel: Function | type[Server],
    *,
    name: str,
    dtypes: Sequence[str] | None = None,
    provider: str = USER,
    replace: bool = False,
) -> None:
    """Register a Python kernel that computes nodes, for sessions opened from now on.

    It is preferred to our kernels if its provider comes before ``"NativeCPU"`` in the session's
    ``providers``, which is the default. If several kernels fit a node, the last registered one is
    used.

    Parameters
    ----------
    target : str
        An op of Taper, ``"RELU"``, for all its nodes with any attrs. Or an op that the exported
        program calls, ``"aten.relu.default"`` or ``"torch.ops.aten.relu.default"``: for each node
        that computes one whole call of it, in any plan, and for all its calls in plans that were
        exported with ``keep=["aten.relu.default"]``. There is no list of ATen's ops to check it
        against; a session warns of a kernel that computes no node, with the nearest target.
    kernel : callable or type of Server
        A function ``kernel(inputs, outputs, attrs)`` that writes every element of the arrays in
        ``outputs`` and returns nothing. ``inputs`` are read-only arrays, or None for absent ones;
        for an ATen call they are its tensors in order. ``attrs`` are all attrs of the op, or the
        call's arguments that are not tensors, by name. Several threads may call it at once, and it
        must not keep the arrays. Writes outside of the arrays are not detected. If a kernel keeps
        data that derive from its weights or sizes, pass a subclass of :class:`taper_runtime.Server`
        instead; each session makes an object of it for each node.
    name : str
        Its name in profiles and in ``session.kernel_kinds()``.
    dtypes : sequence of str, optional
        The kernel is used only for nodes all of whose tensors have one of these dtypes. bfloat16
        arrays are passed as uint16.
    provider : str
        Its name in ``providers``; several kernels may have the same provider.
    replace : bool
        Whether to replace a kernel of the same name.

    Raises
    ------
    InputError
        If the name exists already, the op or a dtype is unknown (the message has the nearest name,
        or lists those that exist), or the provider's name is one of ours.
    """
    for field, text in (("target", target), ("name", name), ("provider", provider)):
        if not isinstance(text, str):
            raise InputError(f"{field}: expected a string, got {type(text).__name__}")
    if isinstance(kernel, type):
        from taper_runtime.extend.servers import Server

        if not issubclass(kernel, Server) or kernel.kind != Server.kind:
            raise InputError(
                f"kernel {name!r}: expected a function, or a subclass of Server that is not "
                f"a Delegate, got {kernel.__name__}"
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
    """Load a library of C kernels, for sessions opened from now on; it runs in this process.

    The library exports ``const taper_library *taper_kernels(void)``, see ``taper/kernels.h`` in
    :func:`get_include`. Its kernels name Taper ops or ATen ops, like ``target`` in
    :func:`register_kernel`.

    Parameters
    ----------
    path : path
        The path of a shared library. Load only libraries that you trust.
    provider : str
        See :func:`register_kernel`.

    Returns
    -------
    list of str
        The names of its kernels.

    Raises
    ------
    InputError
        If it lacks this function, was built for another version of the interface, or has a kernel
        with an unknown op, with attrs that differ from the op's, or with a name that is taken. Then
        none of its kernels is registered.
    OSError
        If the library cannot be loaded.
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
        what, defined = f"a call of {key}", _CALL_ATTRS
        if key in REGISTRY:
            what, defined = key, {name: attr.type for name, attr in REGISTRY[key].attrs.items()}
        if code.attrs != defined:
            raise InputError(
                f"{os.fspath(path)}: kernel {code.name!r}: expected the attrs of {what}, "
                f"{defined}, got {code.attrs}"
            )
        kernels.append(UserKernel(code.name, key, provider, frozenset(), code, os.fspath(path)))
    for kernel in kernels:
        _check(kernel, False)
    for kernel in kernels:
        _KERNELS[kernel.name] = kernel
    return [kernel.name for kernel in kernels]


def unregister_kernel(name: str) -> None:
    """Unregister a kernel; open sessions keep it.

    Raises
    ------
    InputError
        If there is no kernel of this name; the message lists those that exist.
    """
    if not is_one_of(name, _KERNELS):
        raise InputError(unknown("kernel", str(name), _KERNELS))
    del _KERNELS[name]


def get_include() -> str:
    """Return the folder with the C headers for :func:`load_kernels`."""
    from importlib.resources import files

    # Found through a file, because in an editable installation the folder is elsewhere.
    header = str(files("taper_runtime").joinpath("include", "taper", "kernels.h"))
    return header[: -len("/taper/kernels.h")]


def user_providers() -> list[str]:
    """Return the providers of the registered kernels, the last registered one first."""
    return list(dict.fromkeys(kernel.provider for kernel in reversed(_KERNELS.values())))


def is_computed(target: str) -> bool:
    """Return whether a kernel is registered for an op or an ATen target."""
    return any(kernel.key == target for kernel in _KERNELS.values())


def library_kernels(op: str) -> list[Kernel]:
    """Return the kernels for an op in users' libraries."""
    codes = [kernel.code for kernel in _KERNELS.values() if kernel.key == op]
    return [code for code in codes if not callable(code)]


def find_kernels(
    provider: str, node: PlanNode, types: Sequence[TensorType | None]
) -> list[UserKernel]:
    """Return a provider's kernels for a node, the last registered one first.

    Parameters
    ----------
    provider : str
    node : PlanNode
    types : sequence of TensorType or None
        The types of the inputs and outputs. Python functions get only plain tensors.
    """
    is_call = node.op == "CALL" or node.arguments is not None
    keys = {node.op, *(node.targets if is_call else ())}
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
    """Return the op or the ATen target of a kernel, checked."""
    key = target.removeprefix(_PREFIX)
    if key in REGISTRY and REGISTRY[key].blocks:
        raise InputError(f"kernel {name!r}: expected an op without blocks, got {key!r}")
    if key in REGISTRY:
        return key
    namespace, _, rest = key.partition(".")
    if namespace == "aten" and rest.count(".") != 1:
        raise InputError(
            f"kernel {name!r}: expected an ATen op with its overload, such as 'aten.relu.default', "
            f"got {key!r}"
        )
    if rest:
        return key
    text = unknown("op", key, REGISTRY)
    raise InputError(f"kernel {name!r}: {text}, or an ATen target such as 'aten.relu.default'")


def registered_kernels() -> list[UserKernel]:
    """Return all registered kernels."""
    return list(_KERNELS.values())


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
            f"kernel {kernel.name!r}: provider {kernel.provider!r}: expected a name that "
            "Taper and ONNX Runtime do not use"
        )
