"""Lower an exported program to a graph: one handler call per ATen node."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    CustomObjArgument,
    InputKind,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.utils._pytree import tree_leaves

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Constant, Parameter, literal
from taper_frontend.errors import UnsupportedNode, UnsupportedOpError
from taper_frontend.lowering.context import Lowering, Refusal, stored
from taper_frontend.lowering.fraction import lower_fraction
from taper_frontend.lowering.fx_nodes import find_handler, needed, tensors_of, unbacked_sizes
from taper_frontend.lowering.source import source_line
from taper_frontend.lowering.symbols import SizeError, Sizes
from taper_frontend.lowering.representation import (
    DTYPE_NAMES,
    Pairs,
    refused_type,
    represented,
    stored_type,
)
from taper_frontend.lowering.trees import Tree, describe_tree, value_leaf
from taper_runtime.errors import InternalError, OpError
from taper_runtime.ops.opdef import TensorType
from taper_runtime.sizes import UndecidedError, variables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import sympy
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec, OutputSpec
    from torch.fx import Node

    from taper_frontend.lowering.registry import Handler

#: Key in a program's metadata: whether the module was in training mode.
TRAINING = "training"

#: Where a result lies is no matter of a plan.
_PLACEMENT = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking"})

#: A refusal of tensors of these dtypes is not for their dtype.
_ORDINARY = frozenset({torch.float32, torch.int64, torch.int32, torch.bool})

_CONSTANT_KINDS = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})

_MUTATIONS = {
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}


class Lowered(NamedTuple):
    """What lowering gives.

    Attributes
    ----------
    graph : Graph
    input_tree, output_tree : plain data
        How the flat inputs and outputs nest; see :class:`taper_runtime.plan.plan.Plan`.
    symbols : dict of sympy.Symbol to size
        torch's symbols, as expressions in the size variables.
    complex_reads : frozenset of str
        The inputs and states that hold complex numbers.
    complex_outputs : frozenset of int
        Which of the outputs do.
    """

    graph: Graph
    input_tree: Tree
    output_tree: Tree
    symbols: dict[sympy.Symbol, int]
    complex_reads: frozenset[str]
    complex_outputs: frozenset[int]


_Arguments = tuple[list[Any], dict[str, Any]]
_Ends = tuple[list[Tree], list[Tree]]


class Survey(NamedTuple):
    """What of a program can be lowered.

    Attributes
    ----------
    graph : Graph
        That part. What is refused stands in it as inputs, what nothing reads as outputs.
    refused : list of UnsupportedNode
    symbols : dict of sympy.Symbol to size
        As of :class:`Lowered`.
    """

    graph: Graph
    refused: list[UnsupportedNode]
    symbols: dict[sympy.Symbol, int]


class _Poison:
    """The value of what depends on something refused and has no type to go on with."""


_POISON = _Poison()


def lower(
    program: ExportedProgram,
    names: Mapping[str, str] | None = None,
    *,
    ranged: Collection[str] = (),
    trusting: bool = False,
    inputs: Mapping[str, str] | None = None,
) -> Lowered:
    """Lower a captured program.

    Constants keep the names of the module's state dict, other tensors that of the FX node they come
    from. A tensor tied to several names becomes one
    constant; a constant nobody reads becomes none. An output may be an input or a constant.

    Parameters
    ----------
    program : ExportedProgram
        As :func:`taper_frontend.capture.capture` returns it.
    names : mapping of str to str, optional
        Names for torch's size symbols; those of one name are one size.
    ranged : collection of str
        The symbols whose least size the user gave.
    trusting : bool
        Whether other ranges start where torch says, and not below where that can be told to hold.
    inputs : mapping of str to str, optional
        Names for the inputs, by those of their FX nodes.

    Returns
    -------
    Lowered

    Raises
    ------
    UnsupportedOpError
        Listing everything in the program that cannot be lowered.
    InternalError
        If a handler gives another dtype or shape than torch.
    """
    walk, ends = _walk(program, names or {}, ranged, trusting, inputs or {})
    return walk.finish(*ends)


def survey(
    program: ExportedProgram,
    names: Mapping[str, str] | None = None,
    *,
    ranged: Collection[str] = (),
) -> Survey:
    """Lower as much of a captured program as can be; the arguments are those of :func:`lower`."""
    walk, _ = _walk(program, names or {}, ranged, False, {})
    graph = walk.graph
    walk.set_next_values()
    graph.set_outputs(name for name in graph.nodes if not graph.is_used(name))
    return Survey(graph, walk.refused, walk.sizes.symbols)


def _walk(
    program: ExportedProgram,
    names: Mapping[str, str],
    ranged: Collection[str],
    trusting: bool,
    inputs: Mapping[str, str],
) -> tuple[_Walk, _Ends]:
    """Lower the nodes for as many sizes as they can be lowered for."""
    least: dict[str, int] = {}
    while True:
        walk = _Walk(program, Sizes(program, names, ranged, least, trusting=trusting), inputs)
        ends = walk.lower_nodes()
        more = {name: walk.sizes.raised(name) for name in walk.undecided}
        if not any(more.values()):
            return walk, ends
        least |= {name: start for name, start in more.items() if start}


class _Walk:
    """One pass over the nodes of a program, collecting what is refused."""

    def __init__(self, program: ExportedProgram, sizes: Sizes, inputs: Mapping[str, str]) -> None:
        self.program = program
        self.sizes = sizes
        self.inputs = inputs
        self.graph = Graph(self.sizes.ranges, self.sizes.examples)
        training = program.graph_module.meta.get(TRAINING, False)
        self.context = Lowering(self.graph, training)
        self.refused: list[UnsupportedNode] = []
        # size variables whose ranges left something open
        self.undecided: set[str] = set()
        # FX node name -> tensor name, names of a multi-output node, plain value, size, or poison
        self.values: dict[str, Any] = {}
        self.constants: dict[str, InputSpec] = {}
        self.tied: dict[tuple[Any, ...], str] = {}
        # the same memory -> names in the state dict
        self.names: dict[tuple[Any, ...], list[str]] = {}
        for name, tensor in program.state_dict.items():
            if not refused_type(tensor) and tensor.numel():
                self.names.setdefault(_memory(tensor), []).append(name)
        # state -> FX node of its next value
        self.states: dict[str, str] = {}
        # buffer that the module writes to -> FX node of its next value
        self.written = {
            spec.target: spec.arg.name
            for spec in program.graph_signature.output_specs
            if spec.kind == OutputKind.BUFFER_MUTATION
        }

    def finish(self, input_leaves: list[Tree], results: list[Tree]) -> Lowered:
        """Make a graph of what has been lowered."""
        if self.refused:
            raise UnsupportedOpError(self.refused)
        outputs = [name for kind, name in results if kind == "tensor"]
        if _holds_poison([*outputs, *map(self._value, self.written.values())]):
            raise InternalError("an output has no value though nothing was refused")
        self.graph.set_outputs(map(str, outputs))
        self.set_next_values()
        spec = self.program.call_spec
        results = [[k, str(v) if isinstance(v, Pairs) else v] for k, v in results]
        return Lowered(
            self.graph,
            describe_tree(spec.in_spec, input_leaves),
            describe_tree(spec.out_spec, results),
            self.sizes.symbols,
            frozenset(str(n) for n in self.values.values() if self._is_complex_read(n)),
            frozenset(i for i, name in enumerate(outputs) if isinstance(name, Pairs)),
        )

    def _is_complex_read(self, value: Any) -> bool:
        return isinstance(value, Pairs) and value in self.graph.reads

    def set_next_values(self) -> None:
        """Give the states their next values, as far as they could be lowered."""
        for state, name in self.states.items():
            if (tensor := self._value(name)) is not _POISON:
                self.graph.set_next(str(state), str(tensor))
        if self.context.generator is not None and self.context.generator_state is not None:
            self.graph.set_next(self.context.generator_state, self.context.generator)

    def lower_nodes(self) -> _Ends:
        """Lower all nodes; return the leaves of the user's inputs and outputs."""
        nodes = self.program.graph.nodes
        placeholders = {node.name: node for node in nodes if node.op == "placeholder"}
        input_leaves = [
            leaf
            for spec in self.program.graph_signature.input_specs
            if (leaf := self._bind(spec, placeholders)) is not None
        ]
        self._bind_states()
        wanted = set(needed(nodes))
        for node in nodes:
            if node.op == "call_function":
                self.values[node.name] = self._lower(node) if node in wanted else _POISON
        results = [
            leaf
            for spec in self.program.graph_signature.output_specs
            if (leaf := self._result(spec)) is not None
        ]
        return input_leaves, results

    # -- ends -------------------------------------------------------------------------------------

    def _bind(self, spec: InputSpec, placeholders: dict[str, Node]) -> Tree | None:
        """Give a placeholder its value; return its leaf if it is one of the user's inputs."""
        arg = spec.arg
        if spec.kind in _CONSTANT_KINDS:
            self.constants[arg.name] = spec
            return None
        if spec.kind == InputKind.TOKEN:  # what orders effects: no argument of the user's
            self.values[arg.name] = _POISON
            return None
        if isinstance(arg, ConstantArgument):
            self.values[arg.name] = arg.value
            return value_leaf(arg.value)
        what = f"input {arg.name!r}"
        self.values[arg.name] = _POISON
        if isinstance(arg, SymIntArgument):
            self._refuse(what, "dynamic shape", "it is an int that varies; give it as a constant")
        elif isinstance(arg, CustomObjArgument):  # such as a generator of random numbers
            self._refuse(what, "op", f"expected a tensor, got a {arg.class_fqn}")
        elif not isinstance(arg, TensorArgument) or spec.kind != InputKind.USER_INPUT:
            self._refuse(what, "op", f"expected a tensor, got a {type(arg).__name__}")
        else:
            value = placeholders[arg.name].meta["val"]
            try:
                if reason := refused_type(value):
                    self._refuse(what, "dtype", reason)
                elif type_ := self.sizes.type(value):
                    self.values[arg.name] = self._add_input(
                        self.inputs.get(arg.name, arg.name), type_
                    )
            except OpError as error:
                self._refuse(what, "dynamic shape", str(error))
        value = self.values[arg.name]
        return ["tensor", str(value) if isinstance(value, Pairs) else value]

    def _add_input(self, name: str, type_: TensorType) -> str:
        held = stored_type(type_)
        return represented(self.graph.add_input(name, held.dtype, held.shape), type_.dtype)

    def _bind_states(self) -> None:
        """Make states of the buffers that the module writes to."""
        buffers = {spec.target: spec for spec in self.constants.values()}
        for target in self.written:
            name = buffers[target].arg.name
            tensor = self._tensor(buffers[target])
            if reason := refused_type(tensor):
                self._refuse(f"buffer {target!r}", "dtype", reason)
                self.values[name] = _POISON
                continue
            type_ = _type(tensor)
            state = self.graph.add_state(target, stored(tensor).copy(), stored_type(type_).dtype)
            self.values[name] = state = represented(state, type_.dtype)
            self.states[state] = self.written[target]

    def _result(self, spec: OutputSpec) -> Tree | None:
        """Return the leaf of one of the user's outputs."""
        arg = spec.arg
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.TOKEN):
            return None
        if spec.kind in _MUTATIONS:
            what = f"{_MUTATIONS[spec.kind]} {spec.target!r}"
            reason = "the model writes to it in forward, a plan only to its state; write to a clone"
            self._refuse(what, "mutation", reason)
            return None
        if isinstance(arg, ConstantArgument):
            return value_leaf(arg.value)
        if spec.kind != OutputKind.USER_OUTPUT or not isinstance(arg, TensorArgument):
            kind = type(arg).__name__
            self._refuse(f"output {arg.name!r}", "op", f"expected a tensor, got a {kind}")
            return None
        return ["tensor", self._value(arg.name)]

    def _value(self, name: str) -> Any:
        """Return what stands for an FX node; a constant enters the graph when first asked for."""
        if name not in self.values:
            self.values[name] = self._constant(self.constants[name])
        return self.values[name]

    def _tensor(self, spec: InputSpec) -> torch.Tensor:
        name = spec.target or spec.arg.name
        program = self.program
        tensors = program.constants if name in program.constants else program.state_dict
        tensor: torch.Tensor = tensors[name]
        return tensor

    def _constant(self, spec: InputSpec) -> str | _Poison:
        name = spec.target or spec.arg.name
        tensor = self._tensor(spec)
        if reason := refused_type(tensor):
            self._refuse(f"{spec.kind.name.lower().replace('_', ' ')} {name!r}", "dtype", reason)
            return _POISON
        key = _memory(tensor)
        if key not in self.tied or not tensor.numel():
            type_, value = _type(tensor), partial(stored, tensor)
            recipe: Constant
            if spec.kind == InputKind.CONSTANT_TENSOR:
                recipe = literal(value(), stored_type(type_).dtype)
            else:
                names = dict.fromkeys([name, *self.names.get(key, ())])
                recipe = Parameter(stored_type(type_), tuple(names), value)
            self.tied[key] = represented(self.graph.add_constant(name, recipe), type_.dtype)
        return self.tied[key]

    # -- nodes ------------------------------------------------------------------------------------

    def _lower(self, node: Node) -> Any:
        """Lower one node; return its value."""
        if node.target is operator.getitem:
            return self._pick(node)
        try:
            self.context.begin(node, self.sizes.types(node), source_line(node))
            arguments = self._arguments(node)
            handler = find_handler(node)
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and not unbacked_sizes(node):
                return self.sizes.size(value)
            if (
                isinstance(value, torch.SymFloat)
                and not unbacked_sizes(node)
                and tensors_of(node.users)
            ):
                return lower_fraction(self.context, self.sizes, value.node.expr)
            if handler is None or _holds_poison(arguments) or unbacked_sizes(node):
                return _POISON
            return self._call(handler, arguments, node)
        except Refusal as refusal:
            category, reason = refusal.category, str(refusal)
        except UndecidedError as error:
            self.undecided.update(atom.text for atom in variables(error.size))
            category, reason = "dynamic shape", f"{error}; a Dim with a narrower range may tell"
        except SizeError as error:
            category, reason = "dynamic shape", str(error)
        except OpError as error:
            dtypes = {value.dtype for value in tensors_of([node, *node.all_input_nodes])}
            category, reason = "op" if dtypes <= _ORDINARY else "dtype", str(error)
        except TypeError as error:
            if not self.sizes.ranges:
                raise
            category = "dynamic shape"
            reason = f"lowered only where its sizes are fixed ({error})"
        self._refuse(str(node.target), category, reason, source_line(node))
        return self._stand_in(node)

    def _pick(self, node: Node) -> Any:
        """Return one result of a multi-output node."""
        source, index = node.args
        values = self._argument(source)
        if values is _POISON or values[index] is not None:
            return values if values is _POISON else values[index]
        assert isinstance(source, torch.fx.Node)
        self._refuse(str(source.target), "op", f"result {index} is not lowered", source_line(node))
        return _POISON

    def _call(self, handler: Handler, arguments: _Arguments, node: Node) -> Any:
        """Call the handler of a node and check what it gives against what torch says."""
        expected = self.sizes.types(node)
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
        many = isinstance(node.meta.get("val"), list | tuple)
        names = self.context.finish(list(result) if many else [result])
        got = [None if name is None else self.context.type(name) for name in names]
        if len(got) != len(expected) or any(
            mine is not None and mine != torchs for mine, torchs in zip(got, expected, strict=True)
        ):
            message = f"{node.target} is lowered to {got}, torch gives {expected}"
            if self.sizes.ranges:  # two forms of one size
                raise UndecidedError(message)
            raise InternalError(message)
        return names if many else names[0]

    def _arguments(self, node: Node) -> _Arguments:
        """Return the arguments of a node as a handler gets them."""
        return (
            [self._argument(arg) for arg in node.args],
            {k: self._argument(arg) for k, arg in node.kwargs.items() if k not in _PLACEMENT},
        )

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            value = _POISON if arg.op == "get_attr" else self._value(arg.name)
            return self.context.tensor_argument(value) if isinstance(value, str) else value
        if isinstance(arg, list | tuple):
            return [self._argument(item) for item in arg]
        if isinstance(arg, torch.dtype):
            return self.context.dtype_argument(DTYPE_NAMES[arg]) if arg in DTYPE_NAMES else arg
        return arg

    def _stand_in(self, node: Node) -> Any:
        """Return inputs of the node's types, so that what follows it is looked at too."""
        try:
            types = self.sizes.types(node)
        except OpError:  # they are what was refused
            return _POISON
        names = [
            _POISON if t is None else self._add_input(node.name, t)
            for t in types
        ]
        return names if isinstance(node.meta.get("val"), list | tuple) else names[0]

    def _refuse(self, op: str, category: str, reason: str, source: str = "") -> None:
        self.refused.append(UnsupportedNode(op, category, reason, source))


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what is equal for tensors that are one: tied parameters."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _holds_poison(args: Any) -> bool:
    return any(leaf is _POISON for leaf in tree_leaves(args))
