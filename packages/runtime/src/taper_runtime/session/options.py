"""Define options of sessions and runs: ONNX Runtime's fields, and what each does here.

A field has an effect, or is accepted without one, or is refused; the tables have the reasons of the
last two. Any other name is refused with the nearest one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Self

from taper_runtime.base import option_values as values
from taper_runtime.base.errors import InputError, OptionError
from taper_runtime.base.file_limits import Limits
from taper_runtime.base.loading import load_check
from taper_runtime.base.option_values import (
    BFLOAT16,
    CPU_DEVICE,
    LOAD_MODES,
    PACKING,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
)
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import is_one_of, nearest
from taper_runtime.executor._stop import Stop, StopFlag
from taper_runtime.executor.executor_kinds import DEFAULT_KIND, EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taper_runtime.extend.delegates import Delegate
    from taper_runtime.machine.choices import Choice


def _delegates(name: str, value: object) -> Mapping[str, type[Delegate] | None]:
    """Check classes of delegates by backend; return a mapping that cannot be changed."""
    from collections.abc import Mapping

    from taper_runtime.extend.delegates import Delegate  # which few sessions need

    if not isinstance(value, Mapping):
        raise InputError(f"{name}: expected classes by backend, got {value!r}")
    for backend, kind in value.items():
        is_delegate = isinstance(kind, type) and issubclass(kind, Delegate)
        if not (isinstance(backend, str) and (kind is None or is_delegate)):
            raise InputError(f"{name}: expected subclasses of Delegate by name, got {kind!r}")
    return MappingProxyType(dict(value))


def _kernels(name: str, value: object) -> Mapping[str, str]:
    """Check names of kernels by op; return a mapping that cannot be changed."""
    from collections.abc import Mapping

    if not isinstance(value, Mapping):
        raise InputError(f"{name}: expected names of kernels by op, got {value!r}")
    for op, kernel in value.items():
        if not (isinstance(op, str) and isinstance(kernel, str)):
            raise InputError(
                f"{name}: expected a name by the name of an op, got {op!r}: {kernel!r}"
            )
    return MappingProxyType(dict(value))


def _kernel_choice(name: str, value: object) -> str | Choice:
    """Check the name of a choice among kernels, or a choice."""
    from taper_runtime.machine.choices import NAMES, Choice  # which few sessions need

    if is_one_of(value, NAMES) or isinstance(value, Choice):
        return value
    raise InputError(
        f"{name}: expected one of {', '.join(map(repr, NAMES))}, or a Choice, got {value!r}"
    )


class WithoutEffect(NamedTuple):
    """A field of ONNX Runtime's that is accepted, checked and kept, and has no effect.

    Attributes
    ----------
    type : str
        As documents name it.
    default : object
    check : callable
    why : str
        Why it has no effect.
    """

    type: str
    default: object
    check: values.Check
    why: str


def _with_attributes(doc: str, options: Mapping[str, WithoutEffect]) -> str:
    """Return the docstring of a class with options behind its other attributes."""
    before, _, after = doc.partition("Raises\n")
    text = before.rstrip()
    indent = before[len(text) :].lstrip("\n")  # none from Python 3.13 on
    for name, option in options.items():
        text += f"\n{indent}{name} : {option.type}\n{indent}    No effect: {option.why}."
    return f"{text}\n\n{indent}Raises\n{after}"


class _Options:
    """Base of option records: each field has a check; each unsupported name has a reason."""

    _fields: ClassVar[Mapping[str, tuple[object, values.Check]]]  #: default and check by name
    _defaults: ClassVar[Mapping[str, object]]
    _without_effect: ClassVar[Mapping[str, WithoutEffect]]  #: the last ones of the fields
    _refused: ClassVar[Mapping[str, str]]  #: why a name of ONNX Runtime is none here
    _entries: dict[str, str]

    def __init_subclass__(cls) -> None:
        inert = vars(cls).get("_without_effect")
        if inert is None:  # a class of the user's
            return
        cls._fields = {**cls._fields, **{n: (o.default, o.check) for n, o in inert.items()}}
        cls._defaults = {name: default for name, (default, _) in cls._fields.items()}
        cls.__doc__ = cls.__doc__ and _with_attributes(cls.__doc__, inert)

    def __init__(self) -> None:
        self.__dict__.update(self._defaults, _entries={})

    def __repr__(self) -> str:
        """Name the fields that differ from their defaults."""
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, (default, _) in self._fields.items()
            if getattr(self, name) != default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    if not TYPE_CHECKING:  # so that type checkers, too, find unknown names

        def __setattr__(self, name: str, value: object) -> None:
            """Set a field; no other attribute."""
            if name not in self._fields:
                raise self._unknown(name)
            object.__setattr__(self, name, self._fields[name][1](name, value))

        def __getattr__(self, name: str) -> object:
            """Name what is near a name that is none."""
            raise self._unknown(name)

    def __getstate__(self) -> dict[str, object]:
        """Return what a copy in another process has; views of mappings cannot be sent there."""
        return {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in self.__dict__.items()
        }

    @classmethod
    def _unknown(cls, name: str) -> OptionError:
        if name in cls._refused:
            return OptionError(f"{cls.__name__}.{name}: {cls._refused[name]}")
        names = [n for n in {*dir(cls), *cls._fields} if not n.startswith("_")]
        near = nearest(name, names)
        hint = f"did you mean {near!r}?" if near else f"expected one of {sorted(names)}"
        return OptionError(f"{cls.__name__} has no attribute {name!r}; {hint}")

    def copy(self) -> Self:
        """Return options that later changes of these do not reach."""
        made = type(self)()
        made.__dict__.update(self.__dict__, _entries=dict(self._entries))
        return made

    def _add_entry(self, key: str, value: str) -> None:
        self._entries[values.text("key", key)] = values.text(f"entry {key!r}", value)

    def _get_entry(self, key: str) -> str:
        if not is_one_of(key, self._entries):
            raise InputError(f"{type(self).__name__}: no entry {key!r}, got {[*self._entries]}")
        return self._entries[key]


_PLANNED = "memory is planned at export"
_ONE_VERBOSE_LEVEL = "there is one verbose level"
_NO_FREE_DIMS = "sizes are fixed at export: export with dynamic_shapes that leave the dim out"
_NO_WEIGHTS = "a plan carries its weights: export the module with them"
_NO_PROVIDERS = "providers are given to the session"
_NO_LIBRARY = "taper_runtime.load_kernels loads kernels of others"


class SessionOptions(_Options):
    """Options of a session; a session keeps a copy of those it was opened with.

    Attributes
    ----------
    intra_op_num_threads : int
        Threads that may compute one node, the caller's among them. 0 takes ``TAPER_NUM_THREADS``,
        or where that is not set the CPUs this process may use. The bits do not depend on it.
    execution_mode : ExecutionMode or str
        ``"sequential"``, or ``"parallel"``: a node runs as soon as what it needs is there, while
        others run. A run then needs more memory, and is as fast on several cores as the plan is
        wide. The bits are the same. Only for the compiled executor.
    inter_op_num_threads : int
        Nodes that run at the same time where ``execution_mode`` is parallel; 0 as for
        ``intra_op_num_threads``. A run uses as many threads as the larger of the two.
    strict_native : bool
        Refuse plans with nodes that only numpy can compute.
    executor : str
        ``"compiled"``; ``"interpreted"`` for debugging; or ``"delegate"``, which refuses a plan in
        which anything but delegates computes.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. A session whose device is not there is refused; here
        that is every one but the CPU.
    isa : str or None
        The ISA level whose kernels compute: ``"avx512"``, ``"avx2"``, ``"baseline"`` or ``"neon"``.
        None is that of ``TAPER_ISA``, or where that is not set the best of this CPU. Sessions of
        one process may have different ones. A session whose level is not there is refused.
    kernels : mapping of str to str
        By op, the name of the kernel, or of the variant of one, that computes its nodes:
        ``{"MATMUL": "dot"}``. ``taper kernels`` lists them, and says which give other bits. An op
        or a name that does not exist is refused with those that do. A node that it does not serve
        is refused with the reason, and with what serves it: when the session is opened or, where
        sizes vary, by the run that has them.
    kernel_choice : str or Choice
        What chooses among the kernels and variants that serve a node: ``"first"``, the first
        kernel, which chooses its variant itself; ``"cost"``, what the cost model estimates to be
        fastest, whose bits may differ; or a :class:`taper_runtime.machine.choices.Choice`, such as
        ``MeasuredChoice`` of a function that knows what was measured. ``"measured"`` is refused as
        long as no measurements are stored.
    bfloat16 : str
        As what outputs, states and weights of bfloat16 come, which numpy has not: ``"float32"``,
        which holds each of them exactly; ``"bits"``, their bits in uint16; or ``"ml_dtypes"``, the
        dtype of that package, which has to be installed. What a session is given may come in any of
        the three ways; values of float32 have to be ones that bfloat16 has
        (:func:`taper_runtime.round_to_bfloat16` rounds).
    load_mode : str
        ``"map"``, or ``"copy"`` for files that another process may change or truncate while they
        are in use: see :func:`taper_runtime.load`.
    limits : Limits
        What of a file is refused before it costs memory or time.
    memory_planning : SessionOptions.MemoryPlanning
        Whether tensors share memory, and how those are laid out whose sizes a run finds out.
    load_timeout_s : float or None
        Seconds that the opening of a session may take; then it ends with a LoadTimeoutError within
        100 ms. Code of delegates and kernels of the user's is not interrupted.
    delegates : mapping of str to type of Delegate or None
        By backend, what may compute the regions that a plan gives to delegates. With None they are
        run as the graphs that they are. A plan with a backend that is not here is refused.
    allow_native_code : bool
        Let delegates run machine code that stands in the plan's file: with the rights of the
        process, so set it for files of makers you trust alone.
    packing : str
        ``"stored"``: weights have the formats that the plan says. Those that the file has plain
        (``export(packing="at_open")``) are packed so when the session is opened. ``"at_open"``:
        each weight with a plain one and a recipe gets the format, of those that kernels of this CPU
        take, with the least estimated time at its ISA level. The bits are the same, for only
        formats count that the same kernel reads in the same way; with ``kernel_choice="cost"``
        others count too, such as another Winograd tile. A plan that has packed weights alone is
        refused. Sessions of one Plan have each packed weight once.
    runtime_const_folding : bool
        Compute the constants that replaceable weights decide when the session is opened, rather
        than take them from the file. What a file lacks (``Plan.save(folded=False)``) is computed
        in any case. The bits are the same.
    max_concurrent_runs : int
        Runs at the same time, of all entries; others wait, first come first served. Each has a
        frame, with an arena of its own, which later runs use again. Of runs that only Taper's
        kernels compute, no more go on at once than there are CPUs.
    min_frames : int
        Frames that are kept however long they are idle.
    frame_cleanup : bool
        Whether others are freed, and arenas that have become too large, once they have been idle
        for ``frame_cleanup_interval_s``.
    frame_cleanup_interval_s : float
        Seconds between two looks at what is idle.
    seed : int or None
        Where a plan draws random numbers: the runs of the session, one after the other, draw what
        the module's calls draw after one ``torch.manual_seed(seed)``. With None every run draws
        from a generator of its own, seeded by the operating system.
    enable_profiling : bool
        Time every node of every run until ``end_profiling``, which writes the file.
    profile_file_prefix : str
        What the file's path begins with; the date and time follow.
    log_severity_level : int
        Least severity of what the session logs: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1
        is that of :func:`taper_runtime.set_default_logger_severity`.
    logid : str
        What the session's log messages begin with.

    Raises
    ------
    InputError
        On assigning a value that the field cannot have.
    OptionError
        On reading or assigning a name that is no field, an AttributeError that names the nearest.
    """

    MemoryPlanning: ClassVar[type[values.MemoryPlanning]] = values.MemoryPlanning

    intra_op_num_threads: int
    strict_native: bool
    executor: str
    device: str
    isa: str | None
    kernels: Mapping[str, str]
    kernel_choice: str | Choice
    bfloat16: str
    load_mode: str
    limits: Limits
    memory_planning: values.MemoryPlanning
    load_timeout_s: float | None
    delegates: Mapping[str, type[Delegate] | None]
    allow_native_code: bool
    packing: str
    runtime_const_folding: bool
    max_concurrent_runs: int
    min_frames: int
    frame_cleanup: bool
    frame_cleanup_interval_s: float
    seed: int | None
    enable_profiling: bool
    profile_file_prefix: str
    log_severity_level: int
    logid: str
    execution_mode: ExecutionMode
    inter_op_num_threads: int
    _end: StopFlag
    # for type checkers alone, as _without_effect has them
    graph_optimization_level: GraphOptimizationLevel
    execution_order: ExecutionOrder
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    use_deterministic_compute: bool
    use_per_session_threads: bool
    log_verbosity_level: int

    _fields = {  # noqa: RUF012 - a mapping that nobody changes
        "intra_op_num_threads": (0, values.threads),
        "strict_native": (False, values.flag),
        "executor": (DEFAULT_KIND, values.one_of(EXECUTORS)),
        "device": (CPU_DEVICE, values.device),
        "isa": (None, values.isa),
        "kernels": (MappingProxyType({}), _kernels),
        "kernel_choice": ("first", _kernel_choice),
        "bfloat16": (BFLOAT16[0], values.one_of(BFLOAT16)),
        "load_mode": (LOAD_MODES[0], values.one_of(LOAD_MODES)),
        "limits": (Limits(), values.limits),
        "memory_planning": (MemoryPlanning(), values.planning),
        "load_timeout_s": (None, values.timeout),
        "delegates": (MappingProxyType({}), _delegates),
        "allow_native_code": (False, values.flag),
        "packing": (PACKING[0], values.one_of(PACKING)),
        "runtime_const_folding": (False, values.flag),
        "max_concurrent_runs": (8, values.runs),
        "min_frames": (1, values.frames),
        "frame_cleanup": (True, values.flag),
        "frame_cleanup_interval_s": (600.0, values.interval),
        "seed": (None, values.seed),
        "enable_profiling": (False, values.flag),
        "profile_file_prefix": ("taper_profile", values.text),
        "log_severity_level": (-1, values.severity),
        "logid": ("", values.text),
        "execution_mode": (ExecutionMode.ORT_SEQUENTIAL, values.mode),
        "inter_op_num_threads": (0, values.threads),
    }
    _without_effect = {  # noqa: RUF012
        "graph_optimization_level": WithoutEffect(
            "GraphOptimizationLevel",
            GraphOptimizationLevel.ORT_ENABLE_ALL,
            values.member(GraphOptimizationLevel),
            "a plan is optimized at export",
        ),
        "execution_order": WithoutEffect(
            "ExecutionOrder",
            ExecutionOrder.DEFAULT,
            values.member(ExecutionOrder),
            "a plan is ordered at export",
        ),
        "enable_cpu_mem_arena": WithoutEffect("bool", True, values.flag, _PLANNED),
        "enable_mem_pattern": WithoutEffect("bool", True, values.flag, _PLANNED),
        "enable_mem_reuse": WithoutEffect("bool", True, values.flag, _PLANNED),
        "use_deterministic_compute": WithoutEffect(
            "bool", False, values.flag, "every run gives the same bits"
        ),
        "use_per_session_threads": WithoutEffect(
            "bool", True, values.flag, "all sessions of a process share its threads"
        ),
        "log_verbosity_level": WithoutEffect("int", 0, values.verbosity, _ONE_VERBOSE_LEVEL),
    }
    _refused = {  # noqa: RUF012
        "optimized_model_filepath": "nothing is optimized at load; Plan.save writes a plan",
        "add_free_dimension_override_by_name": _NO_FREE_DIMS,
        "add_free_dimension_override_by_denotation": _NO_FREE_DIMS,
        "add_initializer": _NO_WEIGHTS,
        "add_external_initializers": _NO_WEIGHTS,
        "add_external_initializers_from_files_in_memory": _NO_WEIGHTS,
        "register_custom_ops_library": _NO_LIBRARY,
        "add_provider": _NO_PROVIDERS,
        "add_provider_for_devices": _NO_PROVIDERS,
        "set_provider_selection_policy": _NO_PROVIDERS,
        "set_provider_selection_policy_delegate": _NO_PROVIDERS,
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_end", StopFlag())

    def copy(self) -> Self:
        """Return options that later changes of these do not reach, the flag of loads included."""
        made = super().copy()
        object.__setattr__(made, "_end", StopFlag(self._end.is_set))
        return made

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Cancel loads of sessions with these options, or allow them again.

        Any thread may call it while another one opens a session, which then raises a StoppedError.

        Raises
        ------
        InputError
            If it is neither True nor False.
        """
        self._end.is_set = values.flag("is_cancelled", is_cancelled)

    def load_check(self) -> Callable[[], None]:
        """Return what raises when a load with these options that begins now is to end."""
        return load_check(self._end, self.load_timeout_s)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of ONNX Runtime's configuration. None has an effect here.

        Raises
        ------
        InputError
            If one of the two is no string.
        """
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry's value.

        Raises
        ------
        InputError
            If there is none.
        """
        return self._get_entry(key)

    def has_providers(self) -> bool:
        """Return False: providers are given to the session."""
        return False


class RunOptions(_Options):
    """Options of one run.

    Attributes
    ----------
    seed : int or None
        Draw what the module draws after ``torch.manual_seed(seed)``; the session's own generator
        stays as it is. None draws from the session's.
    terminate : bool
        Where this is set, by any thread, runs with these options end with a StoppedError, and none
        begins. The node that a run is at ends first; from then on it takes some milliseconds.
    timeout_s : float or None
        Seconds that a run may take, the wait for its turn among them; then it ends with a
        RunTimeoutError, as soon as with ``terminate``.
    log_severity_level : int
        Least severity of what the run logs, as :attr:`SessionOptions.log_severity_level`; -1 is the
        session's.
    logid : str
        The run's tag in log messages.

    Raises
    ------
    InputError, OptionError
        As :class:`SessionOptions`.
    """

    seed: int | None
    terminate: bool
    timeout_s: float | None
    _end: StopFlag
    log_severity_level: int
    logid: str
    log_verbosity_level: int
    only_execute_path_to_fetches: bool

    _fields = {  # noqa: RUF012
        "seed": (None, values.seed),
        "terminate": (False, values.flag),
        "timeout_s": (None, values.timeout),
        "log_severity_level": (-1, values.severity),
        "logid": ("", values.text),
    }
    _without_effect = {  # noqa: RUF012
        "log_verbosity_level": WithoutEffect("int", 0, values.verbosity, _ONE_VERBOSE_LEVEL),
        "only_execute_path_to_fetches": WithoutEffect(
            "bool", False, values.flag, "a run computes the whole plan"
        ),
    }
    _refused = {  # noqa: RUF012
        "add_active_adapter": "a plan has no adapters: export the module with its adapter merged",
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_end", StopFlag())

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Set a field; ``terminate`` at once for runs that have begun."""
            super().__setattr__(name, value)
            if name == "terminate":
                self._end.is_set = self.terminate

    def copy(self) -> Self:
        """Return options that later changes of these do not reach, ``terminate`` included."""
        made = super().copy()
        object.__setattr__(made, "_end", StopFlag(self.terminate))
        return made

    def stop(self) -> Stop:
        """Return what ends a run with these options that begins now."""
        return Stop(self._end, self.timeout_s)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of ONNX Runtime's configuration. None has an effect here.

        Raises
        ------
        InputError
            If one of the two is no string.
        """
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry's value.

        Raises
        ------
        InputError
            If there is none.
        """
        return self._get_entry(key)
