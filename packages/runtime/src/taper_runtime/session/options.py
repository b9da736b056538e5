"""Define options of sessions and runs: ONNX Runtime's fields, and their effects here.

A field has an effect, or is accepted without one, or is refused; the tables give the reasons for
the last two. For any other name, the error suggests the nearest one.
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
    ON_DELEGATE_FAILURE,
    PACKING,
    WEIGHTS_MEMORY,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
)
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import is_one_of, nearest
from taper_runtime.executor._stop import Stop, StopFlag
from taper_runtime.executor.executor_kinds import DEFAULT_KIND, EXECUTORS

if TYPE_CHECKING:
    import os
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
    """Field of ONNX Runtime's that is accepted, checked and kept, but has no effect.

    Attributes
    ----------
    type : str
        The type's name for documentation.
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
    """Return the docstring of a class with options added to its attributes."""
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
    _without_effect: ClassVar[Mapping[str, WithoutEffect]]  #: also the last ones of the fields
    _refused: ClassVar[Mapping[str, str]]  #: why a name of ONNX Runtime's does not exist here
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
        """Show the fields that differ from their defaults."""
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
            """Raise an error that suggests the nearest name."""
            raise self._unknown(name)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process, without views of mappings: they cannot be sent."""
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
        """Return a copy, which later changes of these options do not affect."""
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
        How many threads may compute one node, including the caller's. 0 takes
        ``TAPER_NUM_THREADS`` or, if that is not set, the number of CPUs that this process may use,
        at most ``OMP_NUM_THREADS``. The bits do not depend on it.
    execution_mode : ExecutionMode or str
        ``"sequential"``, or ``"parallel"``: a node runs as soon as its inputs are computed, while
        others run. A run then needs more memory; how much faster it is on several cores depends on
        how many nodes of the plan are independent. The bits are the same. Only for the compiled
        executor.
    inter_op_num_threads : int
        How many nodes run at the same time if ``execution_mode`` is parallel; 0 means the same as
        for ``intra_op_num_threads``. A run uses as many threads as the larger of the two.
    strict_native : bool
        Refuse plans with nodes that only numpy can compute.
    executor : str
        ``"compiled"``; ``"interpreted"`` for debugging; ``"checked"``, which also computes each
        node by its op's definition and raises a :class:`KernelError` at the first one that differs;
        or ``"delegate"``, which refuses a plan with nodes that delegates do not compute.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, or a ``torch.device``. The device must be available;
        in this version only the CPU is.
    isa : str or None
        The ISA level whose kernels compute: ``"avx512"``, ``"avx2"``, ``"baseline"`` or ``"neon"``.
        None takes ``TAPER_ISA`` or, if that is not set, the best level of this CPU. Sessions of one
        process may have different levels. A level that is not available is refused.
    kernels : mapping of str to str
        For an op, the name of the kernel or kernel variant that computes its nodes:
        ``{"MATMUL": "dot"}``. ``taper kernels`` lists them, and which of them give other bits. For
        an op or a name that does not exist, the error lists those that do. For a node that the
        kernel does not serve, the error gives the reason and the kernels that serve it; it is
        raised when the session is opened or, if sizes vary, by the run that has such sizes.
    kernel_choice : str or Choice
        How to choose among the kernels and variants that serve a node: ``"first"``, the first
        kernel, which chooses its variant itself; ``"cost"``, the one that the cost model estimates
        to be fastest, if by 5% or more, whose bits may differ; ``"measured"``, the one that was
        measured to be fastest in the database ``tuned``, whose bits may differ; or a
        :class:`taper_runtime.machine.choices.Choice`, such as ``MeasuredChoice`` with a function
        that returns measured times.
    tuned : path or None
        A database of measured times that ``taper tune`` wrote. A node that has times there, for
        this CPU, ISA level and number of threads, is computed by the kernel that won; with
        ``kernel_choice="first"`` only by one that gives the same bits as the default kernel. With
        ``packing="at_open"`` the formats of weights are chosen by measured times too. Nothing is
        measured now. Nodes without times are computed as without the database;
        ``session.stats().tuned`` lists them.
    require_tuned : bool
        Refuse a node for which there is a choice, but no measured times in ``tuned``. The error
        names it; it is raised when the session is opened or, if sizes vary, by the run that has
        such sizes.
    bfloat16 : str
        The form of outputs, states and weights of bfloat16, a dtype that numpy does not have:
        ``"float32"``, which holds every value exactly; ``"bits"``, their bits in uint16; or
        ``"ml_dtypes"``, the dtype of that package, which must be installed. Arrays given to a
        session may have any of the three forms; float32 values must be ones that bfloat16 can
        represent (:func:`taper_runtime.round_to_bfloat16` rounds to those).
    load_mode : str
        ``"map"``, or ``"copy"`` for files that another process may change or truncate while they
        are in use: see :func:`taper_runtime.load`.
    check_fingerprint : bool
        When a file is opened, compare the fingerprint of its nodes and weights with the one that
        stands in it, and refuse the file if they differ. All weights are then read at open. A
        :class:`Plan` was read before, and is not checked.
    limits : Limits
        Limits on files; a file that exceeds them is refused before it costs memory or time.
    memory_planning : SessionOptions.MemoryPlanning
        Whether tensors share memory, and how to lay out tensors whose sizes are known only in a
        run.
    memory_budget : int or None
        The most bytes that a run may need for intermediates and scratch, on this CPU and with these
        threads. A plan that needs more is refused when the session is opened or, if sizes vary, by
        the run that has such sizes. Each of ``max_concurrent_runs`` may need as much. Only for the
        compiled executor, and plans whose sizes the inputs determine.
    load_timeout_s : float or None
        Seconds that opening a session may take. After that it ends with a LoadTimeoutError within
        100 ms. Code of delegates and of the user's kernels is not interrupted.
    delegates : mapping of str to type of Delegate or None
        For each backend, the class that computes the subgraphs which a plan gives to it. With None
        the subgraphs themselves are run instead. A plan with a backend that is not listed is
        refused.
    on_delegate_failure : str
        What happens where a delegate is not listed in ``delegates``, refuses its subgraph, or
        raises in a run: ``"error"``; ``"fallback"``, the subgraph itself is run instead, and
        ``session.stats().delegates`` tells how often and why; or, to try that out,
        ``"forced_fallback"``, as if all delegates failed, and ``"forced_error"``, each run of a
        subgraph raises.
    max_delegate_failures : int
        With ``"fallback"``, in how many runs a delegate may fail at a subgraph before it is asked
        no more.
    allow_native_code : bool
        Let delegates run machine code that stands in the plan's file: with the rights of the
        process, so set it for files of makers you trust alone.
    packing : str
        ``"stored"``: weights have the formats that the plan says. Those that the file has plain
        (``export(packing="at_open")``) are packed so when the session is opened. ``"at_open"``:
        each weight with a plain one and a recipe gets the format, of those that kernels of this CPU
        take, with the least estimated time at its ISA level, if by 5% or more. The bits are the
        same, for only formats count that the same kernel reads in the same way; with
        ``kernel_choice="cost"`` others count too, such as another Winograd tile. A plan that has
        packed weights alone is refused. Sessions of one Plan have each packed weight once.
    weights_memory : str
        ``"mapped"``: weights are read from the mapped file, whose pages all processes share.
        ``"huge"``: they are copied when the session is opened into memory of the process, for which
        large pages are asked of the system; ``session.stats().copied_bytes`` and
        ``large_page_bytes`` tell how much was copied, and how much of it the system has in large
        pages. Products of few rows that wait for memory may be faster.
    runtime_const_folding : bool
        When the session is opened, compute the constants that depend on replaceable weights, rather
        than read them from the file. Those that a file lacks (``Plan.save(folded=False)``) are
        computed in any case. The bits are the same.
    max_concurrent_runs : int
        How many runs go on at the same time, of all entries; others wait, first come first served.
        Each has a frame with an arena of its own, which later runs reuse. Of runs that only
        Taper's kernels compute, no more go on at once than there are CPUs.
    min_frames : int
        How many frames are kept, however long they are idle.
    frame_cleanup : bool
        Whether other frames, and arenas that have become too large, are freed once they have been
        idle for ``frame_cleanup_interval_s``.
    frame_cleanup_interval_s : float
        Seconds between two checks for idle frames.
    seed : int or None
        The seed for plans that draw random numbers: one after the other, the session's runs draw
        the same numbers as the module's calls after one ``torch.manual_seed(seed)``. With None
        every run draws from a generator of its own, seeded by the operating system.
    enable_profiling : bool
        Whether to time every node of every run until ``end_profiling``, which writes the file.
    profile_file_prefix : str
        The beginning of the file's path; the date and time follow.
    log_severity_level : int
        The least severity that the session logs: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1
        takes that of :func:`taper_runtime.set_default_logger_severity`.
    logid : str
        The beginning of the session's log messages.

    Raises
    ------
    InputError
        If a value is assigned that the field cannot have.
    OptionError
        If a name is read or assigned that is not a field; it suggests the nearest name, and is also
        an AttributeError.
    """

    MemoryPlanning: ClassVar[type[values.MemoryPlanning]] = values.MemoryPlanning

    intra_op_num_threads: int
    strict_native: bool
    executor: str
    device: str
    isa: str | None
    kernels: Mapping[str, str]
    kernel_choice: str | Choice
    tuned: str | os.PathLike[str] | None
    require_tuned: bool
    bfloat16: str
    load_mode: str
    check_fingerprint: bool
    limits: Limits
    memory_planning: values.MemoryPlanning
    memory_budget: int | None
    load_timeout_s: float | None
    delegates: Mapping[str, type[Delegate] | None]
    on_delegate_failure: str
    max_delegate_failures: int
    allow_native_code: bool
    packing: str
    weights_memory: str
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

    _fields: ClassVar = {
        "intra_op_num_threads": (0, values.threads),
        "strict_native": (False, values.flag),
        "executor": (DEFAULT_KIND, values.one_of(EXECUTORS)),
        "device": (CPU_DEVICE, values.device),
        "isa": (None, values.isa),
        "kernels": (MappingProxyType({}), _kernels),
        "kernel_choice": ("first", _kernel_choice),
        "tuned": (None, values.path),
        "require_tuned": (False, values.flag),
        "bfloat16": (BFLOAT16[0], values.one_of(BFLOAT16)),
        "load_mode": (LOAD_MODES[0], values.one_of(LOAD_MODES)),
        "check_fingerprint": (False, values.flag),
        "limits": (Limits(), values.limits),
        "memory_planning": (MemoryPlanning(), values.planning),
        "memory_budget": (None, values.memory_budget),
        "load_timeout_s": (None, values.timeout),
        "delegates": (MappingProxyType({}), _delegates),
        "on_delegate_failure": ("error", values.one_of(ON_DELEGATE_FAILURE)),
        "max_delegate_failures": (3, values.runs),
        "allow_native_code": (False, values.flag),
        "packing": (PACKING[0], values.one_of(PACKING)),
        "weights_memory": (WEIGHTS_MEMORY[0], values.one_of(WEIGHTS_MEMORY)),
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
    _without_effect: ClassVar = {
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
    _refused: ClassVar = {
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
        """Return a copy that later changes do not affect, also not the load cancellation flag."""
        made = super().copy()
        object.__setattr__(made, "_end", StopFlag(self._end.is_set))
        return made

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Cancel the opening of sessions with these options, or allow it again.

        Any thread may call this while another one opens a session; opening then raises a
        StoppedError.

        Raises
        ------
        InputError
            If ``is_cancelled`` is neither True nor False.
        """
        self._end.is_set = values.flag("is_cancelled", is_cancelled)

    def load_check(self) -> Callable[[], None]:
        """Return a function that raises if a load that begins now is to end."""
        return load_check(lambda: self._end.is_set, self.load_timeout_s)

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
        """Return False: providers are given to the session, not to its options."""
        return False


class RunOptions(_Options):
    """Options of one run.

    Attributes
    ----------
    seed : int or None
        With a seed, the run draws the same numbers as the module after ``torch.manual_seed(seed)``,
        and the session's own generator does not change. With None it draws from that generator.
    terminate : bool
        If any thread sets this, runs with these options end with a StoppedError, and no new ones
        begin. A run first finishes its current node; then it ends within some milliseconds.
    timeout_s : float or None
        Seconds that a run may take, including the wait for its turn. After that it ends with a
        RunTimeoutError, as soon as with ``terminate``.
    log_severity_level : int
        The least severity that the run logs, as for :attr:`SessionOptions.log_severity_level`; -1
        takes the session's.
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

    _fields: ClassVar = {
        "seed": (None, values.seed),
        "terminate": (False, values.flag),
        "timeout_s": (None, values.timeout),
        "log_severity_level": (-1, values.severity),
        "logid": ("", values.text),
    }
    _without_effect: ClassVar = {
        "log_verbosity_level": WithoutEffect("int", 0, values.verbosity, _ONE_VERBOSE_LEVEL),
        "only_execute_path_to_fetches": WithoutEffect(
            "bool", False, values.flag, "a run computes the whole plan"
        ),
    }
    _refused: ClassVar = {
        "add_active_adapter": "a plan has no adapters: export the module with its adapter merged",
    }

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_end", StopFlag())

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """Set a field; ``terminate`` has an effect at once, also on runs that have begun."""
            super().__setattr__(name, value)
            if name == "terminate":
                self._end.is_set = self.terminate

    def copy(self) -> Self:
        """Return a copy that later changes do not affect, also not of ``terminate``."""
        made = super().copy()
        object.__setattr__(made, "_end", StopFlag(self.terminate))
        return made

    def stop(self) -> Stop:
        """Return the Stop for a run with these options that begins now."""
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
