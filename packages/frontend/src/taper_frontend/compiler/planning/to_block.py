"""Make plan data of a graph and of the graphs inside its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.source_calls import arguments_of
from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.planning.sharing import Sharing
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.plan import Placement, PlanBlock, PlanNode, TensorSpec

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.planning.order import Schedule


class PlannedBlock(NamedTuple):
    """A graph as a plan has it.

    Attributes
    ----------
    block : PlanBlock
        Its tensors are also the states, and the constants of all blocks.
    constants : dict of str to Constant
        Those of the graph, and of the graphs inside its nodes.
    """

    block: PlanBlock
    constants: dict[str, Constant]


def to_block(graph: Graph, schedule: Schedule) -> PlannedBlock:
    """Take the order of a schedule, share memory, and give every tensor a name of its own.

    Tensors of the graph keep their names; those of a graph inside a node begin with the node's, and
    a constant that is one of the graph's as well is that one.
    """
    maker = _BlockMaker(graph)
    replaced = {state.next: state.name for state in graph.states}
    block = maker.block(graph, schedule, {name: name for name in graph.tensors}, replaced)
    tensors = {**block.tensors, **maker.tensors}
    placements = {**block.placements, **maker.placements}
    return PlannedBlock(
        block._replace(tensors=tensors, placements=placements),
        {**graph.constants, **maker.constants},
    )


class _BlockMaker:
    """State shared by all blocks of a graph: the names in use, and the constants."""

    def __init__(self, graph: Graph) -> None:
        self._taken = set(graph.tensors)
        self._shared = {constant.identity: name for name, constant in graph.constants.items()}
        self.constants: dict[str, Constant] = {}
        self.tensors: dict[str, TensorSpec] = {}
        self.placements: dict[str, Placement] = {}

    def block(
        self, graph: Graph, schedule: Schedule, names: dict[str, str], replaced: dict[str, str]
    ) -> PlanBlock:
        """Make the block of a graph whose tensors are to have these names."""
        schedule.check(graph)
        order = list(schedule.order)
        places, outputs = Sharing(graph, order, replaced).placements(), set(graph.writes)
        tensors, placements = {}, {}
        for name, spec in graph.tensors.items():
            root, offset, strides = places[name]
            role = "output" if name in outputs else spec.role
            tensors[names[name]] = spec._replace(name=names[name], role=role)
            placements[names[name]] = Placement(names[root], offset, strides)
        return PlanBlock(
            nodes=tuple([self._node(graph, node, schedule, names) for node in order]),
            tensors=tensors,
            placements=placements,
            inputs=tuple([names[name] for name in graph.inputs]),
            outputs=tuple([names[name] for name in graph.outputs]),
        )

    def _node(
        self, graph: Graph, node: Node, schedule: Schedule, names: dict[str, str]
    ) -> PlanNode:
        complete = node.complete_attrs()
        defaults = {name: attr.default for name, attr in node.definition.attrs.items()}
        inside = schedule.inside.get(node.output, ())
        return PlanNode(
            node.op,
            tuple([None if name == ABSENT else names[name] for name in node.inputs]),
            tuple([names[name] for name in node.outputs]),
            {k: value for k, value in complete.items() if not _same(value, defaults[k])},
            node.source.line,
            tuple([self._inner(node, each, names, index) for index, each in enumerate(inside)]),
            node.source.targets,
            arguments_of(graph, node),
        )

    def _inner(
        self, node: Node, schedule: Schedule, names: dict[str, str], index: int
    ) -> PlanBlock:
        """Make the block of one of a node's graphs; its constants become the plan's."""
        graph = node.blocks[index]
        prefix = f"{names[node.output]}.{index}"
        inner = {
            name: self._constant(f"{prefix}.{name}", graph.constants[name])
            if name in graph.constants
            else self._unique(f"{prefix}.{name}")
            for name in graph.tensors
        }
        carries = node.definition.carries(node.complete_attrs(), index)
        replaced = dict(zip(graph.outputs[:carries], graph.inputs, strict=False))
        block = self.block(graph, schedule, inner, replaced)
        own = {name: spec for name, spec in block.tensors.items() if spec.role != "constant"}
        for name in block.tensors.keys() - own.keys():
            if name in self.constants:
                self.tensors[name] = block.tensors[name]
                self.placements[name] = block.placements[name]
        places = {name: place for name, place in block.placements.items() if name in own}
        return block._replace(tensors=own, placements=places)

    def _constant(self, name: str, constant: Constant) -> str:
        """Return the plan's name for a constant of a block; what is computed alike has one."""
        if constant.identity not in self._shared:
            name = self._unique(name)
            self._shared[constant.identity] = name
            self.constants[name] = constant
        return self._shared[constant.identity]

    def _unique(self, base: str) -> str:
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


def _same(value: Any, default: Any) -> bool:
    """Equal and of one type: 0, 0.0 and False are different attrs."""
    return type(value) is type(default) and bool(value == default)
