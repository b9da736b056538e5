"""Lower the nodes of one graph of a program with their handlers, and collect refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.errors import UnsupportedNode
from taper_frontend.lowering.aten_program import (
    BodyGraph,
    DtypeArgument,
    Node,
    SymbolicNumber,
    nested_leaves,
    nodes_among,
    replaced,
    tensors_of,
    unbacked_shapes,
)
from taper_frontend.lowering.context import Lowering, Refusal
from taper_frontend.lowering.fraction import lower_fraction
from taper_frontend.lowering.keep import Keep, SourceCalls, keep_call
from taper_frontend.lowering.needed_calls import GETITEM, find_handler, is_item, needed
from taper_frontend.lowering.numbers import as_tensor, lower_number
from taper_frontend.lowering.quant import PREPACKS
from taper_frontend.lowering.representation import REPRESENTATIONS, represented, stored_type
from taper_frontend.lowering.symbols import SizeError, Sizes
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UndecidedError, variables
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.lowering.context import Operand
    from taper_frontend.lowering.handlers import Handler

#: Arguments about the memory of a result, which plans ignore.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})

#: A refusal of tensors of these dtypes does not depend on their dtype.
_ORDINARY = frozenset({"float32", "int64", "int32", "bool"})


_Arguments = tuple[list[Any], dict[str, Any]]


class Poison:
    """A placeholder for a value that depends on a refused node and has no known type."""


POISON = Poison()


class RefusedBody(Exception):
    """A node in the body of a control-flow op was refused, and the refusal recorded."""


class Findings(NamedTuple):
    """The refusals collected while a program is lowered.

    Attributes
    ----------
    refused : list of UnsupportedNode
    undecided : set of str
        Size variables whose ranges left a question undecided.
    """

    refused: list[UnsupportedNode]
    undecided: set[str]


class Walk:
    """One pass over the nodes of one graph of a program.

    Attributes
    ----------
    graph : Graph
        The graph to which nodes are added.
    values : dict of str to value
        The value of each node of the program: the name of a tensor, names of several, a plain
        value, a size, or :data:`POISON`.
    """

    def __init__(
        self,
        graph: Graph,
        sizes: Sizes,
        findings: Findings,
        training: bool,
        keep: Keep,
        prefix: str = "",
    ) -> None:
        self.graph = graph
        self.sizes = sizes
        self.findings = findings
        self.keep = keep
        self.context = Lowering(graph, sizes, training, prefix, self.lower_block, self.lower_inline)
        self.values: dict[str, Any] = {}
        self._calls = SourceCalls(graph, self._argument_before)
        # the source of nodes for which torch recorded no line
        self._around = ""
        self._is_body = bool(prefix)

    def value(self, name: str) -> Any:
        """Return the value of a node."""
        return self.values[name]

    def lower_nodes(self, nodes: Iterable[Node]) -> None:
        """Lower the nodes that results depend on."""
        nodes = list(nodes)
        wanted = set(needed(nodes))
        for node in nodes:
            if node.op == "call_function":
                self.values[node.name] = self._lower(node) if node in wanted else POISON
        self._calls.note()

    def lower_block(
        self,
        body: BodyGraph,
        prefix: str,
        source: str,
        leading: Sequence[TensorType],
        others: Sequence[Operand],
        is_condition: bool,
    ) -> Graph:
        """Lower the body of a control-flow op: see :meth:`.Lowering.block`.

        Raises
        ------
        RefusedBody
            If something in it was refused.
        """
        graph = self.graph.new_block()
        walk = Walk(graph, self.sizes, self.findings, self.context.training, self.keep, prefix)
        walk._around = source
        state, *leading = leading
        walk.context.generator = graph.add_input(f"{prefix}generator", state.dtype, state.shape)
        nodes = body.nodes
        placeholders = [node.name for node in nodes if node.op == "placeholder"]
        for name, operand in zip(placeholders, (*leading, *others), strict=True):
            walk.values[name] = self._bind_operand(graph, f"{prefix}{name}", operand)
        if (taken := self.context.taken) is not None:
            walk.context.taken = self._bind_operand(graph, f"{prefix}taken", taken)
        tensors = [as_tensor(walk.context, value) for value in walk._lower_body(nodes)]
        if is_condition:
            tensors = [walk.context.if_taken(tensor, False) for tensor in tensors]
        graph.set_outputs([walk.context.generator, *tensors])
        graph.prune(list(graph.constants))  # each body gets the operands that any of them reads
        return graph

    def lower_inline(
        self,
        body: BodyGraph,
        prefix: str,
        source: str,
        operands: Sequence[Operand],
        taken: str | None,
    ) -> list[Any]:
        """Lower a body into the graph itself: see :meth:`.Lowering.inline`.

        Sizes that its values decide are variables of their own, and another time other ones.

        Raises
        ------
        RefusedBody
            If something in it was refused.
        """
        walk = Walk(self.graph, self.sizes, self.findings, self.context.training, self.keep, prefix)
        walk._around, walk._is_body = source, self._is_body
        walk.context.go_on_from(self.context)
        walk.context.taken = taken
        nodes = body.nodes
        placeholders = [node.name for node in nodes if node.op == "placeholder"]
        walk.values |= zip(placeholders, operands, strict=True)
        known = set(self.sizes.symbols)
        values = walk._lower_body(nodes)
        for symbol in self.sizes.symbols.keys() - known:
            del self.sizes.symbols[symbol]
        self.context.go_on_from(walk.context)
        return values

    def _lower_body(self, nodes: Sequence[Node]) -> list[Any]:
        """Lower a body's nodes; return the values of its results.

        Raises
        ------
        RefusedBody
            If something in it was refused.
        """
        refused = len(self.findings.refused)
        self.lower_nodes(nodes)
        (results,) = next(node.args for node in nodes if node.op == "output")
        results = results if isinstance(results, list | tuple) else [results]
        values = [self.value(x.name) if isinstance(x, Node) else x for x in results]
        if holds_poison(values) or len(self.findings.refused) > refused:
            raise RefusedBody
        return values

    def _bind_operand(self, graph: Graph, name: str, operand: TensorType | Operand) -> Any:
        """Return the value that an operand has in a body."""
        if isinstance(operand, str):
            if (constant := self.graph.constants.get(operand)) is not None:
                return type(operand)(graph.add_constant(operand, constant))
            operand = self.context.type(operand)
        if isinstance(operand, TensorType):
            held = stored_type(operand)
            return represented(graph.add_input(name, held.dtype, held.shape), operand.dtype)
        return operand

    def _check_shapes(self, node: Node) -> None:
        """Refuse shapes that depend on values: a body's memory must be known before a run."""
        if not unbacked_shapes([node]) <= self.sizes.symbols.keys():
            raise Refusal(
                "the shape of a result in a body depends on values, and the memory of the body is "
                "planned before a run; compute it outside of the body",
                "data-dependent",
            )

    def _source(self, node: Node) -> str:
        return node.source or self._around

    def _begin(self, node: Node) -> None:
        types, source = self.sizes.types(node), self._source(node)
        self.context.begin(node, types, source, node.origin.target)

    def _lower(self, node: Node) -> Any:
        """Lower one node; return its value."""
        if node.target == GETITEM:
            return self._pick(node)
        try:
            if self._is_body:
                self._check_shapes(node)
            elif node.target == "cond" or not node.is_higher_order:
                self.sizes.bind(node)  # a loop returns its integers as scalars
            self._begin(node)
            arguments = self._arguments(node)
            handler = self._lower_kept if node.is_kept else find_handler(node)
            value = node.value
            kind = value.kind if isinstance(value, SymbolicNumber) else ""
            if is_item(node) and handler is not None and not holds_poison(arguments):
                return self._take_number(handler, arguments, node)
            if kind == "int" and self.sizes.knows(value):
                return self.sizes.convert(value.expr)
            if kind in ("int", "bool") and not holds_poison(arguments):
                return lower_number(self.context, node, arguments[0])
            if kind == "float" and self.sizes.knows(value) and tensors_of(node.users):
                return lower_fraction(self.context, self.sizes, value.expr)
            if handler is None or holds_poison(arguments):
                return POISON
            if node.target in PREPACKS:  # no tensor, so torch tells no types
                return handler(self.context, *arguments[0], **arguments[1])
            return self._call(handler, arguments, node)
        except RefusedBody:
            return self._stand_in(node)
        except Refusal as refusal:
            category, reason = refusal.category, str(refusal)
        except UndecidedError as error:
            self.findings.undecided.update(atom.text for atom in variables(error.size))
            category, reason = (
                "dynamic shape",
                f"{error}; a Dim with a narrower range may decide it",
            )
        except SizeError as error:
            category, reason = "dynamic shape", str(error)
        except OpError as error:
            dtypes = {value.dtype for value in tensors_of([node, *node.all_input_nodes])}
            category, reason = "op" if dtypes <= _ORDINARY else "dtype", str(error)
        except TypeError as error:
            if not self.sizes.ranges:
                raise
            category = "dynamic shape"
            reason = f"expected fixed sizes ({error})"
        self.refuse(node.target, category, reason, self._source(node))
        return self._stand_in(node)

    def _take_number(self, handler: Handler, arguments: _Arguments, node: Node) -> Any:
        """Lower a node that extracts a number from a tensor, to a size or a scalar tensor."""
        args, kwargs = arguments
        result = handler(self.context, *args, **kwargs)
        # torch asserts that a bool is 0 or 1, which needs no size
        if isinstance(result, str) and node.value.kind != "bool":
            values = [user.value for user in node.users]
            if any(isinstance(value, SymbolicNumber) and value.kind != "bool" for value in values):
                raise Refusal(
                    "expected an integer of at least 0 to compute with, got a number read from a "
                    "tensor that may be negative or a fraction; torch._check(n >= 0) makes it a "
                    "size",
                    "data-dependent",
                )
        return result

    def _pick(self, node: Node) -> Any:
        """Return one result of a multi-output node."""
        source, index = node.args
        values = self._argument(source)
        if values is POISON or values[index] is not None:
            return values if values is POISON else values[index]
        self.refuse(source.target, "op", f"result {index} is not lowered", node.source)
        return POISON

    def _call(self, handler: Handler, arguments: _Arguments, node: Node) -> Any:
        """Call the handler of a node and compare the results' types with torch's."""
        expected = self._types(node)
        before = set(self.graph.nodes) if self.keep.has(node.target) else set()
        args, kwargs = arguments
        result: Any
        try:
            result = handler(self.context, *args, **kwargs)
        except UndecidedError:
            raise
        except OpError:
            if not self.context.widen():
                raise
            args, kwargs = self._arguments(node)
            result = handler(self.context, *args, **kwargs)
        many = node.has_several_results
        names = self.context.finish(list(result) if many else [result])
        got = [None if name is None else self.context.type(name) for name in names]
        if len(got) != len(expected) or any(
            mine is not None and mine != torchs for mine, torchs in zip(got, expected, strict=True)
        ):
            message = f"{node.target}: expected {expected} as in torch, got {got}"
            if self.sizes.symbols:  # two forms of the same size
                raise UndecidedError(message, _difference(got, expected))
            raise InternalError(message)
        if self.keep.has(node.target) and any(name is not None for name in names):
            defined = not node.is_kept or node.kept is not None
            names = keep_call(self.graph, node, self._argument_before, before, names, defined)
        else:
            self._calls.add(node, self.context.made(), names)
        return names if many else names[0]

    def _lower_kept(self, ctx: Lowering, *args: Any, **kwargs: Any) -> Any:
        """Lower a kept call of an op without a handler: by its decomposition, if there is one.

        Otherwise its results are zeros, which only show the types.
        """
        node = ctx.node
        if node.kept is None:
            zeros = [ctx.full(t.shape, 0, t.dtype) for t in self._types(node) if t is not None]
            return zeros if node.has_several_results else zeros[0]
        walk = Walk(self.graph, self.sizes, self.findings, ctx.training, Keep())
        walk.context, walk._around, walk._is_body = ctx, self._source(node), self._is_body
        nodes = node.kept.nodes
        leaves = nodes_among((node.args, node.kwargs))
        for inner in nodes:
            if inner.op == "placeholder":
                walk.values[inner.name] = self._argument(next(leaves))
        for inner in needed(nodes):
            if inner.op == "call_function":
                walk.values[inner.name] = walk._lower(inner)
        (results,) = next(each.args for each in nodes if each.op == "output")
        found = replaced(results, lambda each: walk.values[each.name])
        self._begin(node)
        if holds_poison(found):
            raise RefusedBody
        return found

    def _types(self, node: Node) -> list[TensorType | None]:
        """Return the types of a node's results; integers count as scalars."""
        values = node.value if node.has_several_results else [node.value]
        types = self.sizes.types(node)
        number = TensorType("int64", ())
        return [
            number if isinstance(value, SymbolicNumber) and value.kind == "int" else type_
            for value, type_ in zip(values, types, strict=True)
        ]

    def _arguments(self, node: Node) -> _Arguments:
        """Return the arguments of a node in the form that a handler gets."""
        return (
            [self._argument(arg) for arg in node.args],
            {k: self._argument(arg) for k, arg in node.kwargs.items() if k not in _PLACEMENT},
        )

    def _attribute(self, node: Node) -> Any:
        """Return an attribute of the module of the graph: a body, or a literal."""
        value = node.attribute
        if value is None:
            return POISON
        return value if isinstance(value, BodyGraph) else self.context.weight(value)

    def _argument_before(self, arg: Any) -> Any:
        """Return the value of an argument, before its conversion for a handler."""
        return self.value(arg.name) if isinstance(arg, Node) else arg

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            value = self._attribute(arg) if arg.op == "get_attr" else self.value(arg.name)
            return self.context.tensor_argument(value) if isinstance(value, str) else value
        if isinstance(arg, list | tuple):
            return [self._argument(item) for item in arg]
        if isinstance(arg, DtypeArgument) and arg in REPRESENTATIONS:
            return self.context.dtype_argument(str(arg))
        return arg

    def _stand_in(self, node: Node) -> Any:
        """Return new inputs of the node's types, so that the nodes after it can be checked too."""
        try:
            types = self.sizes.types(node)
        except OpError:  # the types themselves were refused
            return POISON
        names = [POISON if t is None else self.add_input(node.name, t) for t in types]
        return names if node.has_several_results else names[0]

    def add_input(self, name: str, type_: TensorType) -> str:
        """Add an input of the graph for a tensor of this type; return its name."""
        held = stored_type(type_)
        return represented(self.graph.add_input(name, held.dtype, held.shape), type_.dtype)

    def refuse(self, op: str, category: str, reason: str, source: str = "") -> None:
        """Record that something cannot be lowered."""
        known = ((node.category, node.reason, node.source) for node in self.findings.refused)
        if category != "dynamic shape" or (category, reason, source) not in known:
            # what computes a size and what has it are refused for one reason
            self.findings.refused.append(UnsupportedNode(op, category, reason, source))


def _difference(got: Iterable[TensorType | None], expected: Iterable[TensorType | None]) -> int:
    """Return the difference of the first two sizes that differ; 0 if there are none."""
    pairs = (
        pair
        for mine, torchs in zip(got, expected, strict=False)
        if mine is not None and torchs is not None
        for pair in zip(mine.shape, torchs.shape, strict=False)
    )
    return next((a - b for a, b in pairs if a != b), 0)


def holds_poison(args: Any) -> bool:
    """Return whether a value among ``args`` is :data:`POISON`."""
    return any(leaf is POISON for leaf in nested_leaves(args))
