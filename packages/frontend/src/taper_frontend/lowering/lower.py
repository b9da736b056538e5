"""Lower a captured program to a graph, with one handler call per ATen node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.float_codes import TORCH_FLOATS
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Constant, Parameter, literal, looked_up
from taper_frontend.compiler.graph.node import Meaning
from taper_frontend.errors import BatchError, UnsupportedNode, UnsupportedNodesError
from taper_frontend.lowering.aten_program import tensors_of
from taper_frontend.lowering.keep import Keep
from taper_frontend.lowering.needed_calls import is_only_computed_with
from taper_frontend.lowering.pytrees import Tree, describe_tree, value_leaf
from taper_frontend.lowering.representation import Pairs, is_complex, represented, stored_type
from taper_frontend.lowering.symbols import Sizes
from taper_frontend.lowering.walk import POISON, Findings, Walk, holds_poison
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, linear
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.trees import TENSORS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import sympy

    from taper_frontend.lowering.aten_program import (
        AtenProgram,
        InputSpec,
        Node,
        OutputSpec,
        Weight,
    )
    from taper_frontend.lowering.walk import Poison

_CONSTANT_KINDS = frozenset({"parameter", "buffer", "constant tensor"})

#: The names that torch gives tensors that ``forward`` makes; others are attributes of modules.
_MADE = re.compile(r"(^|\.)(lifted_tensor_|_tensor_constant)\d+$")

#: The results that the user does not get.
_HIDDEN = frozenset({"buffer mutation", "token", "input mutation"})


class Lowered(NamedTuple):
    """The result of lowering a program.

    Attributes
    ----------
    graph : Graph
    input_tree, output_tree : plain data
        The structure of inputs and outputs; see :class:`taper_runtime.plan.plan.Plan`.
    symbols : dict of sympy.Symbol to size
        torch's symbols, as expressions in the size variables.
    complex_reads : frozenset of str
        The inputs and states that hold complex numbers.
    complex_outputs : frozenset of int
        The indices of the outputs that hold complex numbers.
    written : tuple of str
        The inputs that the module writes to. Their new values are the last outputs.
    weights : tuple of Parameter
        All parameters and persistent buffers of the program except its states, if a session may
        replace them; else empty.
    """

    graph: Graph
    input_tree: Tree
    output_tree: Tree
    symbols: dict[sympy.Symbol, int]
    complex_reads: frozenset[str]
    complex_outputs: frozenset[int]
    written: tuple[str, ...] = ()
    weights: tuple[Parameter, ...] = ()


class _Ends(NamedTuple):
    """The leaves of a program's inputs and results, and of inputs' new values by their names."""

    inputs: list[Tree]
    results: list[Tree]
    written: dict[str, Tree]


class Survey(NamedTuple):
    """The part of a program that can be lowered, and the reasons for the rest.

    Attributes
    ----------
    graph : Graph
        The part that can be lowered. Refused values are inputs of it; unused values are outputs.
    refused : list of UnsupportedNode
    symbols : dict of sympy.Symbol to size
        See :class:`Lowered`.
    """

    graph: Graph
    refused: list[UnsupportedNode]
    symbols: dict[sympy.Symbol, int]


def lower(
    program: AtenProgram,
    names: Mapping[str, str] | None = None,
    *,
    ranged: Collection[str] = (),
    trusting: bool = False,
    inputs: Mapping[str, str] | None = None,
    keep: Keep | None = None,
    replaceable: bool = False,
) -> Lowered:
    """Lower a captured program.

    Constants keep the names of the module's state dict; other tensors are named after their
    nodes. A tensor tied to several names becomes one constant. Unused constants are left out. An
    output may be an input or a constant.

    Parameters
    ----------
    program : AtenProgram
    names : mapping of str to str, optional
        Names for torch's size symbols; symbols with the same name are the same size.
    ranged : collection of str
        The symbols whose smallest size was given by the user.
    trusting : bool
        Whether all other ranges start where torch says, even if smaller sizes could be proved
        valid.
    inputs : mapping of str to str, optional
        Names for the inputs, by the names of their placeholders.
    keep : Keep, optional
        The ops whose calls become CALL nodes.
    replaceable : bool
        Whether a session may replace the values of parameters and persistent buffers. If so, no
        decision may depend on these values.

    Returns
    -------
    Lowered

    Raises
    ------
    UnsupportedNodesError
        If something in the program cannot be lowered; the message lists everything.
    InternalError
        If a handler's result has a dtype or shape that differs from torch's.
    """
    keep = keep or Keep()
    walk, ends = _walk(program, names or {}, ranged, trusting, inputs or {}, keep, replaceable)
    return walk.finish(ends)


def survey(
    program: AtenProgram,
    names: Mapping[str, str] | None = None,
    *,
    ranged: Collection[str] = (),
) -> Survey:
    """Lower as much of a captured program as possible; see :func:`lower` for the arguments."""
    walk, _ = _walk(program, names or {}, ranged, False, {}, Keep())
    graph = walk.graph
    walk.set_next_values()
    graph.set_outputs(name for name in graph.nodes if not graph.is_used(name))
    return Survey(graph, walk.findings.refused, walk.sizes.symbols)


def _walk(
    program: AtenProgram,
    names: Mapping[str, str],
    ranged: Collection[str],
    trusting: bool,
    inputs: Mapping[str, str],
    keep: Keep,
    replaceable: bool = False,
) -> tuple[_ProgramWalk, _Ends]:
    """Lower the nodes, for the largest ranges of sizes for which that succeeds."""
    least: dict[str, int] = {}
    limited: dict[str, int] = {}
    while True:
        sizes = Sizes(program, names, ranged, least, limited, trusting=trusting)
        walk = _ProgramWalk(program, sizes, inputs, keep, replaceable)
        ends = walk.lower_program()
        undecided = sorted(walk.findings.undecided)
        closer = {name: limited.get(name, -1) + 1 for name in undecided if sizes.limits(name)}
        if closer := {name: by for name, by in closer.items() if by <= 1}:
            limited |= closer
            continue
        more = {name: walk.sizes.raised(name) for name in undecided}
        if not any(more.values()):
            return walk, ends
        least |= {name: start for name, start in more.items() if start}


class _ProgramWalk(Walk):
    """One pass over a program: its inputs, outputs, constants and states, and its nodes."""

    def __init__(
        self,
        program: AtenProgram,
        sizes: Sizes,
        inputs: Mapping[str, str],
        keep: Keep,
        replaceable: bool,
    ) -> None:
        """Collect what the signature says: parameters, tied memory, states, inputs and outputs."""
        graph = Graph(sizes.ranges, sizes.examples)
        super().__init__(graph, sizes, Findings([], set()), program.training, keep)
        self.program = program
        self.inputs = inputs
        self.replaceable = replaceable
        self.constants: dict[str, InputSpec] = {}
        self.tied: dict[tuple[Any, ...], str] = {}
        self.parameters: dict[tuple[Any, ...], Parameter] = {}
        # for each memory the names in the state dict: several if tied
        self.names: dict[tuple[Any, ...], list[str]] = {}
        for name, tensor in program.state_dict.items():
            if not tensor.refused and 0 not in tensor.value.shape:
                self.names.setdefault(tensor.memory, []).append(name)
        # for each state the node of its next value
        self.states: dict[str, str] = {}
        # for each buffer that the module writes to, the node of its next value
        self.written = {
            spec.target or "": spec.name
            for spec in program.outputs
            if spec.kind == "buffer mutation"
        }

    def finish(self, ends: _Ends) -> Lowered:
        """Return the result after all nodes have been lowered."""
        if self.findings.refused:
            raise UnsupportedNodesError(self.findings.refused)
        leaves = [*ends.results, *ends.written.values()]
        outputs = [name for kind, name in leaves if kind in TENSORS]
        if holds_poison([*outputs, *map(self.value, self.written.values())]):
            raise InternalError("an output has no value although nothing was refused")
        self._note_values()
        self.graph.set_outputs(map(str, outputs))
        self.set_next_values()
        self.graph.prune(list(self.graph.constants))  # a body has its own
        program = self.program
        output_tree = describe_tree(program.output_structure, map(_plain, ends.results))
        if ends.written:
            new = [[written_name(name), _plain(leaf)] for name, leaf in ends.written.items()]
            output_tree = ["tuple", [output_tree, ["dict", new]]]
        pairs = {value for value in self.values.values() if isinstance(value, Pairs)}
        return Lowered(
            self.graph,
            describe_tree(program.input_structure, map(_plain, ends.inputs)),
            output_tree,
            self.sizes.symbols,
            frozenset(name for name in self.graph.reads if name in pairs),
            frozenset(i for i, name in enumerate(outputs) if isinstance(name, Pairs)),
            tuple(ends.written),
            tuple(self._weights()) if self.replaceable else (),
        )

    def _note_values(self) -> None:
        """Record which tensors of the graph represent values of the captured program."""
        for name, tensor in self.values.items():
            made = isinstance(tensor, str) and tensor in self.graph.producers
            if made and (value := self.program.captured_name(name)):
                self.graph.means(str(tensor), Meaning(value))

    def _weights(self) -> Iterator[Parameter]:
        """Yield each weight that a session may replace once."""
        done: set[int] = set()
        for spec in self.constants.values():
            tensor = self._tensor(spec)
            if spec.kind == "constant tensor" or spec.target in self.written:
                continue
            parameter = None if tensor.refused else self._parameter(spec, tensor)
            if parameter is not None and parameter.is_replaceable and id(parameter) not in done:
                done.add(id(parameter))
                yield parameter

    def set_next_values(self) -> None:
        """Set the next values of the states, as far as they could be lowered."""
        for state, name in self.states.items():
            if (tensor := self.value(name)) is not POISON:
                self.graph.set_next(state, str(tensor))
        if self.context.generator is not None and self.context.generator_state is not None:
            self.graph.set_next(self.context.generator_state, self.context.generator)

    def lower_program(self) -> _Ends:
        """Lower all nodes; return the leaves of inputs and outputs."""
        nodes = self.program.nodes
        placeholders = {node.name: node for node in nodes if node.op == "placeholder"}
        input_leaves = [
            leaf
            for spec in self.program.inputs
            if (leaf := self._bind(spec, placeholders)) is not None
        ]
        self._bind_states(placeholders)
        self.lower_nodes(nodes)
        results = [
            leaf for spec in self.program.outputs if (leaf := self._result(spec)) is not None
        ]
        written = {
            self.inputs.get(spec.target or "", spec.target or ""): [
                "tensor",
                self.value(spec.name),
            ]
            for spec in self.program.outputs
            if spec.kind == "input mutation"
        }
        return _Ends(input_leaves, results, written)

    # -- ends -------------------------------------------------------------------------------------

    def _bind(self, spec: InputSpec, placeholders: dict[str, Node]) -> Tree | None:
        """Set the value of a placeholder; return its leaf if it is one of the user's inputs."""
        name, form = spec.name, spec.form
        if spec.kind in _CONSTANT_KINDS:
            self.constants[name] = spec
            return None
        self.values[name] = POISON
        if spec.kind == "token":  # it orders effects, and is not an argument of the user
            return None
        if form == "value":
            self.values[name] = spec.value
            return value_leaf(spec.value)
        what = f"input {name!r}"
        if form == "int":
            return self._bind_int(what, placeholders[name])
        if form == "object" and spec.kind == "object":
            reason = f"expected a tensor, got an object of class {spec.value}"
            self.refuse(f"constant {spec.target!r}", "op", reason)
        elif form == "object":  # such as a random generator
            self.refuse(what, "op", f"expected a tensor, got a {spec.value}")
        elif form != "tensor" or spec.kind != "input":
            self.refuse(what, "op", f"expected a tensor, got a {form}")
        else:
            value = placeholders[name].value
            try:
                if value.refused:
                    self.refuse(what, "dtype", value.refused)
                elif type_ := self.sizes.type(value):
                    self.values[name] = self.add_input(self.inputs.get(name, name), type_)
            except OpError as error:
                self.refuse(what, "dynamic shape", str(error))
        return ["tensor", self.values[name]]

    def _bind_int(self, what: str, node: Node) -> Tree:
        """Make an input of a varying int: a size if shapes depend on it, else a number."""
        name = self.add_input(self.inputs.get(node.name, node.name), TensorType("int64", ()))
        expr = node.value.expr
        if is_only_computed_with(node, self.program):
            self.values[node.name] = name
        elif not expr.is_symbol or expr in self.sizes.symbols:
            reason = f"it must equal {expr} of other inputs; compute it from their shapes"
            self.refuse(what, "dynamic shape", reason)
        else:
            try:
                size = self.sizes.add_int(expr, self.program.example_ints.get(node.name))
            except OpError as error:
                self.refuse(what, "dynamic shape", str(error))
            else:
                self.values[node.name] = size
                self.context.measure(size, name)
        return ["number", name]

    def _bind_states(self, placeholders: dict[str, Node]) -> None:
        """Make states of the buffers that the module writes to."""
        buffers = {spec.target: spec for spec in self.constants.values()}
        batches: dict[str, Size] = {}
        for target in self.written:
            name = buffers[target].name
            tensor = self._tensor(buffers[target])
            if tensor.value.refused:
                self.refuse(f"buffer {target!r}", "dtype", tensor.value.refused)
                self.values[name] = POISON
                continue
            type_ = self.sizes.type(placeholders[name].value)
            assert type_ is not None
            held = stored_type(type_)
            first = tensor.read()
            for axis, size in enumerate(held.shape):
                if isinstance(size, Size):  # all rows are equal
                    first = first.take([0], axis)
                    batches[target] = size
            state = self.graph.add_state(target, first.copy(), held.dtype, held.shape)
            self.values[name] = represented(state, type_.dtype)
            self.states[state] = self.written[target]
        for target, size in batches.items():
            self._bind_batch(target, size, next(iter(batches.values())))

    def _bind_batch(self, target: str, size: Size, first: Size) -> None:
        """Let the rows of a state be the items of a batch, as those of the first state are."""
        known = linear(size)
        if known is None or known[1:] != (1, 0) or size != first:
            raise BatchError(
                f"state {target!r}: expected the same batch size, {first}, for all states, got "
                f"{size} from the model"
            )
        low, high = self.graph.sizes[known[0]]
        if low > 1:
            raise BatchError(
                f"state {target!r}: expected a batch of 1 or more, because a state has one row, "
                f"got {known[0]} of {low} or more"
            )
        self.graph.sizes[known[0]] = 1, high  # there is no state of no row

    def _result(self, spec: OutputSpec) -> Tree | None:
        """Return the leaf of one of the user's outputs."""
        if spec.kind in _HIDDEN:
            return None
        if spec.kind == "parameter mutation":
            what = f"parameter {spec.target!r}"
            reason = "the model writes to it in forward, a plan only to its state; write to a clone"
            self.refuse(what, "mutation", reason)
            return None
        if spec.form == "value":
            return value_leaf(spec.value)
        if spec.form == "number":
            return self._number_result(spec.name)
        if spec.kind != "output" or spec.form != "tensor":
            self.refuse(f"output {spec.name!r}", "op", f"expected a tensor, got a {spec.form}")
            return None
        computing = (node for node in self.program.nodes if node.name == spec.name)
        for value in tensors_of(computing):
            if value.is_of_codes:
                self.refuse(f"output {spec.name!r}", "dtype", value.refused)
        return ["tensor", self.value(spec.name)]

    def _number_result(self, name: Any) -> Tree:
        """Return the leaf of a number among the outputs: a scalar, or a fixed value."""
        value = self.value(name) if name in self.values else name
        if isinstance(value, Size):
            value = self.context.size_value(value, "int64")
        if isinstance(value, str) or value is POISON:
            return ["number", value]
        return value_leaf(value)

    def value(self, name: str) -> Any:
        """Return the value of a node; a constant is added to the graph at its first use."""
        if name not in self.values:
            self.values[name] = self._constant(self.constants[name])
        return self.values[name]

    def _tensor(self, spec: InputSpec) -> Weight:
        name = spec.target or spec.name
        program = self.program
        return (program.constants if name in program.constants else program.state_dict)[name]

    def _constant(self, spec: InputSpec) -> str | Poison:
        """Add the constant of an input of the program; tied tensors are one constant."""
        name = spec.target or spec.name
        tensor = self._tensor(spec)
        if tensor.refused:
            self.refuse(f"{spec.kind} {name!r}", "dtype", tensor.refused)
            return POISON
        key = tensor.memory
        if key not in self.tied or 0 in tensor.value.shape:
            type_ = _type(tensor)
            recipe: Constant
            if spec.kind == "constant tensor" and _MADE.search(name):
                recipe = literal(tensor.read(), stored_type(type_).dtype)
            else:
                recipe = self._parameter(spec, tensor)
            if tensor.value.dtype in TORCH_FLOATS:
                recipe = looked_up(recipe, TORCH_FLOATS[tensor.value.dtype])
            self.tied[key] = represented(self.graph.add_constant(name, recipe), type_.dtype)
        return self.tied[key]

    def _parameter(self, spec: InputSpec, tensor: Weight) -> Parameter:
        """Return the Parameter of a tensor; tied tensors give the same object."""
        name, type_ = spec.target or spec.name, _type(tensor)
        alone = 0 in tensor.value.shape or spec.kind == "constant tensor"
        key = (name,) if alone else tensor.memory
        if key not in self.parameters:
            self.parameters[key] = Parameter(
                stored_type(type_),
                tuple(dict.fromkeys([name, *self.names.get(tensor.memory, ())])),
                tensor.read,
                kind=spec.kind if spec.is_stored else "constant",
                is_replaceable=self.replaceable and spec.is_stored,
                is_complex=is_complex(type_.dtype),
            )
        return self.parameters[key]


def written_name(name: str) -> str:
    """Return the name of an output that is the new value of an input."""
    return f"{name}.new"


def _plain(leaf: Tree) -> Tree:
    """Return a leaf with the plain name of its tensor in the graph."""
    kind, value = leaf
    return [kind, str(value) if kind in TENSORS else value]


def _type(tensor: Weight) -> TensorType:
    """Return the type of a weight's array."""
    value = tensor.value
    return TensorType("uint8" if value.dtype in TORCH_FLOATS else value.dtype, value.shape)
