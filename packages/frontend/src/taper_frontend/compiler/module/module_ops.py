"""Define modules of PyC's form, a list of ops of nine kinds, with their options and statuses."""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.errors import ExportError
from taper_runtime import RuntimeRails
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

#: PyC's kinds of ops; the number of a kind is its place.
KINDS = ("input", "const", "matmul", "add", "relu", "gelu", "reduce_sum", "layernorm", "output")

#: PyC's numbers of dtypes, and Taper's names.
DTYPES = {"f32": (1, "float32"), "f16": (2, "float16"), "i32": (3, "int32"), "i8": (4, "int8")}

#: Kinds that PyC counts as graph breaks. The CPU of Taper computes all kinds, so there are none.
BREAKS = ("const", "gelu", "reduce_sum", "layernorm", "unknown")

#: How many inputs each kind has, at least and at most.
_ARITY = {
    "input": (0, 0),
    "const": (0, 0),
    "matmul": (2, 2),
    "add": (2, 2),
    "relu": (1, 1),
    "gelu": (1, 1),
    "reduce_sum": (1, 1),
    "layernorm": (1, 3),
    "output": (1, 1),
}

#: The most inputs of an op, and the most dims of a shape.
MAX_INPUTS, MAX_RANK = 8, 8

_FNV_OFFSET, _FNV_PRIME = 1469598103934665603, 1099511628211

MODES = ("balanced", "memory_first", "utilization_first")
CACHE_MODES = ("disabled", "in_memory")


class Status(IntEnum):
    """PyC's statuses; ``error.status`` of what this module raises is one of them."""

    OK = 0
    INVALID_ARGUMENT = 1
    VERIFY_FAILED = 2
    COMPILE_FAILED = 3
    RUNTIME_FAILED = 4


def status_name(number: int) -> str:
    """Return the name of a status; "UNKNOWN" for another number."""
    return Status(number).name if number in list(Status) else "UNKNOWN"


class ModuleError(ExportError):
    """A module or an option cannot be compiled.

    Attributes
    ----------
    status : Status
    code : int
        Of a module that is not valid, what :meth:`Module.verify` returns; else 0.
    """

    def __init__(self, text: str, status: Status, code: int = 0) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class ModuleOp(NamedTuple):
    """One op of a module.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`.
    name : str
        Empty: ``op_`` and the op's place.
    inputs : sequence of int
        The places of earlier ops: a layernorm's are x and perhaps weight and bias.
    shape : sequence of int or None
        None: as inferred, which an input's or a const's cannot be.
    dtype : str
        One of :data:`DTYPES`.
    value : numpy.ndarray or None
        Of a const.
    axes : sequence of int
        Over which a reduce_sum adds up; empty: all.
    eps : float
        Of a layernorm, which is over the last axis.
    """

    kind: str
    name: str = ""
    inputs: Sequence[int] = ()
    shape: Sequence[int] | None = None
    dtype: str = "f32"
    value: np.ndarray | None = None
    axes: Sequence[int] = ()
    eps: float = 1e-5


class Module(NamedTuple):
    """Ops in an order in which each reads earlier ones alone."""

    ops: Sequence[ModuleOp]

    def verify(self) -> tuple[int, str]:
        """Return the code of the first breach and a message; 0 and "ok" if there is none.

        The codes are 2: no ops; 3: more than 8 inputs; 4: more than 8 dims, or a dim below 1; 5: an
        input that is no earlier op; 6: a kind, dtype or number of inputs that does not exist; 7: a
        const without a value of its shape and dtype, or an input without a shape. Code 1 stands for
        no module.
        """
        if not self.ops:
            return 2, "module: expected ops, got none"
        for place, op in enumerate(self.ops):
            code, text = _breach(place, op)
            if code:
                return code, f"op {place} ({op.name or f'op_{place}'}): {text}"
        return 0, "ok"

    def text(self) -> str:
        """Return the module as text, a line for each op: the same in each process.

        A line is PyC's, ``INDEX:KIND:NAME:dtype=N:shape=AxB:inputs=I,J``, and for a const the
        SHA-256 of its value, for a reduce_sum its axes, for a layernorm its eps.
        """
        lines = []
        for place, op in enumerate(self.ops):
            shape = "x".join(map(str, op.shape or ()))
            number = DTYPES.get(op.dtype, (0, ""))[0]
            inputs = ",".join(map(str, op.inputs))
            line = f"{place}:{op.kind}:{op.name}:dtype={number}:shape={shape}:inputs={inputs}"
            if op.value is not None:
                value = np.ascontiguousarray(op.value)
                line += f":value={hashlib.sha256(value.tobytes()).hexdigest()}"
            if op.kind == "reduce_sum":
                line += f":axes={','.join(map(str, op.axes))}"
            if op.kind == "layernorm":
                line += f":eps={op.eps!r}"
            lines.append(f"{line}\n")
        return "".join(lines)

    def fingerprint(self) -> int:
        """Return PyC's fingerprint of the text: FNV-1a in 64 bits (Fowler, Noll, Vo, 1991).

        Nothing is decided by so few bits; a cache has a SHA-256.
        """
        found = _FNV_OFFSET
        for byte in self.text().encode():
            found = (found ^ byte) * _FNV_PRIME % (1 << 64)
        return found


def _breach(place: int, op: ModuleOp) -> tuple[int, str]:
    """Return the code and text of what is wrong with an op; 0 if nothing is."""
    if len(op.inputs) > MAX_INPUTS:
        return 3, f"expected at most {MAX_INPUTS} inputs, got {len(op.inputs)}"
    shape = tuple(op.shape or ())
    if len(shape) > MAX_RANK or any(size <= 0 for size in shape):
        return 4, f"expected at most {MAX_RANK} dims of at least 1, got {shape}"
    wrong = [i for i in op.inputs if not 0 <= i < place]
    if wrong:
        return 5, f"expected inputs among the {place} earlier ops, got {wrong[0]}"
    if op.kind not in KINDS or op.dtype not in DTYPES:
        return 6, f"expected a known kind and dtype, got {op.kind!r} and {op.dtype!r}"
    least, most = _ARITY[op.kind]
    if not least <= len(op.inputs) <= most:
        return 6, f"expected {least} to {most} inputs of {op.kind}, got {len(op.inputs)}"
    if op.kind in ("input", "const") and op.shape is None:
        return 7, f"expected a shape of {op.kind}, got none"
    if op.kind == "const":
        expected = DTYPES[op.dtype][1], shape
        got = None if op.value is None else (op.value.dtype.name, op.value.shape)
        if got != expected:
            return 7, f"expected a value of {expected}, got {got}"
    return 0, "ok"


class CompileOptions(NamedTuple):
    """PyC's options; :meth:`effective` returns them as they are used.

    Attributes
    ----------
    enable_fusion : bool
    enable_memory_reuse : bool
        Whether tensors share memory.
    enable_autotune : bool
        Whether kernels are chosen by the times in ``autotune_db_path``, a database of ``taper
        tune``. Nothing is measured in runs.
    objective_mode : str
        One of :data:`MODES`: the mode at first of the :class:`taper_runtime.RuntimeController`.
    memory_budget_bytes : int
        0: none. The plan's arena fits in it, or is the smallest that was found: see
        ``docs/how-to/memory-budget.md``. With the mode ``"utilization_first"``, without shared
        memory, and of a finished plan, statistics alone tell by how much the arena exceeds it.
    target_utilization_floor : float
        Kept; it has no effect.
    deterministic_strict : bool
        Whether ``check`` refuses a changed plan, and the rails neither switch nor roll back.
    compile_budget_ms : float
        0: none. A compilation that takes longer sets a flag.
    cache_mode : str
        ``"in_memory"``: plans are kept in the folder of ``TAPER_CACHE_DIR``, if that is set;
        ``"disabled"``.
    autotune_db_path : path or None
    rails : RuntimeRails
    """

    enable_fusion: bool = True
    enable_memory_reuse: bool = True
    enable_autotune: bool = False
    objective_mode: str = "balanced"
    memory_budget_bytes: int = 0
    target_utilization_floor: float = 0.70
    deterministic_strict: bool = True
    compile_budget_ms: float = 0.0
    cache_mode: str = "in_memory"
    autotune_db_path: str | os.PathLike[str] | None = None
    rails: RuntimeRails = RuntimeRails()

    @property
    def budget_to_meet(self) -> int:
        """Return the bytes in which the plan's arena has to fit; 0 for no limit."""
        kept = self.objective_mode == "utilization_first" or not self.enable_memory_reuse
        return 0 if kept else int(self.memory_budget_bytes)

    def effective(self) -> CompileOptions:
        """Return the options with PyC's normalisation.

        An unknown cache mode becomes ``"in_memory"``, an unknown objective ``"balanced"``, a
        negative budget 0, and a limit of the rails out of its range its default. With
        ``deterministic_strict`` the rails neither switch nor roll back.

        Raises
        ------
        ModuleError
            If a number is none, or the rails are none: INVALID_ARGUMENT.
        """
        for name in ("memory_budget_bytes", "target_utilization_floor", "compile_budget_ms"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
                text = f"{name}: expected a number, got {value!r}"
                raise ModuleError(text, Status.INVALID_ARGUMENT)
        given: object = self.rails
        if not isinstance(given, RuntimeRails):
            text = f"rails: expected RuntimeRails, got {type(given).__name__}"
            raise ModuleError(text, Status.INVALID_ARGUMENT)
        rails, _ = RuntimeRails.normalized(self.rails._asdict())
        if self.deterministic_strict:
            rails = rails._replace(enable_auto_switch=False, enable_hard_rollback=False)
        return self._replace(
            objective_mode=self.objective_mode if self.objective_mode in MODES else "balanced",
            memory_budget_bytes=max(0, self.memory_budget_bytes),
            compile_budget_ms=max(0.0, self.compile_budget_ms),
            cache_mode=self.cache_mode if self.cache_mode in CACHE_MODES else "in_memory",
            rails=rails,
        )
