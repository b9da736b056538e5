"""Lower an exported program to a graph, with one handler call per ATen node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils._pytree import tree_leaves

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Constant, Parameter, literal
from taper_frontend.compiler.graph.node import Meaning
from taper_frontend.errors import BatchError, UnsupportedNode, UnsupportedNodesError
from taper_frontend.lowering.context import stored
from taper_frontend.lowering.fx_nodes import CAPTURED, is_only_computed_with
from taper_frontend.lowering.keep import Keep
from taper_frontend.lowering.pytrees import (
    Tree,
    argument_placeholders,
    describe_tree,
    value_leaf,
)
from taper_frontend.lowering.representation import (
    DTYPE_NAMES,
    Pairs,
    is_complex,
    refused_type,
    represented,
    stored_type,
)
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
    import torch
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec, OutputSpec
    from torch.fx import Node

    from taper_frontend.lowering.walk import Poison

#: The key in a program's metadata that says whether the module was in training mode.
TRAINING = "training"

_CONSTANT_KINDS = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})


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
    program: ExportedProgram,
    names: Mapping[str, str] | None = None,
    *,
    ranged: Collection[str] = (),
    trusting: bool = False,
    inputs: Mapping[str, str] | None = None,
    keep: Keep | None = None,
    replaceable: bool = False,
) -> Lowered:
    """Lower a captured program.

    Constants keep the names of the module's state dict; other tensors are named after their FX
    nodes. A tensor tied to several names becomes one constant. Unused constants are left out. An
    output may be an input or a constant.

    Parameters
    ----------
    program : ExportedProgram
        The result of :func:`taper_frontend.capture.capture`.
    names : mapping of str to str, optional
        Names for torch's size symbols; symbols with the same name are the same size.
    ranged : collection of str
        The symbols whose smallest size was given by the user.
    trusting : bool
        Whether all other ranges start where torch says, even if smaller sizes could be proved
        valid.
    inputs : mapping of str to str, optional
        Names for the inputs, by the names of their FX nodes.
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
    program: ExportedProgram,
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
    program: ExportedProgram,
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
        program: ExportedProgram,
        sizes: Sizes,
        inputs: Mapping[str, str],
        keep: Keep,
        replaceable: bool,
    ) -> None:
        """Collect what the signature says: parameters, tied memory, states, inputs and outputs."""
        training = program.graph_module.meta.get(TRAINING, False)
        graph = Graph(sizes.ranges, sizes.examples)
        super().__init__(graph, sizes, Findings([], set()), training, keep)
        self.program = program
        self.inputs = inputs
        self.replaceable = replaceable
        self.constants: dict[str, InputSpec] = {}
        self.tied: dict[tuple[Any, ...], str] = {}
        self.parameters: dict[tuple[Any, ...], Parameter] = {}
        # for each memory the names in the state dict: several if tied
        self.names: dict[tuple[Any, ...], list[str]] = {}
        for name, tensor in program.state_dict.items():
            if not refused_type(tensor) and tensor.numel():
                self.names.setdefault(_memory(tensor), []).append(name)
        # for each state the FX node of its next value
        self.states: dict[str, str] = {}
        # for each buffer that the module writes to, the FX node of its next value
        self.written = {
            spec.target: spec.arg.name
            for spec in program.graph_signature.output_specs
            if spec.kind == OutputKind.BUFFER_MUTATION
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
        spec = self.program.call_spec
        output_tree = describe_tree(spec.out_spec, map(_plain, ends.results))
        if ends.written:
            new = [[written_name(name), _plain(leaf)] for name, leaf in ends.written.items()]
            output_tree = ["tuple", [output_tree, ["dict", new]]]
        pairs = {value for value in self.values.values() if isinstance(value, Pairs)}
        return Lowered(
            self.graph,
            describe_tree(spec.in_spec, map(_plain, ends.inputs)),
            output_tree,
            self.sizes.symbols,
            frozenset(name for name in self.graph.reads if name in pairs),
            frozenset(i for i, name in enumerate(outputs) if isinstance(name, Pairs)),
            tuple(ends.written),
            tuple(self._weights()) if self.replaceable else (),
        )

    def _note_values(self) -> None:
        """Record which tensors of the graph represent values of the captured program."""
        captured = self.program.graph_module.meta.get(CAPTURED)
        for name, tensor in self.values.items():
            made = isinstance(tensor, str) and tensor in self.graph.producers
            if made and captured is not None and (value := captured.name(name)):
                self.graph.means(str(tensor), Meaning(value))

    def _weights(self) -> Iterator[Parameter]:
        """Yield each weight that a session may replace once."""
        done: set[int] = set()
        for spec in self.constants.values():
            tensor = self._tensor(spec)
            if spec.kind == InputKind.CONSTANT_TENSOR or spec.target in self.written:
                continue
            parameter = None if refused_type(tensor) else self._parameter(spec, tensor)
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
        nodes = self.program.graph.nodes
        placeholders = {node.name: node for node in nodes if node.op == "placeholder"}
        input_leaves = [
            leaf
            for spec in self.program.graph_signature.input_specs
            if (leaf := self._bind(spec, placeholders)) is not None
        ]
        self._bind_states(placeholders)
        self.lower_nodes(nodes)
        results = [
            leaf
            for spec in self.program.graph_signature.output_specs
            if (leaf := self._result(spec)) is not None
        ]
        written = {
            self.inputs.get(spec.target or "", spec.target or ""): [
                "tensor",
                self.value(spec.arg.name),
            ]
            for spec in self.program.graph_signature.output_specs
            if spec.kind == OutputKind.USER_INPUT_MUTATION
        }
        return _Ends(input_leaves, results, written)

    # -- ends -------------------------------------------------------------------------------------

    def _bind(self, spec: InputSpec, placeholders: dict[str, Node]) -> Tree | None:
        """Set the value of a placeholder; return its leaf if it is one of the user's inputs."""
        arg = spec.arg
        if spec.kind in _CONSTANT_KINDS:
            self.constants[arg.name] = spec
            return None
        if spec.kind == InputKind.TOKEN:  # a token that orders effects, not an argument of the user
            self.values[arg.name] = POISON
            return None
        if isinstance(arg, ConstantArgument):
            self.values[arg.name] = arg.value
            return value_leaf(arg.value)
        what = f"input {arg.name!r}"
        self.values[arg.name] = POISON
        if isinstance(arg, SymIntArgument):
            return self._bind_int(what, placeholders[arg.name])
        if isinstance(arg, CustomObjArgument) and spec.kind == InputKind.CUSTOM_OBJ:
            reason = f"expected a tensor, got an object of class {arg.class_fqn}"
            self.refuse(f"constant {spec.target!r}", "op", reason)
        elif isinstance(arg, CustomObjArgument):  # such as a random generator
            self.refuse(what, "op", f"expected a tensor, got a {arg.class_fqn}")
        elif not isinstance(arg, TensorArgument) or spec.kind != InputKind.USER_INPUT:
            self.refuse(what, "op", f"expected a tensor, got a {type(arg).__name__}")
        else:
            value = placeholders[arg.name].meta["val"]
            try:
                if reason := refused_type(value):
                    self.refuse(what, "dtype", reason)
                elif type_ := self.sizes.type(value):
                    name = self.inputs.get(arg.name, arg.name)
                    self.values[arg.name] = self.add_input(name, type_)
            except OpError as error:
                self.refuse(what, "dynamic shape", str(error))
        return ["tensor", self.values[arg.name]]

    def _bind_int(self, what: str, node: Node) -> Tree:
        """Make an input of a varying int: a size if shapes depend on it, else a number."""
        name = self.add_input(self.inputs.get(node.name, node.name), TensorType("int64", ()))
        expr = node.meta["val"].node.expr
        if is_only_computed_with(node):
            self.values[node.name] = name
        elif not expr.is_symbol or expr in self.sizes.symbols:
            reason = f"it must equal {expr} of other inputs; compute it from their shapes"
            self.refuse(what, "dynamic shape", reason)
        else:
            try:
                size = self.sizes.add_int(expr, _example(self.program, node))
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
            name = buffers[target].arg.name
            tensor = self._tensor(buffers[target])
            if reason := refused_type(tensor):
                self.refuse(f"buffer {target!r}", "dtype", reason)
                self.values[name] = POISON
                continue
            type_ = self.sizes.type(placeholders[name].meta["val"])
            assert type_ is not None
            held = stored_type(type_)
            first = stored(tensor)
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
        arg = spec.arg
        if spec.kind in (
            OutputKind.BUFFER_MUTATION,
            OutputKind.TOKEN,
            OutputKind.USER_INPUT_MUTATION,
        ):
            return None
        if spec.kind == OutputKind.PARAMETER_MUTATION:
            what = f"parameter {spec.target!r}"
            reason = "the model writes to it in forward, a plan only to its state; write to a clone"
            self.refuse(what, "mutation", reason)
            return None
        if isinstance(arg, ConstantArgument):
            return value_leaf(arg.value)
        if isinstance(arg, SymIntArgument | SymFloatArgument | SymBoolArgument):
            return self._number_result(arg)
        if spec.kind != OutputKind.USER_OUTPUT or not isinstance(arg, TensorArgument):
            kind = type(arg).__name__
            self.refuse(f"output {arg.name!r}", "op", f"expected a tensor, got a {kind}")
            return None
        return ["tensor", self.value(arg.name)]

    def _number_result(self, arg: Any) -> Tree:
        """Return the leaf of a number among the outputs: a scalar, or a fixed value."""
        value = self.value(arg.name) if arg.name in self.values else arg.name
        if isinstance(value, Size):
            value = self.context.size_value(value, "int64")
        if isinstance(value, str) or value is POISON:
            return ["number", value]
        return value_leaf(value)

    def value(self, name: str) -> Any:
        """Return the value of an FX node; a constant is added to the graph at its first use."""
        if name not in self.values:
            self.values[name] = self._constant(self.constants[name])
        return self.values[name]

    def _tensor(self, spec: InputSpec) -> torch.Tensor:
        name = spec.target or spec.arg.name
        program = self.program
        tensors = program.constants if name in program.constants else program.state_dict
        tensor: torch.Tensor = tensors[name]
        return tensor

    def _constant(self, spec: InputSpec) -> str | Poison:
        name = spec.target or spec.arg.name
        tensor = self._tensor(spec)
        if reason := refused_type(tensor):
            self.refuse(f"{spec.kind.name.lower().replace('_', ' ')} {name!r}", "dtype", reason)
            return POISON
        key = _memory(tensor)
        if key not in self.tied or not tensor.numel():
            type_ = _type(tensor)
            recipe: Constant
            if spec.kind == InputKind.CONSTANT_TENSOR:
                recipe = literal(stored(tensor), stored_type(type_).dtype)
            else:
                recipe = self._parameter(spec, tensor)
            self.tied[key] = represented(self.graph.add_constant(name, recipe), type_.dtype)
        return self.tied[key]

    def _parameter(self, spec: InputSpec, tensor: torch.Tensor) -> Parameter:
        """Return the Parameter of a tensor; tied tensors give the same object."""
        name, type_ = spec.target or spec.arg.name, _type(tensor)
        memory = _memory(tensor)
        key = memory if tensor.numel() else (name,)
        if key not in self.parameters:
            is_parameter = spec.kind == InputKind.PARAMETER
            is_stored = is_parameter or spec.persistent is not False
            self.parameters[key] = Parameter(
                stored_type(type_),
                tuple(dict.fromkeys([name, *self.names.get(memory, ())])),
                partial(stored, tensor),
                kind="parameter" if is_parameter else "buffer" if is_stored else "constant",
                is_replaceable=self.replaceable and is_stored,
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


def _example(program: ExportedProgram, node: Node) -> int | None:
    """Return the value of an int argument in the captured call."""
    if program.example_inputs is None:
        return None
    leaves = tree_leaves(program.example_inputs)
    return dict(zip(argument_placeholders(program), leaves, strict=False)).get(node.name)


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with the same memory: tied parameters."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
