"""Compare the values inside a plan with those of the captured program."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from taper_frontend.capture.tensors import FLOATS_8_BIT, stored
from taper_frontend.verify.judge import TIE, judge
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.executor.segmented import SegmentedExecutor
from taper_runtime.extend.providers import OURS, Dispatch
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.compare import TOLERANCE, describe, difference, power_of_ten, tolerance
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch.fx import Node

    from taper_frontend.capture.captured import Captured, Change
    from taper_frontend.compiler.graph.node import Meaning
    from taper_frontend.verify.reference import Reference, Tensors
    from taper_runtime.extend.delegates import Delegate
    from taper_runtime.plan.plan import Plan, PlanNode

#: The most bytes of differing values that are kept until it is clear whether they are wrong. The
#: first one is always kept.
_KEPT_BYTES = 16 << 20

#: The most bytes of tensors that a plan computes before the captured program computes their values.
#: Beyond this limit later ones are not compared.
_HELD_BYTES = 16 << 20


class Wrong(NamedTuple):
    """A value of the plan that differs from the module's.

    Attributes
    ----------
    node : PlanNode
        The node that computes it.
    value : str
        Its name in the captured program.
    how : str
        The expected and the actual value.
    """

    node: PlanNode
    value: str
    how: str

    def __str__(self) -> str:
        """Describe the value, and its error."""
        node = self.node
        targets = f" of {', '.join(node.targets)}" if node.targets else ""
        line = f", {node.source}" if node.source else ""
        return f"node {node.output!r} ({node.op}{targets}{line}), {self.value!r}: {self.how}"


class InspectedPlan(NamedTuple):
    """A plan, and the tensors of it that can be compared with the captured program.

    Attributes
    ----------
    plan : Plan
    stands_for : mapping of str to Meaning
        The values of the captured program that tensors hold.
    """

    plan: Plan
    stands_for: Mapping[str, Meaning]


class Inside:
    """Compares the values of a plan's tensors with those of the captured program.

    Both are computed in order, the program's by torch and the plan's by the kernels of its nodes,
    and dropped after the comparison. Values inside a fused node are tensors of another view: the
    plan before nodes were fused.

    Parameters
    ----------
    views : callable
        Returns other views of the plan, then the plan itself.
    reference : Reference
    delegates : mapping of str to type of Delegate
        The delegates that compute subgraphs, by backend; the CPU computes the rest.

    Attributes
    ----------
    uncertain : dict of str to str
        For differing values that are acceptable, the reason, by name in the captured program.
    """

    def __init__(
        self,
        views: Callable[[], Sequence[InspectedPlan]],
        reference: Reference,
        delegates: Mapping[str, type[Delegate] | None],
        providers: tuple[str, ...] = OURS,
    ) -> None:
        self._views = views
        self._reference = reference
        own = {name: kind for name, kind in delegates.items() if kind is not None}
        self._settings = Settings(dispatch=Dispatch(providers, delegates=own))
        self.uncertain: dict[str, str] = {}

    @cached_property
    def sides(self) -> list[Side]:
        """Return the values of each plan that can be compared."""
        return [Side(view, self._reference.captured, self._settings) for view in self._views()]

    def report(self) -> dict[str, Any]:
        """Return the entry of the plan's metadata about the values inside.

        Returns
        -------
        dict
            ``values``, the number of compared values of the captured program; ``nodes``, the number
            of executed nodes that computed one of them; ``of``, the number of executed nodes;
            ``relative_error``, the largest error as the next power of ten; ``larger``, the nodes
            with errors above a tenth of the tolerance, with these errors; and ``uncertain``, the
            values that differ as far as float32 allows, by reason.
        """
        plan = self.sides[-1]
        errors = plan.errors(self.uncertain)
        every = [error for side in self.sides for error in side.errors(self.uncertain).values()]
        report: dict[str, Any] = {
            "values": len({node for side in self.sides for node in side.seen()}),
            "nodes": len(plan.errors()),
            "of": plan.executed,
            "relative_error": power_of_ten(max(every, default=0.0)),
        }
        larger = {name: power_of_ten(e) for name, e in errors.items() if e > TOLERANCE / 10}
        uncertain: dict[str, list[str]] = {}
        for name, why in self.uncertain.items():
            uncertain.setdefault(why, []).append(name)
        optional = {"larger": larger, "uncertain": uncertain}
        return report | {key: value for key, value in optional.items() if value}

    def find_wrong(
        self,
        arrays: Sequence[np.ndarray] | None,
        inputs: Sequence[np.ndarray],
        before: Tensors,
    ) -> Wrong | None:
        """Compare the values on one input; return the first wrong one.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray, optional
            See :meth:`.Reference.run`.
        inputs : sequence of numpy.ndarray
            The arrays that the plan reads: its inputs and states.
        before : dict of str to torch.Tensor
            The module's buffers before the run.

        Raises
        ------
        NotRunError
            If the captured program cannot run node by node.
        """
        walk = _Comparison(self.sides, inputs)
        self._reference.run_captured(arrays, before, walk.see)
        if not walk.doubts:
            return None
        return self._judge(walk.doubts, _Reruns(self._reference, arrays, before, walk.doubts))

    def _judge(self, doubts: Mapping[_Key, _Doubt], runs: _Reruns) -> Wrong | None:
        """Return the first value that neither float32 nor an earlier tie explains."""
        got = {key: doubt.got for key, doubt in doubts.items()}
        want = {key: doubt.want for key, doubt in doubts.items()}
        limit = max(side.tolerance for side in self.sides)
        verdict = judge(got, want, runs, limit)
        excused: set[Node] = set()
        for key, doubt in doubts.items():
            node, _ = key
            why = verdict.uncertain.get(key)
            if why is None and doubt.behind & excused:
                why = f"computed from {TIE}"
            if why is None:
                return Wrong(doubt.node, node.name, describe(doubt.got, doubt.want, limit))
            self.uncertain[node.name] = why
            if why.endswith(TIE):
                excused.add(node)
        return None


class Side:
    """The values of one plan that can be compared.

    Parameters
    ----------
    view : InspectedPlan
    captured : Captured
    settings : Settings

    Attributes
    ----------
    tensors : dict of Node to list of str
        The tensors with the value of each node of the captured program.
    tolerance : float
        The largest acceptable relative error.
    executed : int
        The number of nodes that a run computes.
    """

    def __init__(self, view: InspectedPlan, captured: Captured, settings: Settings) -> None:
        """Find the tensors that can be compared, and the steps after which they are final."""
        plan = self._plan = view.plan
        self._settings = settings
        self.tolerance = tolerance(plan.tensors.values())
        executed = [node for node in plan.nodes if plan.is_executed(node)]
        self.executed = len(executed)
        self.tensors: dict[Node, list[str]] = {}
        self._ready: dict[int, list[str]] = {}  # by the step that computes them
        self._errors: dict[str, float] = {}
        self._node: dict[str, Node] = {}
        self._moves: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {}
        self._maker: dict[str, PlanNode] = {}
        nodes = {node.name: node for node in captured.graph.nodes}
        written = {  # for each root, the last step that writes to it
            plan.placements[name].root: step
            for step, node in enumerate(executed)
            for name in node.outputs
        }
        self._final: set[str] = set()
        for name, step in _steps(plan).items():
            meaning = view.stands_for.get(name)
            if meaning is None or step < 0:
                continue
            node = nodes[meaning.value]
            self._moves[name] = meaning.moves
            self._ready.setdefault(step, []).append(name)
            self.tensors.setdefault(node, []).append(name)
            self._node[name], self._maker[name] = node, executed[step]
            if written.get(plan.placements[name].root, step) <= step:
                self._final.add(name)

    def maker(self, tensor: str) -> PlanNode:
        """Return the node that computes a compared tensor, or the tensor that it is a view of."""
        return self._maker[tensor]

    def is_final(self, tensor: str) -> bool:
        """Return whether nothing overwrites a tensor once it can be read."""
        return tensor in self._final

    def moved(self, tensor: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return a tensor's elements in the order and the shape of the module.

        Return None if an intermediate shape depends on sizes.
        """
        moves = self._moves[tensor]
        for place, (op, attrs) in enumerate(moves, 1):
            if op == "PERMUTE":
                array = array.transpose(attrs["axes"])
            elif op == "TRANSPOSE":
                array = array.swapaxes(attrs["axis0"], attrs["axis1"])
            elif place == len(moves):
                array = array.reshape(shape) if array.size == math.prod(shape) else array
            elif all(type(size) is int for size in attrs["shape"]):
                array = array.reshape(attrs["shape"])
            else:
                return None
        return array

    def note(self, tensor: str, error: float) -> None:
        """Record the error of a tensor."""
        self._errors[tensor] = max(error, self._errors.get(tensor, 0.0))

    def seen(self) -> set[Node]:
        """Return the nodes of the captured program whose values were compared."""
        return {self._node[name] for name in self._errors}

    def errors(self, uncertain: Collection[str] = ()) -> dict[str, float]:
        """Return the largest error of each of the plan's nodes, without those of some values."""
        errors: dict[str, float] = {}
        for name, error in self._errors.items():
            if self._node[name].name not in uncertain:
                output = self._maker[name].output
                errors[output] = max(error, errors.get(output, 0.0))
        return errors

    def trace(self, inputs: Sequence[np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Run the plan node by node; yield the tensors that can be compared after each.

        Their memory may be reused after the next node.
        """
        plan = specialize(self._plan, self._sizes(inputs))
        executor = InterpretedExecutor.compile(plan, self._settings)
        for step, (_, read) in enumerate(executor.trace(inputs)):
            yield {name: read(name) for name in self._ready.get(step, ())}

    def _sizes(self, inputs: Sequence[np.ndarray]) -> dict[str, int]:
        """Return the values of the plan's size variables, including those that a run computes."""
        plan = self._plan
        if plan.origins:
            own = [np.array(array) for array in inputs]
            return SegmentedExecutor.compile(plan, self._settings).sizes(own)
        return bind_sizes(plan, dict(zip(plan.inputs, map(np.shape, inputs), strict=False)))


#: A value of the captured program, and the index of the view in which it differs.
_Key = tuple["Node", int]


class _Doubt(NamedTuple):
    """A value whose error exceeds the tolerance."""

    node: PlanNode
    got: np.ndarray
    want: np.ndarray
    #: The nearest values before it that differ, too.
    behind: frozenset[Node]


class _Comparison:
    """One pass over all sides, in the order of the captured program.

    Attributes
    ----------
    doubts : dict
        The differing values, in order.
    """

    def __init__(self, sides: Sequence[Side], inputs: Sequence[np.ndarray]) -> None:
        self._sides = [_Reader(side, side.trace(inputs)) for side in sides]
        self._kept = 0
        # for each node that depends on differing values, these values
        self._behind: dict[Node, frozenset[Node]] = {}
        self.doubts: dict[_Key, _Doubt] = {}

    def see(self, node: Node, value: Any) -> None:
        """Compare a value of the captured program with the tensors that hold it."""
        behind = frozenset[Any]().union(*(self._behind.get(n, ()) for n in node.all_input_nodes))
        seen = []
        for place, reader in enumerate(self._sides):
            for name in reader.side.tensors.get(node, ()):
                is_right = self._is_right((node, place), name, value, behind)
                seen += [] if is_right is None else [is_right]
        if seen:
            behind = frozenset(() if all(seen) else [node])
        if behind:
            self._behind[node] = behind

    def _is_right(self, key: _Key, name: str, value: Any, behind: frozenset[Node]) -> bool | None:
        """Compare a tensor with a value; None if they cannot be compared.

        The tensor is dropped before this returns, because there is no memory for two of them.
        """
        reader = self._sides[key[1]]
        side = reader.side
        want, got = _as_array(value), reader.read(name)
        if want is not None and got is not None:
            got = side.moved(name, got, want.shape)
        if want is None or got is None:
            return None
        error = difference(got, want).relative
        is_right = error <= side.tolerance
        if is_right or self._keep(key, _Doubt(side.maker(name), got, want, behind)):
            side.note(name, error)  # of what is not kept nothing is known
        return is_right

    def _keep(self, key: _Key, doubt: _Doubt) -> bool:
        """Keep a differing value, if the limit allows it; return whether it is kept."""
        size = doubt.got.nbytes + doubt.want.nbytes
        if key in self.doubts:
            return True
        if self.doubts and self._kept + size > _KEPT_BYTES:
            return False
        self._kept += size
        self.doubts[key] = doubt._replace(got=np.array(doubt.got), want=np.array(doubt.want))
        return True


class _Reader:
    """Reads tensors of a plan in any order, while it runs."""

    def __init__(self, side: Side, trace: Iterator[dict[str, np.ndarray]]) -> None:
        self.side = side
        self._trace = trace
        self._held: dict[str, np.ndarray | None] = {}  # None: the limit was exceeded

    def read(self, name: str) -> np.ndarray | None:
        """Return the value of a tensor, once; None if the plan does not compute or hold it.

        Its memory may change when another tensor is read.
        """
        if name in self._held:
            return self._held.pop(name)
        for step in self._trace:
            for other, array in step.items():
                if other != name:
                    self._hold(other, array)
            if name in step:
                return step[name]
        return None

    def _hold(self, name: str, array: np.ndarray) -> None:
        kept = array if self.side.is_final(name) else np.array(array)
        arrays = [kept, *(each for each in self._held.values() if each is not None)]
        memory = [array if array.base is None else array.base for array in arrays]
        size = sum({id(each): each.nbytes for each in memory}.values())
        self._held[name] = kept if size <= _HELD_BYTES else None


class _Reruns:
    """Runs of the captured program on one input, for some of its values in all views."""

    def __init__(
        self,
        reference: Reference,
        arrays: Sequence[np.ndarray] | None,
        before: Tensors,
        keys: Collection[_Key],
    ) -> None:
        self._run = partial(reference.run_captured, arrays, before)
        self._keys = keys

    def rerun(self, change: Change | None = None) -> dict[_Key, np.ndarray]:
        """See :meth:`.Runs.rerun`."""
        values: dict[Node, np.ndarray] = {}
        self._run(self._keep(values), change)
        return {key: values[key[0]] for key in self._keys}

    def exact(self) -> dict[_Key, np.ndarray]:
        """See :meth:`.Runs.exact`."""
        values: dict[Node, np.ndarray] = {}
        self._run(self._keep(values), exact=True)
        return {key: values[key[0]] for key in self._keys}

    def _keep(self, values: dict[Node, np.ndarray]) -> Callable[[Node, Any], None]:
        nodes = {node for node, _ in self._keys}

        def see(node: Node, value: Any) -> None:
            if node in nodes:
                values[node] = np.array(_as_array(value))

        return see


def _as_array(value: Any) -> np.ndarray | None:
    """Return a value of the captured program in the form of a plan; None if that is impossible.

    A tensor inside ``torch.vmap`` is only one row of the plan's tensor.
    """
    if isinstance(value, bool | int | float):
        value = torch.as_tensor(value)
    if not isinstance(value, torch.Tensor) or is_functorch_wrapped_tensor(value):
        return None
    return stored(value.float() if value.dtype in FLOATS_8_BIT else value)


def _steps(plan: Plan) -> dict[str, int]:
    """Return, for each tensor of a node, the step of a run after which it can be read.

    A view can be read when its source is computed; -1 if no step computes it.
    """
    steps: dict[str, int] = {}
    count = 0
    for node in plan.nodes:
        if plan.is_executed(node):
            step, count = count, count + 1
        else:
            step = max((steps.get(name, -1) for name in node.reads), default=-1)
        steps |= dict.fromkeys(node.outputs, step)
    return steps
