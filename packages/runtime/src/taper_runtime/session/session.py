"""Open a plan and run its entries, with their states and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.loading import ended_by
from taper_runtime.base.text import counted, is_one_of
from taper_runtime.executor._run import RunLog, in_order
from taper_runtime.extend.providers import CPU, OURS, choose_providers
from taper_runtime.native._kernels import active_isa
from taper_runtime.session.entry import SessionEntry, check_feed
from taper_runtime.session.opening import (
    WARNING,
    absolute_path,
    check_device,
    least_severity,
    make_pool,
    read_plan,
    thread_count,
)
from taper_runtime.session.options import RunOptions, SessionOptions

if TYPE_CHECKING:
    import os

    import numpy as np

    from taper_runtime.base.decisions import Decision
    from taper_runtime.executor._stop import Stop
    from taper_runtime.plan.plan import Plan
    from taper_runtime.reports.node_times import RecordingExecutor
    from taper_runtime.session.background import Background
    from taper_runtime.session.nodearg import NodeArg
    from taper_runtime.session.state import State
    from taper_runtime.session.stats import Stats
    from taper_runtime.session.weight_swap import SessionWeights


class Session:
    """Plan that is ready to run; it lacks only some methods of ONNX Runtime's.

    :class:`taper_runtime.InferenceSession` adds those, and describes how a session is opened.
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
    ) -> None:
        """Read the plan, compile its default entry, and make what the entries share."""
        check_device(options)
        self._options, self._providers = options, providers
        self._path, self._model = absolute_path(source), model
        self.plan, self._packed = read_plan(source, model, options, providers)
        self._threads = thread_count(options.intra_op_num_threads)
        self._pool, self._log = make_pool(options), RunLog()
        self._default = self._compile(self.plan.entry())
        if users := [name for name in providers if name not in (CPU, *OURS)]:
            from taper_runtime.executor.unused_kernels import warn_unused

            warn_unused(self.plan, users)
        # all but the default one, compiled when first asked for
        self._entries: dict[str, SessionEntry] = {}
        self._recording: RecordingExecutor | None = None
        if options.enable_profiling:
            from taper_runtime.reports.node_times import RecordingExecutor

            recording = RecordingExecutor(self._default.executor, active_isa(options.isa))
            self._default.executor = self._recording = recording
        self._state: State | None = None
        if self.plan.states or any(entry.states for entry in self.plan.entries.values()):
            from taper_runtime.session.state import State  # which most plans do not need

            self._state = State(self.plan, options.seed, options.bfloat16)
        self._weights: dict[str, SessionWeights] = {}  # made when first asked for
        self._background: Background | None = None
        self._severity = least_severity(options)
        if self._severity < WARNING:
            from taper_runtime.session.logs import INFO, log

            log(INFO, f"opened {self!r}", least=self._severity, tag=options.logid)

    def __enter__(self) -> Self:
        """Return the session; the end of the ``with`` statement closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """Let no further run begin, and free the memory that runs need.

        Runs that have begun, including those that wait for their turn, go on to their end, and
        their memory is freed then; this method does not wait for them. A later run raises a
        TaperError. A session without references needs no close.

        Raises
        ------
        KernelError
            If a delegate or a kernel of the user's raises when it is closed; the session is closed.
        """
        self._log.closed = True
        self._pool.close()
        if self._background is not None:
            self._background.close()
        entries = (self._default, *self._entries.values())
        if servers := [server for entry in entries for server in entry.executor.servers]:
            from taper_runtime.extend.servers import close  # which few sessions need

            if error := close(servers):
                raise error

    def stats(self) -> Stats:
        """Return statistics of the session: runs, errors, times, frames, memory."""
        from taper_runtime.session.stats import read_stats

        packed = sum(self.plan.constants[name].nbytes for name in self._packed)
        copied = large = 0
        if self._options.weights_memory != "mapped":
            from taper_runtime.session.large_pages import copied_bytes

            copied, large = copied_bytes(self.plan)
        weights = packed, copied, large
        default = self._default
        used = default.tuned_nodes(), default.delegate_uses()
        return read_stats(self._log, self._pool, default.executor, weights, *used)

    def decision_log(self) -> list[str]:
        """Return the decisions of the export and the session, a line each; see `docs/contract.md`.

        A line tells what was chosen, among what, by which numbers and why: forms and formats of
        weights, splits, level, threads, the kernel of each node of the default entry, and why numpy
        computes a node. The lines are the same in each process with the same file, options and kind
        of machine. None has a time of this process; :meth:`stats` has those. If sizes vary, nodes
        are listed as for the last run's sizes, without the candidates.

        Raises
        ------
        PlanFormatError
            If the decisions in the plan's metadata are damaged.
        """
        return list(map(str, self.decisions()))

    def decisions(self) -> list[Decision]:
        """Return the decisions of :meth:`decision_log` as records."""
        from taper_runtime.session.decision_log import session_decisions

        return session_decisions(self.plan, self._default, self._options, self._providers)

    def __repr__(self) -> str:
        """Show the path, inputs, outputs and threads in one line."""
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
        """Return the state that another process needs to open the session.

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
        """Open the session again."""
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
        from taper_runtime.session.nodearg import describe_inputs

        return describe_inputs(self.plan.entry(entry), self._options.bfloat16)

    def get_outputs(self, *, entry: str | None = None) -> list[NodeArg]:
        """Describe the outputs of an entry, in the order of the module's flattened results.

        Raises
        ------
        InputError
            If there is no such entry.
        """
        from taper_runtime.session.nodearg import describe_outputs

        return describe_outputs(self.plan.entry(entry), self._options.bfloat16)

    @property
    def entry_names(self) -> list[str]:
        """Return the names of the plan's entries, the default one first; :meth:`run` takes them."""
        return list(self.plan.entry_names)

    def _entry(self, name: str | None) -> SessionEntry:
        """Return an entry; compile it at first, unless it is the default one."""
        if name is None or is_one_of(name, (self.plan.default,)):
            return self._default
        if is_one_of(name, self._entries):
            return self._entries[name]
        made = self._compile(self.plan.entry(name))  # raises for an unknown name
        entry = self._entries.setdefault(name, made)
        if self._weights:
            try:
                self.weights.again()  # replaced meanwhile, perhaps
            except BaseException:  # its own are not those of the session
                self._entries.pop(name, None)
                raise
        return entry

    def _compile(self, plan: Plan) -> SessionEntry:
        """Return an entry that shares the session's frames."""
        return SessionEntry(plan, self._options, self._threads, self._providers, self._pool)

    @property
    def weights(self) -> SessionWeights:
        """Return the parameters and buffers; they can be replaced if the export allowed it.

        See :class:`taper_runtime.session.weight_swap.SessionWeights`.
        """
        if not self._weights:
            from taper_runtime.session.weight_swap import (
                SessionWeights,  # imports threading
            )

            # if several threads get here at once, one sets the session's weights
            made = SessionWeights(self.plan, self._swap, self._options.bfloat16)
            self._weights.setdefault("all", made).again()
        return self._weights["all"]

    def _swap(self, plan: Plan, generation: int) -> TaperError | None:
        """Let runs that begin from now on use the constants of ``plan``."""
        from taper_runtime.session.weight_swap import swap_constants

        entries = dict(self._entries)
        plans = [*map(plan.entry, entries), plan.entry()]
        # the default entry may record: it comes last, once nothing can fail
        error = swap_constants([*entries.values(), self._default], plans, generation)
        self.plan = plan
        return error

    def kernel_kinds(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes, by their first outputs, that each kind of kernel computes.

        The kinds are "native", "user", "numpy", "delegate", and "view" for nodes that compute
        nothing. If sizes vary, this describes the last run's sizes.
        """
        from taper_runtime.session.kernel_kinds import kernel_kinds

        return kernel_kinds(self._default.plan, self._default.executor)

    @property
    def state_names(self) -> list[str]:
        """Return the names of the tensors kept between runs: buffers that the module writes to."""
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
        """Return a separate state for one more sequence, to pass to :meth:`run` as ``state``.

        It begins with the values that the plan was exported with. It shares the session's weights,
        kernels and arenas.

        Raises
        ------
        InputError
            If the plan has no state.
        """
        return self._states().new()

    def _states(self) -> State:
        if self._state is None:
            raise InputError("the plan has no state")
        return self._state

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray] | None = None,
        run_options: RunOptions | None = None,
        *,
        out: Mapping[str, np.ndarray] | None = None,
        entry: str | None = None,
        state: State | Sequence[State] | None = None,
    ) -> list[np.ndarray]:
        """Run the plan once. Many threads may call this at once; the GIL is released.

        If the plan has state, a run begins with the values that the last run with that state left.
        Runs with the same state take turns. A run that raises leaves its states as they were.

        Parameters
        ----------
        output_names : sequence of str or None
            The outputs to return; None or an empty sequence returns all in order.
        input_feed : mapping of str to numpy.ndarray
            One array per input, of exactly its dtype and shape. Dims that vary may have any size in
            their variable's range, the same in all inputs. Arrays that are not C-contiguous are
            copied; no dtype is converted. Complex numbers may also be given as reals, with the
            real and imaginary parts along a last axis of length 2, and bfloat16 in each of the
            forms that :attr:`SessionOptions.bfloat16` names.
        run_options : RunOptions, optional
        out : mapping of str to numpy.ndarray, optional
            Arrays to write outputs into, by output name, without a copy. They must be C-contiguous
            and writable, have exactly the output's dtype and shape, and share no memory with an
            input.
        entry : str, optional
            The plan's entry to run, by default the default one. All entries share the state. An
            entry is prepared at its first run, which is not profiled.
        state : State or sequence of State, optional
            A state from :meth:`new_state`, which the run reads and writes in place of the session's
            own. Several states form a batch: row ``i`` of the inputs reads and writes state
            ``i``. For that, the plan's states need a dim that varies with the batch. If
            :meth:`.Plan.report` calls the batch's items independent, each row has the same bits
            as in a run of that row alone.

        Returns
        -------
        list of numpy.ndarray
            Fresh arrays, or the arrays given in ``out``.

        Raises
        ------
        InputError
            If an input or an array in ``out`` is missing, unknown or does not fit; if an output
            name or entry is unknown; if states are of another session, are given twice, are not as
            many as rows, or have no dim for them; or if an argument has a wrong type.
        StoppedError
            If ``run_options.terminate`` is set before or during the run, or the run takes longer
            than ``run_options.timeout_s``.
        TaperError
            If the session is closed.
        """
        used = self._default if entry is None else self._entry(entry)
        try:
            stop = None
            if run_options is not None or self._severity < 1:
                stop = self._begin(run_options)
            if type(input_feed) is not dict:
                input_feed = check_feed(input_feed, used.inputs)
            arrays = in_order(used.inputs, input_feed)
            wanted = None if output_names is None else used.find_outputs(output_names)
            mine = theirs = None if out is None else used.given_outputs(out)
            if used.ends is not None:
                mine = None if mine is None else list(mine)
                used.ends.take(arrays, mine)
            states = self._state if state is None else self._states().check_given(state)
            if states is None or used.states is None:
                outputs = self._log.run(used.executor.run, arrays, mine, None, stop)
            else:
                seed = None if run_options is None else run_options.seed
                outputs = self._log.run(
                    used.states.run, used.executor, states, arrays, mine, seed, stop
                )
            if used.ends is not None:
                outputs = used.ends.give(outputs, theirs)
            return list(map(outputs.__getitem__, wanted)) if wanted else outputs
        except BaseException:
            self._log.count_error()
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan as the module is called, with the same structure of arguments and results.

        Positional and named arguments are nested as in the export: with arrays in place of tensors,
        numbers where a number varies, and the same values where a value became part of the plan.
        The last positional arguments may be given by the names of their inputs.
        All arrays are checked as by :meth:`run`, also those that the plan does not read. In the
        result, mappings are dicts, and named tuples have a class of the same name and fields.

        Raises
        ------
        InputError
            If something is missing, extra, of another kind, or differs from a value that became
            part of the plan; the message names the path, such as ``args[0]["mask"][2]``. Also as
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
        """Run an entry of the plan like its module; see :meth:`__call__`.

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
        calls = self._entry(entry).calls
        feed = calls.feed(args, kwargs or {})
        try:
            outputs = self.run(None, feed, run_options, entry=entry, state=state)
        except InputError as error:
            if type(error) is not InputError:
                raise  # of a node
            raise InputError(calls.with_path(str(error))) from error
        return calls.result(outputs)

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
        return self._entry(entry).calls.samples()

    def _begin(self, run_options: object) -> Stop | None:
        """Check a run's options and log that it begins; return the Stop that may end it, if any."""
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
