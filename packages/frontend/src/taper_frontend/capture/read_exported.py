"""Read torch's ExportedProgram as plain data, which the lowering takes."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._ops import HigherOrderOperator, OpOverload
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

from taper_frontend.capture.fx_nodes import (
    CAPTURED,
    KEPT,
    ORIGIN,
    TRAINING,
    draws,
    source_of,
)
from taper_frontend.capture.tensors import stored
from taper_frontend.lowering.aten_program import (
    AtenProgram,
    BodyGraph,
    DtypeArgument,
    InputSpec,
    Node,
    Origin,
    OutputSpec,
    Range,
    SchemaArgument,
    SymbolicNumber,
    TensorValue,
    Weight,
    Word,
    functional_name,
    limited,
    note_definitions,
)
from taper_frontend.request.guards import shape_env
from taper_frontend.request.torch_trees import argument_placeholders, structure

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule

_INPUT_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant tensor",
    InputKind.CUSTOM_OBJ: "object",
    InputKind.TOKEN: "token",
    InputKind.USER_INPUT: "input",
}

_OUTPUT_KINDS = {
    OutputKind.USER_OUTPUT: "output",
    OutputKind.BUFFER_MUTATION: "buffer mutation",
    OutputKind.USER_INPUT_MUTATION: "input mutation",
    OutputKind.PARAMETER_MUTATION: "parameter mutation",
    OutputKind.TOKEN: "token",
}

_NUMBER_KINDS = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}

#: Ops that read the memory of their first argument.
_READ_MEMORY = frozenset({"aten.as_strided.default", "aten.as_strided_scatter.default"})


def read_program(program: ExportedProgram) -> AtenProgram:
    """Read a captured program.

    Parameters
    ----------
    program : ExportedProgram
        The result of :func:`taper_frontend.capture.capture.capture`.

    Raises
    ------
    ExportError
        If a dict among its arguments or results has keys that are not str or int.
    """
    meta = program.graph_module.meta
    captured = meta.get(CAPTURED)
    signature, spec = program.graph_signature, program.call_spec
    env = shape_env(program)
    example = _example(program)
    return AtenProgram(
        nodes=_FxReader(program.graph_module).read(program.graph),
        inputs=[_input(each) for each in signature.input_specs],
        outputs=[_output(each) for each in signature.output_specs],
        state_dict={name: _weight(tensor) for name, tensor in program.state_dict.items()},
        constants={
            name: _weight(value)
            for name, value in program.constants.items()
            if isinstance(value, torch.Tensor)
        },
        input_structure=structure(spec.in_spec),
        output_structure=structure(spec.out_spec),
        ranges={symbol: _range(limits) for symbol, limits in program.range_constraints.items()},
        guards=[] if env is None else [guard.expr for guard in env.guards],
        hints={} if env is None else _hints(program),
        example_shapes={
            name: tuple(value.shape)
            for name, value in example.items()
            if isinstance(value, torch.Tensor)
        },
        example_ints={name: value for name, value in example.items() if type(value) is int},
        training=meta.get(TRAINING, False),
        captured_name=(lambda name: "") if captured is None else captured.name,
        default_float=_name(torch.get_default_dtype()),
    )


def _example(program: ExportedProgram) -> dict[str, Any]:
    """Return the arguments of the captured call by placeholder; empty if they are not known."""
    if program.example_inputs is None:
        return {}
    leaves = tree_leaves(program.example_inputs)
    return dict(zip(argument_placeholders(program), leaves, strict=False))


def _hints(program: ExportedProgram) -> dict[sympy.Symbol, int]:
    """Return the values of symbols in the captured call."""
    found: dict[sympy.Symbol, int] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt):
                env: Any = size.node.shape_env
                # torch 2.13 renamed it
                known = getattr(env, "backed_var_to_val", None) or env.var_to_val
                for symbol in size.node.expr.free_symbols & known.keys():
                    found[symbol] = int(known[symbol])
    return found


def _range(limits: Any) -> Range:
    """Return the limits of a symbol; those of floats are no limits of sizes."""
    lower, upper = (int(end) if end.is_Integer else None for end in (limits.lower, limits.upper))
    return limited(lower, upper)


def _input(spec: Any) -> InputSpec:
    arg, kind = spec.arg, _INPUT_KINDS[spec.kind]
    buffer = spec.kind == InputKind.BUFFER and spec.persistent is not False
    stored = buffer or spec.kind == InputKind.PARAMETER
    form, value = _form(arg), None
    if isinstance(arg, ConstantArgument):
        value = arg.value
    elif isinstance(arg, CustomObjArgument):
        value = arg.class_fqn
    elif isinstance(arg, SymIntArgument):
        form = "int"
    return InputSpec(kind, arg.name, form, spec.target, stored, value)


def _output(spec: Any) -> OutputSpec:
    arg, kind = spec.arg, _OUTPUT_KINDS.get(spec.kind, "other")
    value = arg.value if isinstance(arg, ConstantArgument) else None
    return OutputSpec(kind, arg.name, _form(arg), spec.target, value)


def _form(arg: Any) -> str:
    if isinstance(arg, SymIntArgument | SymFloatArgument | SymBoolArgument):
        return "number"
    forms = {TensorArgument: "tensor", ConstantArgument: "value", CustomObjArgument: "object"}
    return forms.get(type(arg), type(arg).__name__)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(size: int | torch.SymInt) -> Any:
    if not isinstance(size, torch.SymInt):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_Integer else expr


def _tensor_value(tensor: torch.Tensor, *, reads_memory: bool = False) -> TensorValue:
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return TensorValue(_name(tensor.dtype), tuple(map(_size, tensor.shape)), (), layout)
    shape = tuple(map(_size, tensor.shape))
    is_fixed = all(isinstance(size, int) for size in shape)
    return TensorValue(
        _name(tensor.dtype),
        shape,
        tuple(map(_size, tensor.stride())),
        has_own_memory=reads_memory
        and is_fixed
        and tensor.untyped_storage().nbytes() == tensor.nbytes,
    )


def _weight(tensor: torch.Tensor) -> Weight:
    value = _tensor_value(tensor)
    if value.refused and not value.is_of_codes:
        return Weight(value, (), functools.partial(stored, tensor))
    memory = (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )
    return Weight(value, memory, functools.partial(stored, tensor))


@functools.cache
def schema(op: OpOverload[..., Any]) -> tuple[SchemaArgument, ...]:
    """Return the parameters of an op."""
    return tuple(
        SchemaArgument(each.name, str(each.type) == "Tensor", _argument(each.default_value))
        for each in op._schema.arguments
    )


def _target(target: Any) -> str:
    """Return the name of what a node calls."""
    if isinstance(target, str | OpOverload | HigherOrderOperator):
        return str(target)
    return f"{target.__module__.removeprefix('_')}.{target.__name__}"


def _compute(op: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """Compute a call of numbers alone."""
    options = {key: _torch_argument(value) for key, value in kwargs.items()}
    return stored(op(*map(_torch_argument, args), **options)).copy()


def _torch_argument(value: Any) -> Any:
    if isinstance(value, DtypeArgument):
        return getattr(torch, value)
    if isinstance(value, Word):  # the result is read as an array, wherever it lies
        return torch.device("cpu") if value.partition(":")[0] in ("cpu", "cuda") else None
    return value


def _argument(value: Any) -> Any:
    """Return an argument, but for nodes, as plain data."""
    if value is None or isinstance(value, bool | int | float | str | complex):
        return value
    if isinstance(value, torch.dtype):
        return DtypeArgument(_name(value))
    if isinstance(value, list | tuple):
        return [_argument(item) for item in value]
    if isinstance(value, OpOverload | HigherOrderOperator):
        return Word(_target(value))
    return Word(value)


class _FxReader:
    """Reads one graph, with the bodies among the attributes of its module."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._made: dict[str, Node] = {}

    def read(self, graph: Graph) -> list[Node]:
        """Return the nodes of a graph, in order."""
        nodes = [self._read(node) for node in graph.nodes]
        note_definitions(nodes)
        return nodes

    def _read(self, node: torch.fx.Node) -> Node:
        """Return the plain form of a node, whose arguments have been read."""
        reads_memory = any(str(user.target) in _READ_MEMORY for user in node.users)
        value = _read_value(node.meta.get("val"), reads_memory=reads_memory)
        target = "" if node.op in ("placeholder", "output") else _target(node.target)
        made = Node(node.name, node.op, target, value)
        self._made[node.name] = made
        made.give(self._arguments(node.args), self._arguments(node.kwargs))
        made.source = source_of(node)
        made.defines = tuple(node.meta.get("unbacked_bindings") or ())
        op = node.target
        if isinstance(op, OpOverload):
            made.schema, made.draws = schema(op), draws(node)
            made.compute = functools.partial(_compute, op)
        made.is_higher_order = isinstance(op, HigherOrderOperator)
        if node.op == "get_attr":
            made.attribute = _attribute(operator.attrgetter(str(op))(self._module))
        if KEPT in node.meta:
            made.is_kept = True
            if (module := node.meta[KEPT]) is not None:
                made.kept = BodyGraph(_FxReader(module).read(module.graph))
        if (known := node.meta.get(ORIGIN)) is not None:
            made.origin = self._origin(known)
        return made

    def _origin(self, known: Any) -> Origin:
        return Origin(
            known.name,
            functional_name(_target(known.op)),
            None if known.args is None else self._arguments(known.args),
            self._arguments(known.kwargs),
            _read_value(known.value),
            schema(known.op) if isinstance(known.op, OpOverload) else None,
        )

    def _arguments(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            # the arguments of a decomposed call may be gone from the graph
            return self._made.get(value.name) or Node(
                value.name, value.op, "", _read_value(value.meta.get("val"))
            )
        if isinstance(value, dict):
            return {key: self._arguments(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._arguments(item) for item in value]
        return _argument(value)


def _attribute(value: Any) -> BodyGraph | Weight | None:
    if isinstance(value, torch.fx.GraphModule):
        return BodyGraph(_FxReader(value).read(value.graph))
    return _weight(value) if isinstance(value, torch.Tensor) else None


def _read_value(value: Any, *, reads_memory: bool = False) -> Any:
    """Return what torch says of a node's result, as plain data."""
    if isinstance(value, torch.Tensor):
        return _tensor_value(value, reads_memory=reads_memory)
    if (kind := _NUMBER_KINDS.get(type(value))) is not None:
        return SymbolicNumber(kind, sympy.sympify(value.node.expr))
    if isinstance(value, list | tuple):
        return [_read_value(item) for item in value]
    return value
