"""Read a program in a PT2 archive as plain data, which the lowering takes. No torch is needed.

torch's ``torch/_export/serde/schema.py`` defines the JSON, and ``serialize.py`` beside it says what
torch makes of it. A node of several results has their names; here, as in torch's graph, nodes after
it pick them.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.lowering.aten_program import (
    AtenProgram,
    BodyGraph,
    DtypeArgument,
    InputSpec,
    Node,
    OutputSpec,
    SymbolicNumber,
    TensorValue,
    Weight,
    Word,
    limited,
    note_definitions,
)
from taper_frontend.lowering.pytrees import TreeStructure, keys_among
from taper_frontend.lowering.representation import REPRESENTATIONS, real_dtype
from taper_frontend.lowering.source_line import source_line
from taper_frontend.pt2.expressions import parse_expression
from taper_frontend.pt2.number_calls import NUMBER_CALLS
from taper_frontend.pt2.schemas import drawing, schemas
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import sympy

    from taper_runtime.pt2 import Archive

#: The version of torch's schema that is read.
MAJOR_VERSION = 8

#: torch's numbers of dtypes, layouts and memory formats.
_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    8: "float64", 9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16",
    28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz", 33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
_LAYOUTS = {
    1: "sparse_coo", 2: "sparse_csr", 3: "sparse_csc", 4: "sparse_bsr", 5: "sparse_bsc",
    6: "_mkldnn", 7: "strided",
}  # fmt: skip
_MEMORY_FORMATS = {
    1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format",
}  # fmt: skip

#: torch's number of arguments that are passed by name.
_KEYWORD = 2

#: torch's numbers that JSON lacks.
_FLOATS = {"Infinity": float("inf"), "-Infinity": -float("inf"), "NaN": float("nan")}

#: Arguments that stand in the archive as they are, and lists of these.
_PLAIN = frozenset({
    "as_int", "as_ints", "as_int_lists", "as_bool", "as_bools", "as_string", "as_strings",
})  # fmt: skip

#: The kinds of numbers among the values, by the tables that have them.
_NUMBERS = {"sym_int_values": "int", "sym_float_values": "float", "sym_bool_values": "bool"}

_INPUT_KINDS = {
    "parameter": "parameter",
    "buffer": "buffer",
    "tensor_constant": "constant tensor",
    "custom_obj": "object",
    "token": "token",
    "user_input": "input",
    "constant_input": "input",
}
_OUTPUT_KINDS = {
    "user_output": "output",
    "buffer_mutation": "buffer mutation",
    "user_input_mutation": "input mutation",
    "parameter_mutation": "parameter mutation",
    "token": "token",
}


class ReadProgram(NamedTuple):
    """A program of an archive.

    Attributes
    ----------
    program : AtenProgram
    arguments : list of str or None
        The names of the arguments of the module's forward.
    torch_version : str
        The torch that wrote it.
    """

    program: AtenProgram
    arguments: list[str] | None
    torch_version: str


def read_program(archive: Archive, model: str) -> ReadProgram:
    """Read a program of an archive.

    Parameters
    ----------
    archive : Archive
    model : str

    Raises
    ------
    PlanFormatError
        If it is not a program of torch's schema, or of another version of that.
    """
    content = archive.program(model)
    where = f"models/{model}.json"
    try:
        version = content["schema_version"]["major"]
        if version != MAJOR_VERSION:
            raise PlanFormatError(
                where,
                f"expected version {MAJOR_VERSION} of torch's schema, got {version}; export the "
                "archive where its torch is installed",
            )
        return _read(archive, model, content)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        raise PlanFormatError(
            where, f"expected a program of torch's schema, got {type(error).__name__}: {error}"
        ) from None


def _read(archive: Archive, model: str, content: Mapping[str, Any]) -> ReadProgram:
    """Return the program of a model from the JSON of the archive."""
    module = content["graph_module"]
    signature = module["signature"]
    values = _Values()
    nodes = _GraphReader(module["graph"], values).read()
    inputs = [_input(spec) for spec in signature["input_specs"]]
    call = module["module_call_graph"][0]["signature"]
    fields = module.get("treespec_namedtuple_fields") or {}
    # those without a name in the graph are fixed arguments
    named = {spec.name for spec in inputs}
    for node, spec in zip([n for n in nodes if n.op == "placeholder"], inputs, strict=True):
        if spec.name in ("", None) or node.name not in named:
            inputs[inputs.index(spec)] = spec._replace(name=node.name)
    kinds = ("buffer", "constant tensor")
    wanted = {spec.target for spec in inputs if spec.kind in kinds and spec.target is not None}
    weights, constants = archive.weights(model), archive.constants(model, wanted)
    return ReadProgram(
        AtenProgram(
            nodes=nodes,
            inputs=inputs,
            outputs=[_output(spec) for spec in signature["output_specs"]],
            state_dict=_weights(weights, archive.dtypes(model, weights)),
            constants=_weights(constants, archive.dtypes(model, constants)),
            input_structure=_structure(call["in_spec"], fields),
            output_structure=_structure(call["out_spec"], fields),
            ranges={
                symbol: limited(limits["min_val"], limits["max_val"])
                for symbol in values.symbols
                if (limits := content["range_constraints"].get(str(symbol))) is not None
            },
            guards=[],
            hints=values.hints,
            example_shapes={},
            example_ints={},
            training=False,
            captured_name=lambda name: name,
        ),
        call.get("forward_arg_names") or None,
        str(content.get("torch_version", "")),
    )


def _weights(arrays: Mapping[str, np.ndarray], dtypes: Mapping[str, str]) -> dict[str, Weight]:
    return {name: _weight(array, dtypes[name]) for name, array in arrays.items()}


def _weight(array: np.ndarray, dtype: str) -> Weight:
    address = array.__array_interface__["data"][0]
    memory = (address, array.shape, array.strides, dtype)
    return Weight(TensorValue(dtype, array.shape), memory, functools.partial(_stored, array, dtype))


def _stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array as a plan stores it: complex numbers as pairs."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if not REPRESENTATIONS[dtype].parts:
        return array
    return array[..., None].view(real_dtype(dtype))


def _input(spec: Mapping[str, Any]) -> InputSpec:
    """Return what an input stands for: a parameter, a buffer, a constant or an argument."""
    ((form, what),) = spec.items()
    kind = _INPUT_KINDS[form]
    if form == "constant_input":
        return InputSpec(kind, what["name"], "value", value=_constant(what["value"]))
    if form == "user_input":
        ((held, arg),) = what["arg"].items()
        if held == "as_tensor":
            return InputSpec(kind, arg["name"])
        if held == "as_sym_int":
            return InputSpec(kind, arg["as_name"], "int")
        if held == "as_custom_obj":
            return InputSpec(kind, arg["name"], "object", value=arg["class_fqn"])
        return InputSpec(kind, "", "value", value=_constant(what["arg"]))
    arg = what["arg"]
    if form == "custom_obj":
        return InputSpec(
            kind, arg["name"], "object", what["custom_obj_name"], value=arg["class_fqn"]
        )
    if form == "token":
        return InputSpec(kind, arg["name"])
    names = {"parameter": "parameter_name", "buffer": "buffer_name"}
    target = what[names.get(form, "tensor_constant_name")]
    stored = form in names and what.get("persistent") is not False
    return InputSpec(kind, arg["name"], "tensor", target, stored)


def _output(spec: Mapping[str, Any]) -> OutputSpec:
    """Return the description of one output of a program."""
    ((form, what),) = spec.items()
    kind, arg = _OUTPUT_KINDS.get(form, "other"), what["arg"]
    if form != "user_output":
        names = {
            "buffer_mutation": "buffer_name",
            "user_input_mutation": "user_input_name",
            "parameter_mutation": "parameter_name",
        }
        return OutputSpec(kind, arg["name"], target=what.get(names.get(form, "")))
    ((held, value),) = arg.items()
    if held == "as_tensor":
        return OutputSpec(kind, value["name"])
    if held in ("as_sym_int", "as_sym_float", "as_sym_bool"):
        ((_, name),) = value.items()
        return OutputSpec(kind, name, "number")
    return OutputSpec(kind, "", "value", value=_constant(arg))


def _constant(arg: Mapping[str, Any]) -> Any:
    """Return a fixed argument or result."""
    ((held, value),) = arg.items()
    if held == "as_none":
        return None
    return _float(value) if held == "as_float" else value


def _float(value: Any) -> float:
    return _FLOATS[value] if isinstance(value, str) else float(value)


def _structure(text: str, fields: Mapping[str, Any]) -> TreeStructure:
    """Return the structure that a dumped TreeSpec of torch has."""
    protocol, spec = json.loads(text)
    if protocol != 1:
        raise ValueError(f"expected version 1 of pytree's specifications, got {protocol}")
    return _nested(spec, fields)


def _nested(spec: Mapping[str, Any], fields: Mapping[str, Any]) -> TreeStructure:
    """Return the structure of a dumped TreeSpec, with those of its children."""
    kind, children = spec["type"], tuple(_nested(child, fields) for child in spec["children_spec"])
    if kind is None:
        return TreeStructure()
    if kind == "builtins.list":
        return TreeStructure("list", children)
    if kind == "collections.namedtuple":
        name = spec["context"]
        return TreeStructure(
            "namedtuple", children, tuple(fields[name]["field_names"]), name.rpartition(".")[2]
        )
    context = json.loads(spec["context"]) if spec["context"] else None
    if isinstance(context, dict):  # of a defaultdict
        context = context.get("dict_context")
    keys = keys_among(context, len(children))
    return (
        TreeStructure("tuple", children) if keys is None else TreeStructure("dict", children, keys)
    )


class _Values:
    """The sizes of a program: each expression is parsed once.

    Attributes
    ----------
    symbols : dict of sympy.Symbol to None
    hints : dict of sympy.Symbol to int
    """

    def __init__(self) -> None:
        self.symbols: dict[sympy.Symbol, None] = {}
        self.hints: dict[sympy.Symbol, int] = {}
        self._parsed: dict[str, sympy.Expr] = {}

    def size(self, field: Mapping[str, Any]) -> Any:
        """Return a size: an int, or an expression."""
        ((held, value),) = field.items()
        if held == "as_int":
            return value
        expr = self.expression(value)
        return int(expr) if expr.is_Integer else expr

    def expression(self, value: Mapping[str, Any]) -> sympy.Expr:
        """Return an expression with a hint."""
        text = value["expr_str"]
        if text not in self._parsed:
            expr = self._parsed[text] = parse_expression(text)
            self.symbols |= dict.fromkeys(sorted(expr.free_symbols, key=str))
            hint = value.get("hint") or {}
            if expr.is_Symbol and "as_int" in hint:
                self.hints[expr] = hint["as_int"]
        return self._parsed[text]

    def tensor(self, meta: Mapping[str, Any]) -> TensorValue:
        """Return what the archive says of a tensor."""
        shape, strides = (tuple(map(self.size, meta[key])) for key in ("sizes", "strides"))
        layout = _LAYOUTS.get(meta["layout"], "unknown")
        alone = self.size(meta["storage_offset"]) == 0
        return TensorValue(_DTYPES[meta["dtype"]], shape, strides, layout, alone)

    def number(self, kind: str, field: Mapping[str, Any]) -> Any:
        """Return what the archive says of a number."""
        ((held, value),) = field.items()
        return SymbolicNumber(kind, self.expression(value)) if held == "as_expr" else value


class _GraphReader:
    """Reads one graph: that of a program or of a body."""

    def __init__(self, graph: Mapping[str, Any], values: _Values) -> None:
        self._graph, self._values = graph, values
        self._nodes: list[Node] = []
        self._by_name: dict[str, Node] = {}
        self._unbound: set[sympy.Symbol] = set()
        self._known: dict[str, Any] = {}
        for name, meta in graph["tensor_values"].items():
            self._known[name] = values.tensor(meta)
        for table, kind in _NUMBERS.items():
            for name, field in (graph.get(table) or {}).items():
                self._known[name] = values.number(kind, field)

    def read(self) -> list[Node]:
        """Return the nodes of the graph, in order."""
        graph = self._graph
        for index, arg in enumerate(graph["inputs"]):
            ((held, value),) = arg.items()
            name = value.get("name") or value.get("as_name") if isinstance(value, dict) else None
            known = self._known.get(name) if name else _constant({held: value})
            self._add(Node(name or f"arg{index}", "placeholder", "", known))
        for each in graph["nodes"]:
            self._call(each)
        results = [self._argument(arg) for arg in graph["outputs"]]
        output = Node("output", "output")
        single = graph.get("is_single_tensor_return")
        output.give((results[0] if single else results,), {})
        self._nodes.append(output)
        note_definitions(self._nodes)
        return self._nodes

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        self._by_name[node.name] = node
        return node

    def _call(self, each: Mapping[str, Any]) -> None:
        """Read one call, and the nodes that pick its results."""
        target = _target(each["target"])
        args, kwargs = [], {}
        for given in each["inputs"]:
            if given["kind"] == _KEYWORD:
                kwargs[given["name"]] = self._argument(given["arg"])
            else:
                args.append(self._argument(given["arg"]))
        outputs = each["outputs"]
        value, picked = self._results(each)
        name = each.get("name") or _only_name(outputs) or f"{target.replace('.', '_')}"
        node = self._add(Node(name, "call_function", target, value))
        node.give(args, kwargs)
        node.source = _source(each["metadata"])
        node.schema, node.draws = schemas().get(target), target in drawing()
        node.is_higher_order = each["target"].startswith("torch.ops.higher_order.")
        if target in NUMBER_CALLS and isinstance(value, TensorValue):
            node.compute = functools.partial(NUMBER_CALLS[target], value.dtype)
        if picked is None:
            for result in filter(None, [_only_name(outputs)]):
                self._by_name[result] = node
            return
        self._pick(node, picked)

    def _results(self, each: Mapping[str, Any]) -> tuple[Any, list[Any] | None]:
        """Return the value of a call, and the results that nodes after it pick, if there are."""
        outputs = each["outputs"]
        if not outputs:
            return None, None
        if len(outputs) == 1:
            ((held, what),) = outputs[0].items()
            one_of_list = (
                each["target"].startswith("torch.ops.higher_order.")
                and each.get("is_hop_single_tensor_return") is False
                and held != "as_none"
            )
            if held == "as_none":
                return None, None
            if not isinstance(what, list):
                if not one_of_list:
                    return self._known[_name(what)], None
                return [self._known[_name(what)]], outputs
            outputs = [{"as_tensor": item} for item in what]
        return [self._value(output) for output in outputs], outputs

    def _value(self, output: Mapping[str, Any]) -> Any:
        ((held, what),) = output.items()
        if held == "as_none":
            return None
        if isinstance(what, list):
            return [self._known[_name(item)] for item in what]
        return self._known[_name(what)]

    def _pick(self, node: Node, outputs: Iterable[Mapping[str, Any]]) -> None:
        for index, output in enumerate(outputs):
            ((held, what),) = output.items()
            name = f"{node.name}_{index}"
            if held != "as_none" and not isinstance(what, list):
                name = _name(what)
            pick = self._add(Node(name, "call_function", "operator.getitem", self._value(output)))
            pick.give((node, index), {})
            pick.source = node.source
            if isinstance(what, list):
                self._pick(pick, [{"as_tensor": item} for item in what])

    def _argument(self, arg: Mapping[str, Any]) -> Any:
        """Return an argument of a call: a node, plain data, or a list of these."""
        ((held, value),) = arg.items()
        if held == "as_none":
            return None
        if held in _PLAIN:
            return value
        if held in ("as_tensor", "as_optional_tensor"):
            return self._argument(value) if "name" not in value else self._node(value["name"])
        if held in ("as_tensors", "as_nested_tensors", "as_optional_tensors"):
            return [self._tensors(item) for item in value]
        if held in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            return self._number(value)
        if held in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return [self._number(item) for item in value]
        if held == "as_float":
            return _float(value)
        if held == "as_floats":
            return list(map(_float, value))
        if held == "as_complex":
            return complex(_float(value["real"]), _float(value["imag"]))
        if held == "as_scalar_type":
            return DtypeArgument(_DTYPES[value])
        if held == "as_layout":
            return Word(f"torch.{_LAYOUTS.get(value, value)}")
        if held == "as_memory_format":
            return Word(f"torch.{_MEMORY_FORMATS.get(value, value)}")
        if held == "as_device":
            index = value.get("index")
            return Word(value["type"] if index is None else f"{value['type']}:{index}")
        if held == "as_operator":
            return Word(_target(value))
        if held == "as_graph":
            body = Node(value["name"], "get_attr", value["name"])
            body.attribute = BodyGraph(_GraphReader(value["graph"], self._values).read())
            return self._add(body)
        if held == "as_custom_obj":
            return self._by_name.get(value["name"]) or Word(value["class_fqn"])
        raise ValueError(f"expected a known kind of argument, got {held}")

    def _tensors(self, item: Any) -> Any:
        if isinstance(item, list):
            return [self._tensors(each) for each in item]
        return self._node(item["name"]) if "name" in item else self._argument(item)

    def _number(self, value: Mapping[str, Any]) -> Any:
        ((held, what),) = value.items()
        if held == "as_name":
            return self._node(what)
        return _float(what) if held == "as_float" else what

    def _node(self, name: str) -> Node:
        return self._by_name[name]


def _target(target: str) -> str:
    """Return the name of what a node calls: ``aten.relu.default``, ``operator.add``, ``cond``."""
    target = target.removeprefix("torch.ops.").removeprefix("higher_order.")
    return target.removeprefix("_") if target.startswith("_operator.") else target


def _name(what: Mapping[str, Any]) -> str:
    name: str = what["name"] if "name" in what else what["as_name"]
    return name


def _only_name(outputs: list[Mapping[str, Any]]) -> str:
    """Return the name of the only result of a call; empty if there are none or several."""
    if len(outputs) != 1:
        return ""
    ((held, what),) = outputs[0].items()
    return "" if held == "as_none" or isinstance(what, list) else _name(what)


def _source(metadata: Mapping[str, str]) -> str:
    """Return the line of the user's model that a node comes from."""
    return source_line(
        metadata.get("stack_trace", ""), _modules(metadata.get("nn_module_stack", ""))
    )


@functools.lru_cache(maxsize=512)
def _modules(text: str) -> dict[str, tuple[str, object]]:
    """Return the modules on the way to a call: ``key,path,class`` between semicolons."""
    found: dict[str, tuple[str, object]] = {}
    for item in filter(None, text.split(";")):
        key, _, rest = item.partition(",")
        path, _, kind = _split_path(rest)
        found[key] = (path, kind)
    return found


def _split_path(text: str) -> tuple[str, str, str]:
    """Split a path from a class at the first comma outside of brackets."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            return text[:place], ",", text[place + 1 :]
    return text, "", ""
