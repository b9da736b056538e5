"""Run a plan behind ONNX Runtime's interface, name for name."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from taper_runtime.base.dtypes import is_converted, onnx_type
from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.loading import ended_by
from taper_runtime.base.option_values import CPU_DEVICE, ExecutionMode
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size
from taper_runtime.base.text import counted, is_one_of
from taper_runtime.executor._pool import FramePool
from taper_runtime.executor._run import RunLog, in_order
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.executor_kinds import compile_plan
from taper_runtime.extend.providers import Dispatch, check_kernels, choose_providers, computing
from taper_runtime.extend.servers import commit, is_told, prepare
from taper_runtime.file.reader import load, loads
from taper_runtime.native._kernels import active_isa
from taper_runtime.plan.features import has_delegates
from taper_runtime.plan.plan import Plan, TensorSpec
from taper_runtime.plan.validate import check_plan
from taper_runtime.session.config import thread_count
from taper_runtime.session.options import RunOptions, SessionOptions

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.executor import Executor
    from taper_runtime.machine.choices import Choice
    from taper_runtime.reports.node_times import RecordingExecutor
    from taper_runtime.session.background import Background, Callback
    from taper_runtime.session.calls import CallAdapter
    from taper_runtime.session.ends import Ends
    from taper_runtime.session.iobinding import IOBinding
    from taper_runtime.session.modelmeta import ModelMeta
    from taper_runtime.session.ortvalue import OrtValue
    from taper_runtime.session.state import EntryStates, State
    from taper_runtime.session.stats import Stats
    from taper_runtime.session.weight_swap import SessionWeights

_WARNING = 2  # ONNX Runtime's number


class NodeArg(NamedTuple):
    """One input or output of a session.

    Attributes
    ----------
    name : str
    shape : list of int or str
        A dim that varies is its size variable's name, or an expression of several.
    type : str
        As ONNX Runtime spells it: ``"tensor(float)"``, ``"tensor(int64)"``. For bfloat16 it is that
        of the arrays that :attr:`SessionOptions.bfloat16` asks for.
    is_read : bool
        Whether the plan depends on it: False of an input whose elements no node reads and whose
        sizes nothing else has. Its dtype and shape are checked all the same: the module may have
        decided by them when it was captured.
    """

    name: str
    shape: list[int | str]
    type: str
    is_read: bool = True


class InferenceSession:
    """A plan, ready to run.

    A session that was opened from a path can be pickled, so that it can be sent to another process:
    there the file is opened anew, with the same options, and its state is what it was.

    Parameters
    ----------
    path_or_bytes : path, bytes or Plan
        A ``.taper`` file, which is mapped; the bytes of one; or a plan just exported.
    sess_options : SessionOptions, optional
        They are copied.
    providers : sequence of str or of (str, mapping), optional
        What computes nodes, in order of preference: ``"NativeCPU"``, our kernels, ``"Numpy"``, or
        ``"CPUExecutionProvider"``, which is both; and those of
        :func:`taper_runtime.register_kernel`. The default is these, then the CPU. A node that none
        of them computes is refused. Asking for another one of ONNX Runtime's is a UserWarning.
    provider_options : sequence of mapping, optional
        One per provider. None has an effect.
    model : str, optional
        Which plan, where the file has several; see :func:`taper_runtime.load`.

    Raises
    ------
    PlanFormatError
        If the file is not a valid plan, or the Plan is none: somebody may have made it by hand.
    UnsupportedOpError
        If a node is one that no provider computes, or with ``strict_native`` none but numpy.
    InputError
        On an argument of another type, an unknown provider or model, a device or an ISA level that
        is not there, or if the plan has a delegate that the options do not allow.
    StoppedError
        If the options' load cancellation flag is set; a LoadTimeoutError if the session does not
        open within ``load_timeout_s``.
    OSError
        If the file cannot be opened, or is no regular file.
    MemoryError
        If there is no room for what the session keeps.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Plan,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        model: str | None = None,
    ) -> None:
        if not isinstance(sess_options, (SessionOptions, type(None))):
            raise InputError(f"sess_options: expected SessionOptions, got {sess_options!r}")
        chosen = choose_providers(providers, provider_options)
        if sess_options is None:
            self._open(path_or_bytes, SessionOptions(), chosen, model)
            return
        with ended_by(sess_options.load_check()):
            self._open(path_or_bytes, sess_options.copy(), chosen, model)

    def _open(
        self,
        source: str | os.PathLike[str] | bytes | Plan,
        options: SessionOptions,
        providers: tuple[str, ...],
        model: str | None,
        whole: InferenceSession | None = None,
    ) -> None:
        if options.device != CPU_DEVICE:
            from taper_runtime.base.device import check_device

            check_device(options.device)
        self._options, self._providers = options, providers
        # Of an entry: what it shares with the session of the whole plan.
        self._pool: FramePool = _pool(options) if whole is None else whole._pool
        self._log: RunLog = RunLog() if whole is None else whole._log
        self._path = None if isinstance(source, (Plan, bytes)) else _absolute(source)
        self._model = model
        # An entry's plan is part of one that has been checked.
        if whole is not None and isinstance(source, Plan):
            self.plan = source
        else:
            self.plan = _plan(source, model, options)
        if self.plan.weights or options.runtime_const_folding:
            from taper_runtime.plan.replaceable import opened

            self.plan = opened(self.plan, fold=options.runtime_const_folding)
        self._weights: dict[str, SessionWeights] = {}  # made when first asked for
        function = self.plan.entry()
        self._threads = thread_count(options.intra_op_num_threads)
        executor = _compile(function, options, self._threads, providers, self._pool)
        self._recording: RecordingExecutor | None = None
        if options.enable_profiling:
            executor = self._recording = _record(executor, options)
        self._executor = executor
        self._state: State | None = None if whole is None else whole._state
        self._entry_states: EntryStates | None = None
        if self.plan.states or any(entry.states for entry in self.plan.entries.values()):
            from taper_runtime.session.state import EntryStates, State  # most plans need none

            if whole is None:
                self._state = State(self.plan, options.seed, options.bfloat16)
            if self.plan.states:
                self._entry_states = EntryStates(function)
        self._ends: Ends | None = None
        ends = (self.plan.tensors[name] for name in (*self.plan.inputs, *self.plan.outputs))
        if any(map(is_converted, ends)):
            from taper_runtime.session.ends import Ends  # which most plans do not need

            self._ends = Ends(self.plan, options.bfloat16)
        self._background: Background | None = None
        self._call: CallAdapter | None = None
        self._entries: dict[str, InferenceSession] = {}
        self._inputs = self.plan.inputs
        self._output_index = {name: i for i, name in enumerate(self.plan.outputs)}
        self._severity = _severity(options)
        if self._severity < _WARNING:
            from taper_runtime.session.logs import INFO, log

            log(INFO, f"opened {self!r}", least=self._severity, tag=options.logid)

    def __enter__(self) -> Self:
        """Return the session; the end of the ``with`` statement closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """Have no further run begin, and free the memory that runs need.

        Runs that have begun, those that wait for their turn among them, go on to their end, and
        their memory is freed then; this does not wait for them. Whoever runs the session later gets
        a TaperError. A session that nobody refers to needs no close.
        """
        self._log.closed = True
        self._pool.close()
        if self._background is not None:
            self._background.close()

    def stats(self) -> Stats:
        """Return what the session has done so far: runs, errors, times, frames, memory."""
        from taper_runtime.session.stats import read_stats

        return read_stats(self._log, self._pool, self._executor)

    def __repr__(self) -> str:
        """One line: the path, inputs, outputs and threads."""
        from taper_runtime.session.modelmeta import brief

        tensors = self.plan.tensors
        inputs, outputs = (
            brief([tensors[name] for name in names])
            for names in (self.plan.inputs, self.plan.outputs)
        )
        what = "plan" if self._path is None else repr(self._path)
        threads = counted(self._threads, "thread")
        return f"<{type(self).__name__} {what}: {inputs} -> {outputs}; {threads}>"

    # not __reduce__, so that subclasses may have their own __getstate__
    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to open the session.

        Raises
        ------
        InputError
            If the session was not opened from a path.
        """
        if self._path is None:
            raise InputError(
                "a session of a plan or of bytes cannot be pickled or copied: "
                "save the plan and open its path, or open it in each process"
            )
        state = None if self._state is None else self._state.copy()
        return {
            "path": self._path,
            "model": self._model,
            "options": self._options,
            "providers": self._providers,
            "state": state,
            "weights": self.weights.replaced() if self._weights else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the session anew."""
        options = state["options"]
        with ended_by(options.load_check()):
            self._open(state["path"], options, state["providers"], state["model"])
        if state["state"] is not None:
            self._states().restore(state["state"])
        if state["weights"]:
            self.weights.update_many(state["weights"])

    def get_inputs(self, *, entry: str | None = None) -> list[NodeArg]:
        """Describe the inputs of an entry, in the order of the module's flattened arguments.

        Raises
        ------
        InputError
            If there is no such entry.
        """
        plan = self.plan.entry(entry)
        from taper_runtime.plan.readers import unread_inputs

        unread = unread_inputs(plan)
        return [self._describe(plan.tensors[n], is_read=n not in unread) for n in plan.inputs]

    def get_outputs(self, *, entry: str | None = None) -> list[NodeArg]:
        """Describe the outputs of an entry, in the order of the module's flattened results.

        Raises
        ------
        InputError
            If there is no such entry.
        """
        plan = self.plan.entry(entry)
        return [self._describe(plan.tensors[name]) for name in plan.outputs]

    def _describe(self, spec: TensorSpec, *, is_read: bool = True) -> NodeArg:
        dtype = spec.seen.dtype
        if is_converted(spec):
            from taper_runtime.session.ends import seen_dtype

            dtype = seen_dtype(spec, self._options.bfloat16)
        shape = [str(size) if isinstance(size, Size) else size for size in spec.seen.shape]
        return NodeArg(spec.name, shape, onnx_type(dtype), is_read)

    @property
    def entry_names(self) -> list[str]:
        """Names of the plan's entries: what ``entry`` of :meth:`run` may be, the default first."""
        return list(self.plan.entry_names)

    def _entry(self, name: str) -> InferenceSession:
        """Return a session of another entry that shares the state of this one."""
        plan = self.plan.entry(name)  # which refuses what is no name
        if name not in self._entries:
            options = self._options.copy()
            options.enable_profiling = False
            session = InferenceSession.__new__(InferenceSession)
            session._open(plan, options, self._providers, None, whole=self)
            session = self._entries.setdefault(name, session)
            if self._weights:
                try:
                    self.weights.again()  # replaced meanwhile, perhaps
                except BaseException:  # its own are not those of the session
                    self._entries.pop(name, None)
                    raise
        return self._entries[name]

    @property
    def weights(self) -> SessionWeights:
        """The parameters and buffers, which can be replaced where the plan was exported so.

        See :class:`taper_runtime.session.weight_swap.SessionWeights`.
        """
        if not self._weights:
            from taper_runtime.session.weight_swap import (
                SessionWeights,  # imports threading
            )

            # of threads that come here at once, one gives the session its weights
            made = SessionWeights(self.plan, self._swap, self._options.bfloat16)
            self._weights.setdefault("all", made).again()
        return self._weights["all"]

    def _swap(self, plan: Plan, generation: int) -> TaperError | None:
        """Let the runs that begin from now on use the constants of ``plan``.

        Servers prepare first: one that refuses leaves everything as it was. Returns what one raised
        that was told to commit, for it is too late then.
        """
        entries = dict(self._entries)
        sessions = [*entries.values(), self]  # of which the last may record, once nothing can fail
        plans = [*map(plan.entry, entries), plan]
        servers = [
            each
            for session in sessions
            for each in session._executor.servers
            if is_told(each, session.plan.constants, plan.constants)
        ]
        for each in servers:
            prepare(each, plan.constants)
        made = [each._executor.with_constants(plan.constants, generation) for each in sessions]
        for session, own, executor in zip(sessions, plans, made, strict=True):
            session.plan, session._executor = own, executor
        return commit(servers)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: a plan's weights are not inputs."""
        return []

    def get_session_options(self) -> SessionOptions:
        """Return a copy of the options that the session was opened with."""
        return self._options.copy()

    def get_providers(self) -> list[str]:
        """Return what computes nodes, in order of preference."""
        return list(self._providers)

    def kernel_kinds(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes, by their first outputs, that each kind of kernel computes.

        The kinds are "native", "user", "numpy", "delegate", and "view" of nodes that are nothing to
        compute. Of the sizes of the last run, where they vary.
        """
        from taper_runtime.session.kernel_kinds import kernel_kinds

        return kernel_kinds(self.plan.entry(), self._executor)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the providers' options: none has any."""
        return {name: {} for name in self._providers}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Check that the session has these providers: it keeps those that it was opened with.

        Raises
        ------
        InputError
            On an unknown provider, or others than the session's.
        """
        chosen = choose_providers(providers, provider_options)
        if computing(chosen) != computing(self._providers):
            raise InputError(
                f"providers: expected those of the session, {list(self._providers)}, got "
                f"{list(chosen)}; open another session for them"
            )

    def disable_fallback(self) -> None:
        """Do nothing: no run is ever tried again with another provider."""

    def enable_fallback(self) -> None:
        """Do nothing, as :meth:`disable_fallback`."""

    @property
    def state_names(self) -> list[str]:
        """Names of the tensors that live across runs: buffers that the module writes to."""
        return [] if self._state is None else list(self._state.names)

    def get_state(self, name: str) -> np.ndarray:
        """Return a copy of a state tensor.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        return self._states().get(name)

    def set_state(self, name: str, array: np.ndarray) -> None:
        """Give a state tensor a value, of exactly its dtype and shape; it is copied.

        Raises
        ------
        InputError
            If there is none of this name, or the array does not fit.
        """
        self._states().set(name, array)

    def reset_state(self, name: str | None = None) -> None:
        """Give a state tensor, or all of them, the value it was exported with.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        if name is not None or self._state is not None:
            self._states().reset(name)

    def new_state(self) -> State:
        """Return a state of its own for one more sequence, which :meth:`run` takes (``state=``).

        It begins with the values that the plan was exported with. Weights, kernels and arenas are
        the session's.

        Raises
        ------
        InputError
            If the plan has no state.
        """
        return self._states().new()

    def _given_states(self, given: object) -> State | Sequence[State]:
        """Check what a run is given as its state or states."""
        from taper_runtime.session.state import check_states

        return check_states(given, self._states())

    def _states(self) -> State:
        if self._state is None:
            raise InputError("the plan has no state")
        return self._state

    def get_modelmeta(self) -> ModelMeta:
        """Return who made the plan, and what its maker wrote into it."""
        from taper_runtime.session.modelmeta import read_modelmeta

        return read_modelmeta(self.plan)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray],
        run_options: RunOptions | None = None,
        *,
        out: Mapping[str, np.ndarray] | None = None,
        entry: str | None = None,
        state: State | Sequence[State] | None = None,
    ) -> list[np.ndarray]:
        """Run the plan once. Many threads may call this at once; the GIL is released.

        Where the plan has state, a run begins with what the last one over that state left, and runs
        over one state take turns. A run that raises leaves its states as they were.

        Parameters
        ----------
        output_names : sequence of str or None
            Which outputs to return; None or none for all in order.
        input_feed : mapping of str to numpy.ndarray
            One array per input, of exactly its dtype and shape; dims that vary have any size in
            their variable's range, the same in all inputs. Arrays that are not C-contiguous
            are copied; nothing is converted. Complex numbers may also come as reals, with their
            real and imaginary parts along a last axis of 2, and bfloat16 in each of the ways that
            :attr:`SessionOptions.bfloat16` names.
        run_options : RunOptions, optional
        out : mapping of str to numpy.ndarray, optional
            Arrays to write outputs into, by output name, without a copy: C-contiguous, writable, of
            exactly the output's dtype and shape, apart from every input.
        entry : str, optional
            Which of the plan's entries to run; the default one unless given. All share the state.
            What an entry needs is prepared at its first run, which is not profiled.
        state : State or sequence of State, optional
            Of :meth:`new_state`: what the run reads and writes in place of the session's own state.
            Several are a batch: row ``i`` of the inputs reads and writes state ``i``. The plan's
            states need a dim for that, which varies with the batch. The bits of a row are those of
            a run of that row alone where :meth:`.Plan.report` calls the batch's items independent.

        Returns
        -------
        list of numpy.ndarray
            Fresh arrays, or those of ``out``.

        Raises
        ------
        InputError
            On a missing, unknown or unfit input or ``out``, an unknown output name or entry, states
            of another session, twice the same, more or fewer than rows or without a dim for them,
            or an argument of another type.
        StoppedError
            If ``run_options.terminate`` is set, before or during the run, or it takes longer than
            ``run_options.timeout_s``.
        TaperError
            If the session is closed.
        """
        if entry is not None and not is_one_of(entry, (self.plan.default,)):
            return self._entry(entry).run(
                output_names, input_feed, run_options, out=out, state=state
            )
        try:
            stop = None
            if run_options is not None or self._severity < 1:
                stop = self._begin(run_options)
            if type(input_feed) is not dict:
                _check_mapping("input_feed", input_feed, self._inputs)
            arrays = in_order(self._inputs, input_feed)
            wanted = None if output_names is None else self._wanted(output_names)
            mine = None if out is None else self._given(out)
            theirs = mine
            if self._ends is not None:
                mine = None if mine is None else list(mine)
                self._ends.take(arrays, mine)
            used = self._state if state is None else self._given_states(state)
            if used is None or self._entry_states is None:
                outputs = self._log.run(self._executor.run, arrays, mine, None, stop)
            else:
                seed = None if run_options is None else run_options.seed
                outputs = self._log.run(
                    self._entry_states.run, self._executor, used, arrays, mine, seed, stop
                )
            if self._ends is not None:
                outputs = self._ends.give(outputs, theirs)
            return list(map(outputs.__getitem__, wanted)) if wanted else outputs
        except BaseException:
            self._log.count_error()
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan as the module is called: the same arguments, the same structure returned.

        Arguments nest as in the export, positional and named ones alike: arrays in place of
        tensors, numbers where a number varies, and the values that became part of the plan. All
        arrays are checked as :meth:`run` checks them, those that the plan does not read too. Of a
        result, mappings are dicts, and named tuples are of a class of the same name and fields.

        Raises
        ------
        InputError
            If something is missing, extra, of another kind, or another value than the one that
            became part of the plan: it names the path, as ``args[0]["mask"][2]``; or as
            :meth:`run`.
        """
        return self.call(args, kwargs)

    def call(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        run_options: RunOptions | None = None,
        *,
        entry: str | None = None,
        state: State | Sequence[State] | None = None,
    ) -> Any:
        """Run an entry of the plan as its module is called; see :meth:`__call__`.

        Parameters
        ----------
        args : sequence
        kwargs : mapping of str to object, optional
        run_options, entry, state
            As :meth:`run` takes them.

        Raises
        ------
        InputError
            As :meth:`__call__`.
        """
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise InputError(f"kwargs: expected a mapping, got {type(kwargs).__name__}")
        session = self._session_of(entry)
        call = session._calls()
        feed = call.feed(args, kwargs or {})
        return call.result(session.run(None, feed, run_options, state=state))

    def load_sample_inputs(
        self, *, entry: str | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the module was exported with, ready for ``session(*a, **k)``.

        Returns
        -------
        args : tuple
        kwargs : dict

        Raises
        ------
        InputError
            If the plan has no samples.
        """
        return self._session_of(entry)._calls().samples()

    def _calls(self) -> CallAdapter:
        if self._call is None:
            from taper_runtime.session.calls import CallAdapter

            self._call = CallAdapter(self.plan.entry().without_values(), self._options.bfloat16)
        return self._call

    def _session_of(self, entry: str | None) -> InferenceSession:
        if entry is None or is_one_of(entry, (self.plan.default,)):
            return self
        return self._entry(entry)

    def _begin(self, run_options: object) -> Stop | None:
        """Check a run's options, and log that it begins; return what may end it."""
        least, tag, stop = self._severity, self._options.logid, None
        if run_options is not None:
            if not isinstance(run_options, RunOptions):
                raise InputError(f"run_options: expected RunOptions or None, got {run_options!r}")
            stop = run_options.stop()
            least = run_options.log_severity_level if run_options.log_severity_level >= 0 else least
            tag = run_options.logid or tag
        if least < 1:
            from taper_runtime.session.logs import VERBOSE, log

            log(VERBOSE, "a run begins", least=least, tag=tag)
        return stop

    def _wanted(self, names: object) -> list[int]:
        """Return where the named outputs stand."""
        if isinstance(names, str) or not isinstance(names, Sequence):
            got = repr(names) if isinstance(names, str) else type(names).__name__
            raise InputError(
                f"output_names: expected a list of names of {list(self.plan.outputs)}, got {got}"
            )
        try:
            return [self._output_index[name] for name in names]
        except (KeyError, TypeError):
            unknown = next(name for name in names if name not in self.plan.outputs)
            raise InputError(
                f"unknown output {unknown!r}; expected some of {list(self.plan.outputs)}"
            ) from None

    def _given(self, out: Mapping[str, np.ndarray]) -> list[np.ndarray | None] | None:
        """Return the caller's array of each output, None where it is to be fresh."""
        _check_mapping("out", out, self.plan.outputs)
        unknown = sorted(map(str, out.keys() - self._output_index.keys()))
        if unknown:
            raise InputError(f"out: unknown outputs {unknown}; expected {self.plan.outputs}")
        return [out.get(name) for name in self.plan.outputs] if out else None

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> list[OrtValue]:
        """Run as :meth:`run` with OrtValues for arrays.

        Raises
        ------
        InputError
            As :meth:`run`, or on an input that is no OrtValue.
        """
        from taper_runtime.session.ortvalue import OrtValue, arrays_of

        arrays = arrays_of(input_dict_ort_values)
        outputs = self.run(output_names, arrays, run_options, state=state)
        return [OrtValue(array) for array in outputs]

    def io_binding(self) -> IOBinding:
        """Return what binds inputs and outputs to memory for :meth:`run_with_iobinding`."""
        from taper_runtime.session.iobinding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on what is bound; the outputs are the binding's. :meth:`run` tells of ``state``.

        Raises
        ------
        InputError
            As :meth:`run`, or where no output is bound, or it is no binding.
        """
        from taper_runtime.session.iobinding import IOBinding

        if not issubclass(type(iobinding), IOBinding):
            got = type(iobinding).__name__
            raise InputError(f"iobinding: expected an IOBinding, got {got}")
        iobinding.run(self, run_options, state)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on another thread, then call ``callback(outputs, user_data, error)`` there.

        As many such runs go on at once as the session has threads; others wait. Errors of the run
        are the callback's: ``outputs`` is then empty and ``error`` the error's text, which is
        empty after a run that succeeded. What the callback raises goes to
        ``threading.excepthook``.

        Raises
        ------
        InputError
            If an input is missing, or the callback cannot be called.
        TaperError
            If the session is closed.
        """
        if not callable(callback):
            raise InputError(f"callback: expected a function, got {type(callback).__name__}")
        if isinstance(input_feed, Mapping):
            missing = [name for name in self._inputs if name not in input_feed]
            if missing:
                raise InputError(f"missing inputs {missing}; expected {list(self._inputs)}")
        from taper_runtime.session.background import Background

        if self._log.closed:
            raise TaperError("the session is closed")
        if self._background is None or not self._background.usable:
            self._background = Background(self._threads)
        self._background.submit(
            lambda: self.run(output_names, input_feed, run_options, state=state),
            callback,
            user_data,
        )

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, in nanoseconds since the epoch; 0 where it did not."""
        return 0 if self._recording is None else self._recording.start_ns

    def end_profiling(self) -> str:
        """Write the trace of every run so far and stop profiling.

        Returns
        -------
        str
            The path, ``profile_file_prefix``, the date and the time: JSON in the Trace Event Format
            that Chrome and Perfetto show, with every run and, in it, every node on every worker.
            Empty where the session does not profile, or no more.
        """
        if self._recording is None or self._executor is not self._recording:
            return ""
        self._executor = self._recording.executor
        return self._recording.save(self._options.profile_file_prefix)


def _check_mapping(what: str, value: object, names: Sequence[str]) -> None:
    if not isinstance(value, Mapping):
        got = type(value).__name__
        raise InputError(f"{what}: expected a dict of arrays by name of {list(names)}, got {got}")


def _plan(source: object, model: str | None, options: SessionOptions) -> Plan:
    if isinstance(source, bytes):
        return loads(source, model, limits=options.limits)
    if isinstance(source, (str, os.PathLike)):
        return load(source, model, load_mode=options.load_mode, limits=options.limits)
    if not isinstance(source, Plan):
        got = type(source).__name__
        raise InputError(f"path_or_bytes: expected a path, bytes or a Plan, got {got}")
    if model is not None:
        raise InputError(f"model: expected None, for a Plan is one model, got {model!r}")
    check_plan(source)
    return source


def _absolute(model: object) -> str | None:
    """Return the path for processes that may have another working directory."""
    if not isinstance(model, (str, os.PathLike)):
        return None
    path = os.fspath(model)
    return path if os.path.isabs(path) else os.path.abspath(path)


def _pool(options: SessionOptions) -> FramePool:
    interval_s = options.frame_cleanup_interval_s if options.frame_cleanup else 0.0
    return FramePool(options.max_concurrent_runs, options.min_frames, interval_s)


def _compile(
    plan: Plan,
    options: SessionOptions,
    threads: int,
    providers: tuple[str, ...],
    pool: FramePool,
) -> Executor:
    at_once = 1
    if options.execution_mode == ExecutionMode.ORT_PARALLEL:
        at_once = thread_count(options.inter_op_num_threads)
    if has_delegates(plan.nodes):
        from taper_runtime.extend.delegates import check_delegates  # which most plans do not need

        check_delegates(plan, options)
    if options.executor == "delegate":
        from taper_runtime.extend.delegates import check_whole

        check_whole(plan, options)
    delegates = {name: kind for name, kind in options.delegates.items() if kind is not None}
    isa = active_isa(options.isa)
    check_kernels(options.kernels, isa)
    choice = _choice(options.kernel_choice)
    dispatch = Dispatch(computing(providers), delegates, isa, options.kernels, choice)
    if options.strict_native:
        dispatch = dispatch.without_numpy()
    settings = Settings(threads, at_once, pool, dispatch, options.memory_planning)
    return compile_plan(plan, settings, options.executor)


def _choice(choice: str | Choice) -> Choice | None:
    """Return what chooses among the kernels of a node; None where the first one is taken."""
    if choice == "first":
        return None
    from taper_runtime.machine.choices import choice_named  # which few sessions need

    return choice_named(choice) if isinstance(choice, str) else choice


def _record(executor: Executor, options: SessionOptions) -> RecordingExecutor:
    from taper_runtime.reports.node_times import RecordingExecutor

    return RecordingExecutor(executor, active_isa(options.isa))


def _severity(options: SessionOptions) -> int:
    """Return the least severity that a session logs."""
    if options.log_severity_level >= 0:
        return options.log_severity_level
    if "logging" not in sys.modules:  # then nobody has set a level
        return _WARNING
    from taper_runtime.session.logs import default_severity

    return default_severity()
