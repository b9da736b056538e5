"""Make a plan of a graph: schedule it and share memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.planning.make_recipes import provenance, replaceable
from taper_frontend.compiler.planning.order import Schedule, make_schedule
from taper_frontend.compiler.planning.spool import ConstantValues, spool
from taper_frontend.compiler.planning.to_block import to_block
from taper_runtime.base.decisions import read_decisions
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError, PlanFormatError
from taper_runtime.executor.dispatching import has_native_kernel, runs_blocks
from taper_runtime.executor.rollback import with_saves
from taper_runtime.executor.sites import sites
from taper_runtime.extend.providers import CPU_ALONE
from taper_runtime.plan.compilability import compilability
from taper_runtime.plan.features import is_undefined
from taper_runtime.plan.plan import Plan
from taper_runtime.plan.specialize import specialize, with_ranges
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from taper_frontend.compiler.graph.constants import Constant, Parameter
    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.base.decisions import Decision
    from taper_runtime.plan.plan import PlanNode


def make_plan(
    graph: Graph,
    schedule: Schedule | None = None,
    *,
    samples: Mapping[str, np.ndarray] | None = None,
    input_tree: Any = None,
    output_tree: Any = None,
    metadata: Mapping[str, Any] | None = None,
    complex_ends: Collection[str] = (),
    weights: Sequence[Parameter] = (),
    packed_at_open: bool = False,
    values: ConstantValues | None = None,
) -> Plan:
    """Plan the execution of a graph, and freeze the graph.

    Parameters
    ----------
    graph : Graph
        A graph in which a node makes every output and every next value of a state, and each occurs
        once in ``graph.writes``.
    schedule : Schedule, optional
        The schedule of the graph in its current form; by default that of :func:`.make_schedule`.
    samples, input_tree, output_tree, metadata
        Copied into the plan; ``metadata`` gets the key "fallbacks", the nodes without a native
        kernel at the graph's example sizes; "compilability", a summary of these; and "decisions",
        what passes chose of which the plan has the tensor, after those that it had before.
    complex_ends : collection of str
        The inputs, outputs and states that users see as complex numbers.
    weights : sequence of Parameter
        The weights that a session may replace, whether the graph reads them or not.
    packed_at_open : bool
        Whether the plan has recipes of all packed weights, and the plain weights that these read.
    values : ConstantValues, optional
        What was evaluated before, of this graph or others.

    Returns
    -------
    Plan
        Valid by :func:`taper_runtime.plan.validate.validate`.

    Raises
    ------
    InternalError
        If the graph was changed after it was scheduled.
    """
    planned = to_block(graph, schedule or make_schedule(graph))
    graph.freeze()
    seen = {name: planned.block.tensors[name]._replace(is_complex=True) for name in complex_ends}
    block = planned.block._replace(tensors={**planned.block.tensors, **seen})
    kept = replaceable(planned.constants, weights, packed=packed_at_open)
    plan = Plan(
        *block,
        weights=kept.weights,
        derived=kept.derived,
        originals=spool(kept.originals),
        constants={
            **(values or ConstantValues()).of(planned.constants),
            **{
                state.name: state.first
                for state in graph.states
                if any(state.first.tobytes())  # otherwise it starts as zeros, without data
            },
        },
        samples=dict(samples or {}),
        input_tree=input_tree,
        output_tree=output_tree,
        metadata=dict(metadata or {}),
        provenance=provenance(planned.constants),
        sizes={
            name: (low if name in graph.origins else max(low, 1), high)
            for name, (low, high) in graph.sizes.items()
        },
        states={state.name: state.next for state in graph.states},
        origins=dict(graph.origins),
    )
    plan = _prove(plan, graph.sizes)
    found = _computed(plan, graph.examples)
    fallbacks = [
        {"node": node.output, "op": node.op, "source": node.source}
        for node, is_native in found
        if not is_native
    ]
    rows = {
        "fallbacks": fallbacks,
        "compilability": compilability(
            len(found), [(each["node"], each["op"]) for each in fallbacks]
        )._asdict(),
    }
    if decisions := _decisions(plan, graph):
        rows["decisions"] = [each.data() for each in decisions]
    return plan._replace(metadata={**plan.metadata, **rows}).read_only()


def _decisions(plan: Plan, graph: Graph) -> list[Decision]:
    """Return the decisions about tensors that the plan has."""
    before = {(each.about, each.name): each for each in read_decisions(plan.metadata)}
    found = {**before, **graph.listener.decisions}
    return [each for each in found.values() if each.name in plan.tensors]


def plan_unfused(graph: Graph, plan: Plan, constants: Mapping[str, Constant]) -> Plan:
    """Plan the execution of a graph to inspect its values, beside another plan made later.

    Parameters
    ----------
    graph : Graph
        See :func:`make_plan`.
    plan : Plan
        The other plan. Common constants share memory.
    constants : mapping of str to Constant
        The constants of the other plan.

    Returns
    -------
    Plan
        A plan without the parts that only users of a session need. It is not validated.
    """
    planned = to_block(graph, make_schedule(graph))
    known = {constant.identity: plan.constants[name] for name, constant in constants.items()}
    own = {n: each for n, each in planned.constants.items() if each.identity not in known}
    shared = {n: known[each.identity] for n, each in planned.constants.items() if n not in own}
    first = {state.name: state.first for state in graph.states}
    return Plan(
        *planned.block,
        constants={**spool(own), **shared, **first},
        sizes=plan.sizes,
        states={state.name: state.next for state in graph.states},
        origins=dict(graph.origins),
    )


class SameResults:
    """Runs scheduled graphs with the inputs of one, and compares all results bit by bit.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule
        The graph that others are compared with.
    samples : mapping of str to numpy.ndarray
        Values of the inputs, if they are known. Others are drawn: floats from a normal
        distribution, and 0 or 1 for integers and bools.
    values : ConstantValues
    """

    def __init__(
        self,
        graph: Graph,
        schedule: Schedule,
        samples: Mapping[str, np.ndarray],
        values: ConstantValues,
    ) -> None:
        self._one = graph, schedule
        self._samples, self._values = samples, values
        self._expected: list[np.ndarray] | None = None

    def has(self, graph: Graph, schedule: Schedule) -> bool:
        """Return whether a scheduled graph of equal inputs, outputs and states has these bits."""
        if self._expected is None:
            self._expected = self._run(*self._one)
        return all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for a, b in zip(self._run(graph, schedule), self._expected, strict=True)
        )

    def _run(self, graph: Graph, schedule: Schedule) -> list[np.ndarray]:
        """Return the results of a graph, which is not frozen."""
        from taper_runtime.session.inference_session import InferenceSession

        planned = to_block(graph, schedule)
        plan = Plan(
            *planned.block,
            constants={
                **self._values.of(planned.constants),
                **{state.name: state.first for state in graph.states},
            },
            sizes=dict(graph.sizes),
            states={state.name: state.next for state in graph.states},
            origins=dict(graph.origins),
        )
        return InferenceSession(plan).run(None, self._feeds())

    def _feeds(self) -> dict[str, np.ndarray]:
        graph, rng = self._one[0], np.random.default_rng(0)
        feeds = {}
        for name in graph.inputs:
            spec = graph.tensors[name]
            dtype = DTYPES[spec.dtype].storage
            shape = [graph.typical(size) for size in spec.shape]
            floats = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else None
            drawn = rng.integers(0, 2, shape).astype(dtype) if floats is None else floats
            feeds[name] = self._samples.get(name, drawn)
        return feeds


def _prove(plan: Plan, ranges: Mapping[str, tuple[int, int]]) -> Plan:
    """Prove the plan for all sizes; if a proof fails at size 0, raise that variable's minimum to 1.

    The graph is known to be valid for sizes from 1 on, and is usually valid for 0, too.
    """
    try:
        return _checked(plan, ranges)
    except (PlanFormatError, OpError):
        validate(plan)
    for name, limits in ranges.items():
        if limits != plan.sizes[name]:
            with suppress(PlanFormatError, OpError):
                plan = _checked(plan, {**plan.sizes, name: limits})
    return plan


def _checked(plan: Plan, ranges: Mapping[str, tuple[int, int]]) -> Plan:
    plan = with_ranges(plan, ranges) if ranges != plan.sizes else plan
    validate(plan)
    return plan


def _computed(plan: Plan, sizes: Mapping[str, int]) -> list[tuple[PlanNode, bool]]:
    """Return the nodes that a run computes, and whether each runs without numpy."""
    return [
        (
            node,
            runs_blocks(plan, node, CPU_ALONE)
            or has_native_kernel(plan, node)
            or is_undefined(node),
        )
        for plan, node, *_ in sites(with_saves(specialize(plan, sizes)))
    ]
