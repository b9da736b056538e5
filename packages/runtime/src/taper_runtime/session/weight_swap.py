"""Read, check and replace the weights of a session while it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import read_only
from taper_runtime.base.dtypes import COMPLEX, DTYPES
from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.option_values import BFLOAT16, flag
from taper_runtime.base.text import counted, is_one_of, unknown
from taper_runtime.extend.servers import commit, is_told, prepare
from taper_runtime.file.mapping import check_path, open_regular
from taper_runtime.file.weights_file import StoredWeight, read_safetensors
from taper_runtime.formats import PLAIN
from taper_runtime.plan.plan import is_converted
from taper_runtime.plan.recipes import PARAMETER, parameter_names
from taper_runtime.plan.replaceable import (
    KINDS,
    WeightSpec,
    derive_named,
    stored_aligned,
    weight_values,
    weights_needed,
)

if TYPE_CHECKING:
    from taper_runtime.base.loading import FilePath
    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.entry import SessionEntry

#: Arrays by name, the path of a file, or a function that returns the array of a weight.
Source = Mapping[str, np.ndarray] | str | os.PathLike[str] | Callable[[str, WeightSpec], np.ndarray]

_ZIP = b"PK\x03\x04"  # the first bytes of a PT2 archive

_FIXED = "the plan's weights are fixed: export the module with weights='replaceable'"

_versions = count(1)  # shared by all sessions of the process


def _fixed_names(plan: Plan) -> dict[str, str | None]:
    """Return the names that fixed constants were computed from, with constants of their values."""
    found: dict[str, str | None] = {}
    for constant, recipe in plan.provenance.items():
        is_same = len(recipe) == 1 and recipe[0].op == PARAMETER and constant in plan.constants
        for name in parameter_names(recipe):
            if is_same and plan.tensors[constant].format == PLAIN:
                found[name] = constant
            else:
                found.setdefault(name, None)
    return found


class SessionWeights:
    """Parameters and buffers of a session's plan, by their names in the state dict.

    The weights are replaced as one set: a run that has begun ends with the old set, and the next
    run begins with the new one. Constants computed from weights are computed again before any run
    uses the new set, with the same bits as in an export of the new weights. After any failure the
    old set stays. Many threads may use this at the same time, also during runs.

    :attr:`taper_runtime.InferenceSession.weights` makes this.

    Parameters
    ----------
    plan : Plan
        A plan with all its constants.
    swap : callable
        Lets runs that begin from now on use the constants of another plan, which differs only in
        values. If it raises, the old constants stay; it returns an error that came too late.
    bfloat16 : str
        The form in which users get bfloat16; see :attr:`taper_runtime.SessionOptions.bfloat16`.
    """

    def __init__(
        self,
        plan: Plan,
        swap: Callable[[Plan, int], TaperError | None],
        bfloat16: str = BFLOAT16[0],
    ) -> None:
        """Note the names of the weights, and those that recipes need."""
        self._plan = plan
        self._bfloat16 = bfloat16
        self._swap = swap
        self._lock = Lock()
        self._shadow: dict[str, np.ndarray] | None = None
        self._replaced: set[str] = set()
        self._version = next(_versions)
        self._names = {
            each: name for name, w in plan.weights.items() for each in (name, *w.aliases)
        }
        self._needed = weights_needed(plan.derived)
        self._is_replaceable = any(spec.kind != "constant" for spec in plan.weights.values())

    @cached_property
    def _fixed(self) -> dict[str, str | None]:
        """Return the names of fixed weights, each with a constant of its value, if there is one."""
        found = _fixed_names(self._plan)
        return {name: constant for name, constant in found.items() if name not in self._names}

    @property
    def version(self) -> int:
        """Return this set's version: larger than that of any earlier set of the process."""
        return self._version

    def names(self, kind: str | None = None) -> list[str]:
        """Return the names of the weights that runs need; for tied weights, the first name.

        Weights that cannot be replaced come last: buffers outside of the state dict and tensors
        that are plain attributes of modules, and if the export fixed the weights, all of them. They
        are known by the names that the plan's constants were computed from; see
        :meth:`taper_runtime.Plan.made_from`.

        Parameters
        ----------
        kind : str, optional
            ``"parameter"``, ``"buffer"``, or ``"constant"``: a value that cannot be replaced.

        Raises
        ------
        InputError
            If there is no such kind, or all weights are fixed: a plan does not have their kinds.
        """
        if kind is not None and not is_one_of(kind, KINDS):
            raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        if kind is not None and not self._is_replaceable:
            raise InputError(f"kind: expected None, got {kind!r}; {_FIXED}")
        weights = self._plan.weights.items()
        own = (n for n, spec in weights if n in self._needed and kind in (None, spec.kind))
        return [*own, *(self._fixed if kind in (None, "constant") else ())]

    def __contains__(self, name: object) -> bool:
        """Return whether a weight that runs need has this name; a tied weight has several."""
        return name in self._fixed or (
            isinstance(name, str) and self._names.get(name) in self._needed
        )

    def __len__(self) -> int:
        """Return how many weights there are; tied weights count as one if they are replaceable."""
        return len(self.names())

    def get(self, name: str) -> np.ndarray:
        """Return the present value of a weight, as a read-only array.

        Raises
        ------
        InputError
            If there is no such weight, or the plan does not keep its value: no constant depends on
            it, or it is fixed and only constants that were computed from it are there.
        """
        if is_one_of(name, self._fixed):
            return self._fixed_value(name)
        spec = self._spec(name)
        values = weight_values(self._plan)
        if spec.name not in values:
            raise InputError(f"weight {name!r}: no run needs it, so the plan does not store it")
        value = read_only(values[spec.name])
        if not is_converted(spec):
            return value
        from taper_runtime.session.ends import to_user

        return read_only(to_user(spec, value, self._bfloat16))

    def _fixed_value(self, name: str) -> np.ndarray:
        """Return the value of a fixed weight."""
        constant = self._fixed[name]
        if constant is None:
            made = ", ".join(self._plan.made_from(name))
            hint = "" if self._is_replaceable else f"; {_FIXED}"
            raise InputError(
                f"weight {name!r}: the plan keeps only what was computed from it: {made}{hint}"
            )
        spec, value = self._plan.tensors[constant], read_only(self._plan.constants[constant])
        if not is_converted(spec):
            return value
        from taper_runtime.session.ends import to_user

        return read_only(to_user(spec, value, self._bfloat16))

    def validate(self, weights: Mapping[str, np.ndarray], strict: bool = True) -> None:
        """Check weights as :meth:`load` does, without loading them.

        Parameters
        ----------
        weights : mapping of str to numpy.ndarray
            Each has exactly the weight's dtype and shape; bfloat16 may have any of the forms that
            :attr:`taper_runtime.SessionOptions.bfloat16` names.
        strict : bool
            Whether every weight that the plan needs must be given, and no others.

        Raises
        ------
        InputError
            Listing everything that is missing, unknown, or of another dtype or shape.
        """
        self._check_replaceable()
        if not isinstance(weights, Mapping):
            raise InputError(f"weights: expected a mapping, got {type(weights).__name__}")
        self._checked(weights, flag("strict", strict))

    def load(self, source: Source, strict: bool = True, *, model: str | None = None) -> None:
        """Read weights into a shadow set, which no run uses before :meth:`commit`.

        Parameters
        ----------
        source : mapping, path or callable
            Arrays by name, which are copied; the path of a safetensors file or of a PT2 archive,
            which is mapped and must not be changed in place; or a function of a name and
            a :class:`~taper_runtime.plan.replaceable.WeightSpec` that returns the array, asked for
            every parameter and buffer that the plan needs.
        strict : bool
            If False, missing weights stay as they are and unknown names are ignored.
        model : str, optional
            The model of a PT2 archive; by default the only one.

        Raises
        ------
        InputError
            Listing everything that is missing, unknown, or of another dtype or shape; if the
            archive has no such model, or ``source`` is no archive and a model is given; or if the
            plan's weights are fixed. A set that was loaded before stays loaded.
        PlanFormatError
            If the file is neither of the two kinds, or is damaged.
        OSError
            If the file cannot be read.
        """
        self._check_replaceable()
        checked = self._checked(self._read(source, model), flag("strict", strict))
        shadow = {name: stored_aligned(array) for name, array in checked.items()}
        with self._lock:
            self._shadow = shadow

    def commit(self) -> int:
        """Let the next runs use the weights that :meth:`load` read; return the new :attr:`version`.

        Raises
        ------
        InputError
            If nothing is loaded, or an op that computes a constant refuses the values. The session
            keeps its old weights.
        KernelError
            If a server refuses the weights: then the session keeps its old ones. Also if a server
            raises when it is told to commit, which it must not do: then the session has the new
            weights.
        """
        with self._lock:
            if self._shadow is None:
                raise InputError("no weights are loaded: call load first")
            late = self._replace(self._shadow)
            self._shadow = None
            return self._ended(late)

    def discard(self) -> None:
        """Forget the weights that :meth:`load` has read, if any."""
        with self._lock:
            self._shadow = None

    def update(self, name: str, array: np.ndarray) -> int:
        """Replace one weight; see :meth:`update_many`."""
        if not isinstance(name, str):
            raise InputError(f"name: expected a string, got {type(name).__name__}")
        return self.update_many({name: array})

    def update_many(self, weights: Mapping[str, np.ndarray]) -> int:
        """Replace some weights at once and keep the others; return the new :attr:`version`.

        Parameters
        ----------
        weights : mapping of str to numpy.ndarray
            Each has exactly the weight's dtype and shape. They are copied.

        Raises
        ------
        InputError
            Listing what is unknown, or of another dtype or shape; or if an op that computes a
            constant does not allow the values.
        KernelError
            As :meth:`commit` raises it.
        """
        self._check_replaceable()
        if not isinstance(weights, Mapping):
            raise InputError(f"weights: expected a mapping, got {type(weights).__name__}")
        checked = self._checked(weights, strict=False, known=True)
        arrays = {name: stored_aligned(array) for name, array in checked.items()}
        with self._lock:
            return self._ended(self._replace(arrays))

    def replaced(self) -> dict[str, np.ndarray]:
        """Return the present values of weights that have been replaced, as they are stored."""
        with self._lock:
            values = weight_values(self._plan)
            return {name: values[name] for name in sorted(self._replaced)}

    def again(self) -> None:
        """Swap in the present set again, for entries that the session has compiled since."""
        with self._lock:
            self._ended(self._swap(self._plan, self._version))

    def _replace(self, given: Mapping[str, np.ndarray]) -> TaperError | None:
        """Compute the constants that depend on new values, then swap; the caller holds the lock.

        Return an error that came too late to keep the old weights, if any.
        """
        plan = self._plan
        given = {name: array for name, array in given.items() if name in self._needed}
        values = {**weight_values(plan), **given}
        constants = dict(plan.constants)
        for name, recipe in plan.derived.items():
            if not weights_needed({name: recipe}).isdisjoint(given):
                constants[name] = derive_named(name, recipe, plan.weights, values)
        originals = {name: values[name] for name in plan.originals}
        new = plan._replace(constants=constants, originals=originals).read_only()
        version = next(_versions)
        late = self._swap(new, version)
        self._plan, self._version = new, version
        self._replaced |= given.keys()
        return late

    def _ended(self, late: TaperError | None) -> int:
        """Return the version of the weights, or raise an error that came too late to go back."""
        if late is not None:
            raise late
        return self._version

    def _check_replaceable(self) -> None:
        if not self._is_replaceable:
            raise InputError(_FIXED)

    def _spec(self, name: str) -> WeightSpec:
        if not is_one_of(name, self._names):
            known = [*self._names, *self._fixed]
            raise InputError(unknown("weight", str(name), known) if known else _FIXED)
        return self._plan.weights[self._names[name]]

    def _read(self, source: Source, model: str | None) -> Mapping[str, Any]:
        """Return arrays or :class:`StoredWeight` objects by name."""
        if isinstance(source, (str, os.PathLike)):
            return _read_file(source, model)
        _refuse_model(model, "arrays or a function")
        if isinstance(source, Mapping):
            return source
        if callable(source):
            wanted = self._wanted()
            return {spec.name: source(spec.name, spec) for spec in wanted}
        raise InputError(
            "source: expected arrays by name, a path or a function of a name and a WeightSpec, got "
            f"{type(source).__name__}"
        )

    def _wanted(self) -> list[WeightSpec]:
        """Return the weights that a run needs and that can be replaced."""
        weights = self._plan.weights.values()
        return [w for w in weights if w.kind != "constant" and w.name in self._needed]

    def _checked(
        self, weights: Mapping[str, Any], strict: bool, *, known: bool = False
    ) -> dict[str, np.ndarray]:
        """Return arrays as stored, by first names, or raise an error that lists all faults.

        With ``known``, all names must be known, but some weights may be missing.
        """
        problems: list[str] = []
        found: dict[str, np.ndarray] = {}
        from_: dict[str, str] = {}
        for name, value in weights.items():
            problem = self._refusal(name)
            if problem and (strict or known):
                problems.append(problem)
            if problem:
                continue
            spec = self._plan.weights[self._names[name]]
            try:
                array = _as_stored(spec, value, f"weight {name!r}")
            except InputError as error:
                problems.append(str(error))
                continue
            if spec.name in found and not _same_bytes(found[spec.name], array):
                problems.append(
                    f"weight {name!r}: expected the values of {from_[spec.name]!r}, which is the "
                    "same weight"
                )
            found[spec.name], from_[spec.name] = array, str(name)
        if strict:
            given = {self._names.get(name) for name in weights}
            missing = [spec.name for spec in self._wanted() if spec.name not in given]
            problems += [f"weight {name!r} is missing" for name in missing]
        if problems:
            raise InputError(
                "\n  ".join([f"{counted(len(problems), 'problem')} with the weights:", *problems])
            )
        return found

    def _refusal(self, name: object) -> str:
        """Return why a weight cannot be given a value, or an empty string if it can."""
        if not isinstance(name, str) or name not in self._names:
            if is_one_of(name, self._fixed):
                return f"weight {name!r} is a constant of the program, which cannot be replaced"
            tensor = self._plan.tensors.get(str(name))
            if tensor is not None and tensor.role == "state":
                return f"{name!r} is a state and not a weight; set_state sets its value"
            return f"unknown weight {name!r}"
        if self._plan.weights[self._names[name]].kind == "constant":
            return f"weight {name!r} is a constant of the program, which cannot be replaced"
        return ""


def _read_file(path: FilePath, model: str | None) -> Mapping[str, StoredWeight]:
    check_path(path)
    with open(path, "rb", opener=open_regular) as file:
        is_archive = file.read(4) == _ZIP
    if not is_archive:
        _refuse_model(model, "a safetensors file")
        return read_safetensors(path)
    from taper_runtime import pt2

    archive = pt2.open(path)
    dtypes = archive.dtypes(model)
    weights = archive.weights(model)
    return {name: StoredWeight(dtypes[name], array) for name, array in weights.items()}


def _refuse_model(model: str | None, source: str) -> None:
    if model is not None:
        raise InputError(f"model: expected None with {source}, got {model!r}")


def _as_stored(spec: WeightSpec, value: object, what: str) -> np.ndarray:
    """Return an array of exactly a weight's dtype and shape, with complex numbers as pairs."""
    dtype = ""  # of an array, its own
    if isinstance(value, StoredWeight):
        dtype, value = value.dtype, value.array
    if not isinstance(value, np.ndarray):
        raise InputError(f"{what}: expected a numpy array, got {type(value).__name__}")
    if spec.is_complex and value.dtype == COMPLEX[spec.dtype]:
        dtype = ""
    if is_converted(spec) and not dtype:
        from taper_runtime.session.ends import to_plan

        value = to_plan(spec, value, what)
    if dtype not in ("", spec.dtype) or value.dtype != DTYPES[spec.dtype].storage:
        raise InputError(f"{what}: expected dtype {spec.seen.dtype}, got {dtype or value.dtype}")
    if value.shape != spec.shape:
        raise InputError(f"{what}: expected shape {list(spec.shape)}, got {list(value.shape)}")
    if spec.dtype == "bool" and np.asarray(value, order="C").view("u1").max(initial=0) > 1:
        raise InputError(f"{what}: expected only bytes 0 and 1 in a bool tensor")
    return value


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or a.tobytes() == b.tobytes()


def swap_constants(
    entries: Sequence[SessionEntry], plans: Sequence[Plan], generation: int
) -> TaperError | None:
    """Let runs of entries that begin from now on use the constants of other plans.

    Servers prepare first: if one refuses, everything stays as it was. Return the error of a server
    that raised when it was told to commit, because then it is too late to go back.

    Parameters
    ----------
    entries : sequence of SessionEntry
    plans : sequence of Plan
        One for each entry; they differ from the entries' plans only in values.
    generation : int
        A number for this set of constants, different from that of any other set.
    """
    pairs = [*zip(entries, plans, strict=True)]
    told = [
        (server, plan.constants)
        for entry, plan in pairs
        for server in entry.executor.servers
        if is_told(server, entry.plan.constants, plan.constants)
    ]
    for server, constants in told:
        prepare(server, constants)
    made = [entry.executor.with_constants(plan.constants, generation) for entry, plan in pairs]
    for (entry, plan), executor in zip(pairs, made, strict=True):
        entry.plan, entry.executor = plan, executor
    return commit([server for server, _ in told])
