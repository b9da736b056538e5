"""Make a graph of a plan again, so that passes can run on a file's plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.source_calls import function_of
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph.constants import Derived, Literal, Parameter
from taper_frontend.compiler.graph.graph import Graph
from taper_frontend.compiler.graph.node import SourceCall, SourceLine
from taper_frontend.compiler.planning import make_plan
from taper_frontend.errors import ExportError
from taper_runtime.executor.program import example_sizes
from taper_runtime.file.fields import KEPT_FIELDS
from taper_runtime.plan.recipes import WEIGHT, parameter_names
from taper_runtime.plan.replaceable import (
    is_packed,
    recipe_types,
    step_op,
    weight_values,
    without_decoded,
    without_packed,
)
from taper_runtime.plan.trees import TENSORS, with_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.pipeline import Pass
    from taper_frontend.compiler.planning import Schedule
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode, TensorSpec
    from taper_runtime.plan.recipes import RecipeStep


def to_graph(plan: Plan) -> Graph:
    """Return the graph that a plan computes, with the plan's names.

    Constants keep the formats in which they are stored: a packed weight stays packed. One that
    sessions pack is a PACK of the plain weight. The plan is not changed, and the graph shares its
    arrays.

    Raises
    ------
    ExportError
        If the plan has several entries, or weights that a session may replace.
    """
    return to_named_graph(plan)[0]


def to_named_graph(plan: Plan) -> tuple[Graph, dict[Constant, tuple[str, ...]]]:
    """Return the graph of :func:`to_graph`, and the parameters that its constants are made of."""
    if plan.entries:
        raise ExportError(f"expected a plan of one entry, got {', '.join(plan.entry_names)}")
    if any(weight.kind != "constant" for weight in plan.weights.values()):
        raise ExportError(
            "expected a plan whose weights are fixed: another graph might not compute its "
            "constants from the same weights; export the module with the passes instead"
        )
    given = {name: limits for name, limits in plan.sizes.items() if name not in plan.origins}
    graph = Graph(given, {name: n for name, n in example_sizes(plan).items() if name in given})
    maker = _GraphMaker(plan, graph)
    maker.make()
    return graph, maker.parameters


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
    passes_run = [*plan.metadata.get("passes", ()), *done]
    return plan_again(plan, graph, {**plan.metadata, "passes": passes_run}, renamed)


def plan_again(
    plan: Plan,
    graph: Graph,
    metadata: Mapping[str, Any],
    renamed: Mapping[str, str] | None = None,
    *,
    packed_at_open: bool | None = None,
    schedule: Schedule | None = None,
) -> Plan:
    """Make a plan of a graph that was made of another plan and then changed.

    Parameters
    ----------
    plan : Plan
        The other plan.
    graph : Graph
    metadata : mapping of str to object
        Of the new plan; nobody has compared it with a module, so ``verified`` is left out.
    renamed : mapping of str to str, optional
        New names of outputs.
    packed_at_open : bool, optional
        Whether sessions pack weights; by default as in the other plan.
    schedule : Schedule, optional
        The order of the graph's nodes, as for :func:`.make_plan`.
    """
    if packed_at_open is None:
        packed_at_open = any(is_packed(plan.tensors[name].type) for name in plan.derived)
    renamed = renamed or {name: name for name in plan.outputs}
    metadata = {key: value for key, value in metadata.items() if key != "verified"}
    new = make_plan(
        graph,
        schedule,
        samples=plan.samples,
        input_tree=plan.input_tree,
        output_tree=None if plan.output_tree is None else _renamed(plan.output_tree, renamed),
        metadata=metadata,
        complex_ends=[name for name, spec in plan.tensors.items() if spec.is_complex],
        packed_at_open=packed_at_open,
    )
    recipes = {
        name: recipe
        for name, recipe in plan.provenance.items()
        if name in plan.constants
        and new.constants.get(name) is not None
        and new.constants[name].shape == plan.constants[name].shape
        and new.constants[name].tobytes() == plan.constants[name].tobytes()
    }
    kept = {field: getattr(plan, field) for field in KEPT_FIELDS}
    new = new._replace(provenance={**new.provenance, **recipes}, **kept)
    return without_decoded(without_packed(new) if packed_at_open else new)


def _renamed(tree: Any, names: Mapping[str, str]) -> Any:
    return with_leaves(tree, lambda leaf: [leaf[0], names[leaf[1]]] if leaf[0] in TENSORS else leaf)


class _GraphMaker:
    """Adds what a plan has to a graph."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
        self._plan = plan
        self._graph = graph
        self.parameters: dict[Constant, tuple[str, ...]] = {}
        self._weights = weight_values(plan)
        self._leaves: dict[str, Constant] = {}
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
            constant = self._constant(name, spec)
            names[name] = graph.add_constant(name.removeprefix(prefix), constant)
        return names[name]

    def _constant(self, name: str, spec: TensorSpec) -> Constant:
        recipe = self._plan.derived.get(name)
        constant: Constant
        if recipe is None:
            constant = Literal(spec.type, self._plan.constants[name])
        else:
            constant = self._made(recipe)
        known = self._plan.provenance.get(name) or recipe or ()
        self.parameters[constant] = parameter_names(known) or (name,)
        return constant

    def _made(self, recipe: Sequence[RecipeStep]) -> Constant:
        """Return the constant that a recipe computes from weights."""
        made: list[Constant] = []
        for step, type_ in zip(recipe, recipe_types(recipe, self._plan.weights), strict=True):
            if step.op == WEIGHT:
                made.append(self._weight(step.attrs["name"], type_))
                continue
            op, index = step_op(step.op)
            inputs = tuple([None if place is None else made[place] for place in step.inputs])
            made.append(Derived(type_, op, inputs, step.attrs, "", index))
        return made[-1]

    def _weight(self, name: str, type_: TensorType) -> Constant:
        if name not in self._leaves:
            array = self._weights[name]
            self._leaves[name] = Parameter(type_, (name,), lambda: array, "constant")
        return self._leaves[name]

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
