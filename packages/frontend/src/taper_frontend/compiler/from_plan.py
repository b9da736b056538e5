"""Make a graph of a plan again, so that passes can run on a file's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.source_calls import function_of
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph.constants import Literal
from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import SourceCall, SourceLine
from taper_frontend.compiler.planning import make_plan
from taper_frontend.errors import ExportError
from taper_runtime.plan.trees import TENSORS, with_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_frontend.compiler.pipeline import Pass
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode


def to_graph(plan: Plan) -> Graph:
    """Return the graph that a plan computes, with the plan's names.

    Constants keep the formats in which they are stored: a packed weight stays packed. The plan is
    not changed, and the graph shares its arrays.

    Raises
    ------
    ExportError
        If the plan has several entries, or weights that a session may replace.
    """
    if plan.entries:
        raise ExportError(f"expected a plan of one entry, got {', '.join(plan.entry_names)}")
    if plan.weights or plan.derived:
        raise ExportError(
            "expected a plan whose weights are fixed and stored as they are used: another graph "
            "might not compute its constants from the same weights; export the module with the "
            "passes instead"
        )
    given = {name: limits for name, limits in plan.sizes.items() if name not in plan.origins}
    graph = Graph(given, {name: max(low, 1) for name, (low, _) in given.items()})
    _GraphMaker(plan, graph).make()
    return graph


def run_passes(plan: Plan, passes: Sequence[Pass | str]) -> Plan:
    """Run passes on the graph of a plan, and plan it again; torch is not needed.

    The new plan is checked as every plan is, but not compared with the old one.

    Parameters
    ----------
    plan : Plan
        For example of :func:`taper_runtime.load`.
    passes : sequence of callable or str
        Functions ``(Graph) -> bool``, or names of passes or stages, in order.

    Raises
    ------
    ExportError
        As :func:`to_graph`, or if a pass does not exist.
    """
    graph = to_graph(plan)
    names = list(graph.outputs)
    records = compile_graph(graph, passes)
    renamed = dict(zip(names, graph.outputs, strict=True))
    done = [{"name": r.name, "before": r.before, "after": r.after} for r in records if r.changed]
    metadata = {**plan.metadata, "passes": [*plan.metadata.get("passes", ()), *done]}
    metadata.pop("verified", None)  # this plan was not
    new = make_plan(
        graph,
        samples=plan.samples,
        input_tree=plan.input_tree,
        output_tree=None if plan.output_tree is None else _renamed(plan.output_tree, renamed),
        metadata=metadata,
        complex_ends=[name for name, spec in plan.tensors.items() if spec.is_complex],
    )
    recipes = {
        name: recipe
        for name, recipe in plan.provenance.items()
        if new.constants.get(name) is not None
        and new.constants[name].shape == plan.constants[name].shape
        and new.constants[name].tobytes() == plan.constants[name].tobytes()
    }
    return new._replace(provenance={**recipes, **new.provenance})


def _renamed(tree: Any, names: Mapping[str, str]) -> Any:
    return with_leaves(tree, lambda leaf: [leaf[0], names[leaf[1]]] if leaf[0] in TENSORS else leaf)


class _GraphMaker:
    """Adds what a plan has to a graph."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
        self._plan = plan
        self._graph = graph
        self._origins: dict[str, list[tuple[str, int]]] = {}
        for size, (tensor, element) in plan.origins.items():
            self._origins.setdefault(tensor, []).append((size, element))

    def make(self) -> None:
        """Add everything."""
        plan, graph = self._plan, self._graph
        names: dict[str, str] = {}
        for name in plan.inputs:
            spec = plan.tensors[name]
            names[name] = graph.add_input(name, spec.dtype, spec.shape)
            self._add_sizes(graph, name)
        for name in plan.states:
            spec = plan.tensors[name]
            first = plan.first_value(name)
            shape = None if first.shape == spec.shape else spec.shape
            names[name] = graph.add_state(name, first, spec.dtype, shape)
        self._add_nodes(graph, plan.nodes, names, "")
        graph.set_outputs([self._name(graph, names, name, "") for name in plan.outputs])
        for name, following in plan.states.items():
            graph.set_next(names[name], self._name(graph, names, following, ""))

    def _name(self, graph: Graph, names: dict[str, str], name: str, prefix: str) -> str:
        """Return a tensor's name in a graph; a constant is added when it is first needed."""
        if name not in names:
            spec = self._plan.tensors[name]
            constant = Literal(spec.type, self._plan.constants[name])
            names[name] = graph.add_constant(name.removeprefix(prefix), constant)
        return names[name]

    def _add_nodes(
        self, graph: Graph, nodes: Iterable[PlanNode], names: dict[str, str], prefix: str
    ) -> None:
        """Add nodes. ``prefix`` is what planning puts before the names of a block's tensors."""
        for node in nodes:
            blocks = [
                self._block(graph, block, f"{node.output}.{index}.")
                for index, block in enumerate(node.blocks)
            ]
            outputs = graph.add_multi_output(
                node.op,
                [None if n is None else self._name(graph, names, n, prefix) for n in node.inputs],
                node.attrs,
                blocks=blocks,
                name=node.output.removeprefix(prefix),
                source=SourceLine(node.source, node.targets),
            )
            wanted = {
                old: new.removeprefix(prefix)
                for old, new in zip(outputs, node.outputs, strict=True)
                if old != new.removeprefix(prefix)
            }
            graph.rename(wanted)
            for old, name in zip(outputs, node.outputs, strict=True):
                names[name] = wanted.get(old, old)
                self._add_sizes(graph, name)
            if node.arguments is not None:
                made = graph.producers[names[node.output]]
                call = SourceCall(node.arguments, function_of(graph, made))
                made.source = made.source._replace(call=call)

    def _add_sizes(self, graph: Graph, tensor: str) -> None:
        for size, element in self._origins.get(tensor, ()):
            limits = self._plan.sizes[size]
            graph.add_computed_size(size, limits, (tensor, element), max(limits[0], 1))

    def _block(self, graph: Graph, block: PlanBlock, prefix: str) -> Graph:
        inner = graph.new_block()
        names = {}
        for name in block.inputs:
            spec = block.tensors[name]
            names[name] = inner.add_input(name.removeprefix(prefix), spec.dtype, spec.shape)
        self._add_nodes(inner, block.nodes, names, prefix)
        inner.set_outputs([self._name(inner, names, name, prefix) for name in block.outputs])
        return inner
