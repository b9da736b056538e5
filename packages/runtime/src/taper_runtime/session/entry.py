"""Compile one entry of a plan, and keep the objects that its runs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError, OptionError
from taper_runtime.base.option_values import ExecutionMode
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.executor_kinds import compile_plan
from taper_runtime.plan.features import has_delegates
from taper_runtime.plan.plan import is_converted
from taper_runtime.session.opening import make_dispatch, short_runs, thread_count

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.executor._pool import FramePool
    from taper_runtime.executor.executor import PlanExecutor
    from taper_runtime.executor.tuned_choice import TunedNodes
    from taper_runtime.extend.fallbacks import DelegateUse
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.calls import CallAdapter
    from taper_runtime.session.ends import Ends
    from taper_runtime.session.options import SessionOptions
    from taper_runtime.session.state import EntryStates


class SessionEntry:
    """One entry of a session's plan, ready to run.

    All entries of a session share its frames, states and weights.

    Parameters
    ----------
    plan : Plan
        A plan of this entry alone.
    options : SessionOptions
    threads : int
        How many threads may compute one node.
    providers : tuple of str
        As :func:`.choose_providers` returns them.
    pool : FramePool

    Attributes
    ----------
    plan : Plan
    executor : PlanExecutor
        After weights are replaced, this and the plan are new objects.
    inputs : tuple of str
    ends : Ends or None
        Converts arrays at the inputs and outputs; None if users see the plan's own arrays.
    states : EntryStates or None
        Gives runs the states of a sequence; None if the entry has no states.
    """

    def __init__(
        self,
        plan: Plan,
        options: SessionOptions,
        threads: int,
        providers: tuple[str, ...],
        pool: FramePool,
    ) -> None:
        self.plan = plan
        dispatch = make_dispatch(options, providers)
        if has_delegates(plan.nodes):
            dispatch = _with_delegates(plan, options, dispatch)
        self._fallbacks = dispatch.fallbacks
        self.executor = _compile(plan, options, threads, dispatch, pool)
        self._choice = None if options.tuned is None else dispatch.choice
        self.inputs = plan.inputs
        self.states = _states(plan)
        self.ends = _ends(plan, options.bfloat16)
        self._bfloat16 = options.bfloat16
        self._output_index = {name: i for i, name in enumerate(plan.outputs)}
        self._calls: CallAdapter | None = None

    @property
    def calls(self) -> CallAdapter:
        """Return the adapter that takes nested arguments and returns nested results.

        Raises
        ------
        InputError
            If the plan does not record how its inputs or outputs are nested.
        """
        if self._calls is None:
            from taper_runtime.session.calls import CallAdapter

            self._calls = CallAdapter(self.plan.without_values(), self._bfloat16)
        return self._calls

    def tuned_nodes(self) -> TunedNodes | None:
        """Tell which nodes have kernels chosen by measured times; None without such times."""
        if self._choice is None:
            return None
        from taper_runtime.executor.tuned_choice import TunedChoice

        return self._choice.used() if isinstance(self._choice, TunedChoice) else None

    def delegate_uses(self) -> tuple[DelegateUse, ...]:
        """Tell what computes each delegated subgraph, and why."""
        return () if self._fallbacks is None else self._fallbacks.uses()

    def find_outputs(self, names: object) -> list[int]:
        """Return the positions of the named outputs.

        Raises
        ------
        InputError
            If ``names`` is not a list of names of outputs.
        """
        outputs = self.plan.outputs
        if isinstance(names, str) or not isinstance(names, Sequence):
            got = repr(names) if isinstance(names, str) else type(names).__name__
            raise InputError(
                f"output_names: expected a list of names of {list(outputs)}, got {got}"
            )
        try:
            return [self._output_index[name] for name in names]
        except (KeyError, TypeError):
            unknown = next(name for name in names if name not in outputs)
            raise InputError(
                f"unknown output {unknown!r}; expected some of {list(outputs)}"
            ) from None

    def given_outputs(self, out: Mapping[str, np.ndarray]) -> list[np.ndarray | None] | None:
        """Return the caller's array for each output, or None for a fresh one.

        Raises
        ------
        InputError
            If ``out`` is not a mapping, or has a name that no output has.
        """
        outputs = self.plan.outputs
        check_mapping("out", out, outputs)
        unknown = sorted(map(str, out.keys() - self._output_index.keys()))
        if unknown:
            raise InputError(f"out: unknown outputs {unknown}; expected {outputs}")
        return [out.get(name) for name in outputs] if out else None


def check_mapping(what: str, value: object, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return arrays that are given as a mapping by name.

    Raises
    ------
    InputError
        If ``value`` is not a mapping.
    """
    if not isinstance(value, Mapping):
        got = type(value).__name__
        raise InputError(f"{what}: expected a dict of arrays by name of {list(names)}, got {got}")
    return value


def check_feed(value: object, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the arrays of a run as :func:`check_mapping` does; the error says what to write."""
    try:
        return check_mapping("input_feed", value, names)
    except InputError as error:
        feed = ", ".join(f"{name!r}: ..." for name in names)
        raise InputError(
            f"{error}; write run(None, {{{feed}}}), or session(...) with the module's arguments"
        ) from None


def _compile(
    plan: Plan,
    options: SessionOptions,
    threads: int,
    dispatch: Dispatch,
    pool: FramePool,
) -> PlanExecutor:
    """Check the delegates of a plan, and compile it as the options say."""
    at_once = 1
    if options.execution_mode == ExecutionMode.ORT_PARALLEL:
        at_once = thread_count(options.inter_op_num_threads)
    if has_delegates(plan.nodes):
        from taper_runtime.extend.delegates import check_delegates  # which most plans do not need

        check_delegates(
            plan,
            options.delegates,
            allow_native_code=options.allow_native_code,
            may_be_absent=options.on_delegate_failure != "error",
        )
    if options.executor == "delegate":
        from taper_runtime.extend.delegates import check_whole

        check_whole(plan, options.delegates)
    budget = options.memory_budget or 0
    if budget and (options.executor == "interpreted" or plan.origins):
        got = "the interpreted executor" if not plan.origins else "one whose nodes compute sizes"
        raise OptionError(
            f"memory_budget: expected a plan whose memory is known before a run, got {got}"
        )
    settings = Settings(
        threads,
        at_once,
        pool,
        dispatch,
        options.memory_planning,
        budget,
        short_runs(options.intra_op_num_threads),
    )
    return compile_plan(plan, settings, options.executor)


def _with_delegates(plan: Plan, options: SessionOptions, dispatch: Dispatch) -> Dispatch:
    """Return the dispatch with the delegates of a plan, and what to do where they fail."""
    from taper_runtime.extend.fallbacks import Fallbacks  # which most plans do not need

    policy = options.on_delegate_failure, options.max_delegate_failures
    fallbacks = Fallbacks(plan, options.delegates, *policy)
    return dispatch._replace(delegates=fallbacks.delegates, fallbacks=fallbacks)


def _states(plan: Plan) -> EntryStates | None:
    if not plan.states:
        return None
    from taper_runtime.session.state import EntryStates  # which most plans do not need

    return EntryStates(plan)


def _ends(plan: Plan, bfloat16: str) -> Ends | None:
    if not any(is_converted(plan.tensors[name]) for name in (*plan.inputs, *plan.outputs)):
        return None
    from taper_runtime.session.ends import Ends  # which most plans do not need

    return Ends(plan, bfloat16)
