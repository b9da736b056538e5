"""Measure the kernels that may compute each node of a plan, as ``taper tune`` does.

Each node becomes a plan of one node. The candidates of a node are its kernels and their variants,
on all threads and on fewer, and, where the plan has a weight plain, the formats of that weight.
They are warmed up, then run in turns, so that a disturbance of the machine meets all of them alike.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.packing import formats_of_weights
from taper_runtime.executor.sites import sites
from taper_runtime.executor.tuned_choice import Way, fastest, offer_name, ways_of
from taper_runtime.extend.providers import Dispatch
from taper_runtime.extend.servers import label_of
from taper_runtime.file.measurements import Measurement, Quartiles, node_key
from taper_runtime.formats import decode, encode
from taper_runtime.machine.choices import Choice, ChosenNode, estimate_ns
from taper_runtime.machine.limits import typical
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, TensorSpec
from taper_runtime.plan.replaceable import is_packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taper_runtime.executor.sites import Site
    from taper_runtime.file.measurements import MachineSetting, NodeKey
    from taper_runtime.formats import TensorType
    from taper_runtime.native.variants import Offer

#: How often each candidate runs at least and at most, and after how many nanoseconds of a node's
#: candidates no further turn begins.
_LEAST_TURNS, _MOST_TURNS, _NODE_NS = 7, 41, 500_000_000

#: A candidate that takes so many times as long as the fastest one in the first turns is not run
#: again, unless it is the default one.
HOPELESS, TRIED = 2.0, 2

#: A turn repeats a node's run until it takes at least so many nanoseconds.
_TURN_NS = 200_000


class Recoded(NamedTuple):
    """A weight in another format than the plan's.

    Attributes
    ----------
    name : str
    stored : numpy.ndarray
        As the plan has it.
    type : TensorType
        That of ``stored``.
    """

    name: str
    stored: np.ndarray
    type: TensorType

    def values(self, other: TensorType) -> np.ndarray:
        """Return an array for the weight in the other format.

        Integers are the plan's, since kernels of bytes take the less time the smaller they are.
        """
        if DTYPES[other.dtype].storage.kind == "f":
            return _values(other)
        return encode(decode(self.stored, self.type), other)


class Candidate(NamedTuple):
    """One way to compute a node, or a chain of nodes.

    Attributes
    ----------
    plan : Plan
        Of the node or the chain alone, with its weights in the formats of this way.
    key : NodeKey
    name : str
        The name under which its times are stored.
    ns : float
        The estimated nanoseconds of a run.
    way : Way or None
        Of a node. A chain's nodes have their default kernels.
    recoded : tuple of Recoded
        The constants of the plan that have memory, but no values: weights in other formats.
    """

    plan: Plan
    key: NodeKey
    name: str
    ns: float
    way: Way | None = None
    recoded: tuple[Recoded, ...] = ()

    def __str__(self) -> str:
        """Return its name, and the formats of a node's weights."""
        formats = [
            spec.format
            for spec in self.plan.tensors.values()
            if self.way is not None and spec.role == "constant" and is_packed(spec.type)
        ]
        return f"{self.name} of {', '.join(formats)}" if formats else self.name


class TunableNode(NamedTuple):
    """Node with several candidates, and all nodes of a plan that are equal to it.

    Attributes
    ----------
    labels : list of str
        The names of the nodes.
    runs : int
        How often a run of the plan computes them.
    candidates : list of Candidate
        The default one first.
    """

    labels: list[str]
    runs: int
    candidates: list[Candidate]

    @property
    def estimate_ns(self) -> float:
        """Return the estimated time of all of them in a run."""
        return self.runs * self.candidates[0].ns


class TrialResult(NamedTuple):
    """Measured times of a node's candidates.

    Attributes
    ----------
    node : TunableNode
    times : list of Quartiles
        Of each candidate.
    best : int
        The candidate that won; 0 if none wins against the default one.
    """

    node: TunableNode
    times: list[Quartiles]
    best: int

    @property
    def gain(self) -> float:
        """Return how many times as long as the best candidate the default one takes."""
        return self.times[0].median / self.times[self.best].median

    def measurements(self, machine: MachineSetting) -> list[Measurement]:
        """Return a measurement for each format of the node's weights."""
        found: dict[NodeKey, dict[str, Quartiles]] = {}
        for candidate, times in zip(self.node.candidates, self.times, strict=True):
            found.setdefault(candidate.key, {})[candidate.name] = times
        return [Measurement(key, machine, ns) for key, ns in found.items()]


class _Listening(Choice):
    """Takes the first offer, or that of a way, and keeps all offers."""

    def __init__(self, way: Way | None = None) -> None:
        self._way = way
        self.node: ChosenNode | None = None
        self.offers: Sequence[Offer] = ()

    def choose(
        self, node: ChosenNode, offers: Sequence[Offer], refused: Sequence[tuple[str, str]]
    ) -> int | None:
        """See :meth:`Choice.choose`."""
        self.node, self.offers = node, offers
        if not offers:
            return None
        return [offer_name(each) for each in offers].index(self._way.kernel) if self._way else 0

    def threads(self, node: ChosenNode, offer: Offer) -> int:
        """See :meth:`Choice.threads`."""
        return self._way.threads if self._way else 0


# -- which nodes, and their candidates -------------------------------------------------------------


def tunable_nodes(plan: Plan, isa: str, *, other_bits: bool, threads: int = 1) -> list[TunableNode]:
    """Return the nodes of a plan for which there is a choice, in order.

    Parameters
    ----------
    plan : Plan
        A plan of known sizes, with all its constants.
    isa : str
        The ISA level.
    other_bits : bool
        Whether candidates whose results may differ in bits from the default one's are included.
    threads : int
        How many threads may compute a node; candidates use fewer, too.
    """
    dispatch = Dispatch(isa=isa)
    formats = formats_of_weights(plan, dispatch, other_bits=other_bits)
    found: dict[Any, TunableNode] = {}
    for site in sites(plan, dispatch):
        if site.runs_blocks:
            continue
        candidates = list(_candidates(site, formats, isa, threads, other_bits=other_bits))
        if len(candidates) < 2:
            continue
        key = tuple((each.key, each.name) for each in candidates)
        node = found.get(key)
        if node is None:
            found[key] = TunableNode([label_of(site.node)], site.trips, candidates)
        else:
            node.labels.append(label_of(site.node))
            found[key] = node._replace(runs=node.runs + site.trips)
    return list(found.values())


def _candidates(
    site: Site,
    formats: Mapping[str, Mapping[str, float]],
    isa: str,
    threads: int,
    *,
    other_bits: bool,
) -> Iterator[Candidate]:
    """Yield the candidates of a node, the default one first."""
    others = [
        {name: format}
        for name in dict.fromkeys(site.node.reads)
        for format in formats.get(name, ())
        if format != site.plan.tensors[name].format
    ]
    for changed in ({}, *others):
        alone = _alone(site, changed)
        recoded = tuple(
            Recoded(name, site.plan.constants[name], site.plan.tensors[name].type)
            for name in changed
        )
        heard = _Listening()
        try:
            CompiledExecutor.compile(alone, Settings(dispatch=Dispatch(isa=isa, choice=heard)))
        except TaperError:
            continue
        if heard.node is None:
            continue
        key, offers = node_key(heard.node), {offer_name(each): each for each in heard.offers}
        for way in ways_of(heard.node, heard.offers, threads, other_bits=other_bits):
            ns = estimate_ns(heard.node, offers[way.kernel], typical(isa))
            yield Candidate(alone, key, str(way), ns, way, recoded)


def _alone(site: Site, formats: Mapping[str, str]) -> Plan:
    """Return a plan of one node, with some weights in other formats.

    Its inputs and outputs are the memory of the node's operands, so that these keep their strides.
    """
    plan, node = site.plan, site.node
    tensors: dict[str, TensorSpec] = {}
    placements: dict[str, Placement] = {}
    constants: dict[str, np.ndarray] = {}

    def add_root(name: str, spec: TensorSpec, role: str) -> None:
        tensors[name] = spec._replace(name=name, role=role)
        placements[name] = Placement(name, 0, contiguous_strides(spec.storage.shape))

    for name in node.reads:
        spec, place = plan.tensors[name], plan.placements[name]
        if name in formats:
            add_root(name, spec._replace(format=formats[name]), "constant")
            dtype, shape, _ = tensors[name].storage
            constants[name] = np.empty(shape, DTYPES[dtype].storage)
            continue
        root = plan.tensors[place.root]
        is_constant = root.role == "constant"
        add_root(root.name, root, "constant" if is_constant else "input")
        if is_constant:
            constants[root.name] = plan.constants[root.name]
        if name != root.name:
            tensors[name] = spec._replace(role="intermediate")
            placements[name] = place
    outputs = []
    for name in node.outputs:
        place = plan.placements[name]
        root = plan.tensors[place.root]
        outputs.append(f"{root.name} (written)")  # the root may be an input too
        add_root(outputs[-1], root, "output")
        tensors[name] = plan.tensors[name]._replace(role="intermediate")
        placements[name] = place._replace(root=outputs[-1])
    inputs = [name for name, spec in tensors.items() if spec.role == "input"]
    return Plan(
        nodes=(node,),
        tensors=tensors,
        placements=placements,
        inputs=tuple(inputs),
        outputs=tuple(dict.fromkeys(outputs)),
        constants=constants,
    )


def _values(type_: TensorType) -> np.ndarray:
    """Return an array for a tensor: random floats and bytes, zeros of other ints, bools all set."""
    dtype, shape, _ = type_.storage
    storage, rng = DTYPES[dtype].storage, np.random.default_rng(0)
    if storage.kind == "f":
        return rng.standard_normal(shape).astype(storage)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(storage)
        return rng.integers(limits.min, limits.max, shape, storage, endpoint=True)
    return np.full(shape, storage.kind == "b", storage)


# -- measuring -------------------------------------------------------------------------------------


def measure_node(
    node: TunableNode, machine: MachineSetting, clock: Callable[[], int]
) -> TrialResult:
    """Time the candidates of a node.

    Parameters
    ----------
    node : TunableNode
    machine : MachineSetting
        The ISA level and the threads.
    clock : callable
        Returns nanoseconds.

    Raises
    ------
    TaperError
        If the node refuses the values that it is measured with.
    """
    runs = [runner(each, machine) for each in node.candidates]
    begin = clock()
    for run in runs:
        run()
    taken = max(clock() - begin, 1) / len(runs)
    repeats = max(1, round(_TURN_NS / taken))
    times: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    begin = clock()
    for turn in range(_MOST_TURNS):
        first = turn % len(left)  # each begins a turn as often as the others
        for at in left[first:] + left[:first]:
            start = clock()
            for _ in range(repeats):
                runs[at]()
            times[at].append((clock() - start) / repeats)
        if turn + 1 >= _LEAST_TURNS and clock() - begin > _NODE_NS:
            break
        if turn + 1 == TRIED:
            most = HOPELESS * min(map(min, times))
            left = [at for at in left if not at or min(times[at]) <= most]
    quartiles = [_quartiles(each) for each in times]
    return TrialResult(node, quartiles, fastest(quartiles))


def runner(candidate: Candidate, machine: MachineSetting) -> Callable[[], object]:
    """Return a function that computes a candidate's node once."""
    plan = candidate.plan
    made = {each.name: each.values(plan.tensors[each.name].type) for each in candidate.recoded}
    plan = plan._replace(constants={**plan.constants, **made})
    choice = None if candidate.way is None else _Listening(candidate.way)
    settings = Settings(machine.threads, dispatch=Dispatch(isa=machine.isa, choice=choice))
    executor = CompiledExecutor.compile(plan, settings)
    inputs = [_values(plan.tensors[name].type) for name in plan.reads]
    outputs = executor.run(inputs)
    return lambda: executor.run(inputs, outputs)


def _quartiles(times: Sequence[float]) -> Quartiles:
    """Return quartiles that lie between the least and the largest time."""
    positive = [max(each, 1.0) for each in times]
    return Quartiles(*statistics.quantiles(positive, n=4, method="inclusive"))


def formats_left_alone(plan: Plan) -> list[str]:
    """Return the packed weights whose formats cannot be changed: the plan lacks the plain ones."""
    tensors = [plan.tensors, *(entry.tensors for entry in plan.entries.values())]
    return sorted(
        {
            name
            for each in tensors
            for name, spec in each.items()
            if spec.role == "constant" and is_packed(spec.type) and name not in plan.derived
        }
    )
