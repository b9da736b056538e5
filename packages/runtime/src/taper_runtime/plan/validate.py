"""Check that a plan is valid; the loader, the planner and the writer call this.

A plan that passes can at worst compute a wrong answer: every tensor lies inside its memory, every
node gets inputs that its op accepts, and no bytes are overwritten that are read later. Errors name
fields by their paths in the file (docs/format.md).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.checks import (
    MAX_BLOCK_DEPTH,
    METADATA_NAME,
    SAMPLE_PREFIX,
    check_attr_items,
    check_name,
    check_text,
    check_type,
    check_variable,
    fail,
    parse_object,
    tensor_field,
)
from taper_runtime.base.dtypes import COMPLEX
from taper_runtime.base.errors import OpError, PlanFormatError, TaperError
from taper_runtime.base.file_limits import UNLIMITED, Budget, Limits
from taper_runtime.base.loading import watched
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, linear, range_of, variables
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import REQUIRED
from taper_runtime.plan.arrays import check_constants, check_samples, check_stored
from taper_runtime.plan.liveness import last_reads
from taper_runtime.plan.memory_check import check_memory
from taper_runtime.plan.plan import ROLES, STORED, TensorSpec
from taper_runtime.plan.tensor_kinds import Kind, Kinds, form_of
from taper_runtime.plan.trees import check_arguments, check_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from taper_runtime.ops.opdef import Attrs, OpDef, TensorType
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode


#: The roles of tensors whose elements may be sizes.
_MEASURED = ("input", "intermediate", "output")


#: The characters that separate folders or drives in the paths of some system, or are special there.
_NOT_IN_NAMES = frozenset('/\\:*?"<>|')


class _CheckScope(NamedTuple):
    """The state that the checks of an entry and of its blocks share."""

    names: set[str]  # names that are taken
    comparisons: Budget
    kinds: Kinds
    specs: dict[object, Kind]  # by all that a tensor's spec has beside its name
    nodes: set[object]  # ops, attrs and kinds of nodes whose types have been checked


def validate(plan: Plan, limits: Limits = UNLIMITED) -> None:
    """Check every rule of a valid plan.

    Raises
    ------
    PlanFormatError
        If a field breaks a rule; the message names the first one.
    """
    comparisons = Budget("plan.tensors", "comparisons", limits.comparisons)
    check_name(plan.default, "plan.default")
    _check_entry(
        plan, comparisons, {name for entry in plan.entries.values() for name in entry.states}
    )
    check_assets(plan)
    if plan.weights or plan.derived or plan.originals:
        from taper_runtime.plan.replaceable import check_weights  # which most plans do not need

        check_weights(plan)
    for name, entry in plan.entries.items():
        field = f"plan.entries[{name!r}]"
        check_name(name, field)
        if name == plan.default:
            fail(field, "expected another name than that of the default entry", name)
        for tensor, spec in entry.tensors.items():
            if spec.role in STORED:
                fail(
                    f"{field}.tensors[{tensor!r}].role",
                    "expected input, output or intermediate, because entries share constants and "
                    "states",
                    spec.role,
                )
        try:
            _check_entry(plan.entry(name), comparisons, set())
        except PlanFormatError as error:
            raise error.within(field) from error


def check_assets(plan: Plan) -> None:
    """Check the names and the contents of assets.

    Raises
    ------
    PlanFormatError
        If a name could be more than that of a file in a folder, or a content is not bytes.
    """
    for name, array in watched(plan.assets.items()):
        field = f"plan.assets[{name!r}]"
        check_text(name, field)
        if not (
            name.isprintable()
            and 0 < len(name.encode()) <= 255  # bytes, the limit of file systems
            and name == name.strip()
            and not name.endswith(".")
            and _NOT_IN_NAMES.isdisjoint(name)
        ):
            fail(field, "expected the plain name of a file, of at most 255 bytes", name)
        check_stored(array, "uint8", (np.size(array),), field)


def check_plan(plan: Plan) -> None:
    """Check a plan from an untrusted source: its fields may have any type.

    Raises
    ------
    PlanFormatError
        If :func:`validate` raises it, or fails because a field has the wrong type.
    """
    try:
        validate(plan)
    except TaperError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"expected fields of the types that a load returns, got another: {error}"
        raise PlanFormatError("plan", reason) from error


def _check_entry(plan: Plan, comparisons: Budget, kept: Collection[str]) -> None:
    """Check a plan without its other entries, which write the states ``kept``."""
    try:
        _check_function(plan, comparisons, kept)
    except OpError as error:
        raise PlanFormatError("plan.sizes", str(error)) from error


def _check_function(plan: Plan, comparisons: Budget, kept: Collection[str]) -> None:
    """Check one entry; raise OpError if a derived size exceeds the limits of expressions."""
    _check_sizes(plan)
    scope = _CheckScope(set(plan.tensors), comparisons, Kinds(), {}, set())
    kinds = _check_specs(plan.tensors, scope)
    _check_signature(plan.inputs, plan.tensors, "input")
    _check_signature(plan.outputs, plan.tensors, "output", plan.states.values())
    _check_states(plan, kept)
    check_constants(plan)
    check_samples(plan)
    last_read = _check_nodes(plan, kinds, scope)
    changed = {name: after for name, after in plan.states.items() if name != after}
    places = {after: plan.placements.get(after) for after in changed.values()}
    check_memory(
        plan,
        kinds,
        last_read,
        comparisons,
        {n: state for state, n in changed.items() if (at := places[n]) and at.root == state},
    )
    _check_trees(plan)


def _check_sizes(plan: Plan) -> None:
    """Check the size variables, and that inputs give each one its value."""
    for name, limits in plan.sizes.items():
        check_variable(name, limits, is_computed=name in plan.origins)
    given = set()
    for name in plan.inputs if plan.sizes else ():
        if type(name) is str and name in plan.tensors:
            solutions = filter(None, map(linear, plan.tensors[name].shape))
            given |= {variable for variable, factor, _ in solutions if factor >= 1}
    seen: dict[str, tuple[int, int]] = {}
    for name, (low, high) in plan.sizes.items():
        if name not in given and name not in plan.origins:
            raise PlanFormatError(
                f"plan.sizes[{name!r}]", "expected an input with a dim that gives this size"
            )
        _check_variables(seen, (high,), f"plan.sizes[{name!r}]")
        seen[name] = low, high
    for name, origin in plan.origins.items():
        _check_origin(plan, name, origin, f"plan.origins[{name!r}]")
    _check_expressions(plan)


def _check_expressions(plan: Plan) -> None:
    """Check the size variables of shapes and placements."""
    passed: set[int] = set()  # ids of sizes: a file's are made once for each text

    def check(name: object, values: Iterable[object]) -> None:
        found = [each for each in values if type(each) is Size and id(each) not in passed]
        if found:
            _check_variables(plan.sizes, found, tensor_field(name))
            passed.update(map(id, found))

    for spec in watched(plan.tensors.values()):
        if type(spec.shape) is tuple:
            check(spec.name, spec.shape)
    for name, (_, offset, strides) in watched(plan.placements.items()):
        check(name, (offset, *strides) if type(strides) is tuple else (offset,))


def _check_origin(plan: Plan, name: str, origin: object, field: str) -> None:
    """Check that an element of an input, or of a node's output, can be the only value of a size."""
    if type(origin) is not tuple or [type(part) for part in origin] != [str, int]:
        fail(field, "expected a tensor and the index of an element", origin)
    tensor, element = origin
    if tensor not in plan.tensors or plan.tensors[tensor].role not in _MEASURED:
        fail(field, "expected a tensor that a node makes, or an input", tensor)
    spec, placement = plan.tensors[tensor], plan.placements.get(tensor)
    _check_spec(tensor, spec)
    static = not any(type(size) is Size for size in spec.shape)
    if spec.dtype != "int64" or not static or placement is None or type(placement.offset) is Size:
        fail(field, "expected an int64 tensor of fixed shape and offset", tensor)
    if len(placement.strides) != len(spec.shape):
        fail(field, "expected a tensor with a stride for each dim", tensor)
    if not 0 <= element < spec.type.size or not placement.is_contiguous(spec.shape):
        fail(field, "expected an element of a contiguous tensor", element)
    if name not in plan.sizes:
        fail(field, "expected the name of a size variable", name)
    for each in plan.tensors.values():
        if each.role in ("input", "constant", "state") and name in _variables_in(each.shape):
            fail(field, f"expected no input, constant or state with size {name}", each.name)


def _variables_in(values: Iterable[object]) -> set[str]:
    """Return the names of the size variables in a shape or an attr."""
    return {atom.text for value in values if type(value) is Size for atom in variables(value)}


def _sizes_inside(blocks: Iterable[PlanBlock]) -> set[str]:
    """Return the names of the size variables in blocks."""
    found: set[str] = set()
    for block in blocks:
        for spec in block.tensors.values():
            found |= _variables_in(spec.shape)
        for node in block.nodes:
            found |= _sizes_inside(node.blocks)
            for value in node.attrs.values():
                found |= _variables_in(value if type(value) in (tuple, list) else (value,))
    return found


def _check_variables(
    sizes: Mapping[str, tuple[int, int]], values: Iterable[object], field: str
) -> None:
    """Check that the size expressions among ``values`` use only these variables."""
    for value in values:
        if type(value) is not Size:
            continue
        for atom in variables(value):
            if sizes.get(atom.text) != range_of(atom):
                fail(field, "expected a size variable of the plan", atom.text)


def _check_specs(tensors: Mapping[str, TensorSpec], scope: _CheckScope) -> dict[str, Kind]:
    """Check the specs of tensors, and return their kinds."""
    kinds = {}
    for name, spec in watched(tensors.items()):
        try:
            _check_tensor_name(name, spec)
            kinds[name] = _check_described(spec, scope)
        except PlanFormatError as error:
            raise error.within(tensor_field(name)) from error
    return kinds


def _check_spec(name: object, spec: TensorSpec) -> None:
    try:
        _check_tensor_name(name, spec)
        _check_description(spec)
    except PlanFormatError as error:
        raise error.within(tensor_field(name)) from error


def _check_described(spec: TensorSpec, scope: _CheckScope) -> Kind:
    """Check a spec without its name, unless an equal one has been checked; return its kind."""
    key: object = None
    kind = None
    try:
        rest = spec[1:]
        # with the types of values, because True == 1 == 1.0
        key = (*rest, *map(type, rest), *map(type, spec.shape))
        kind = scope.specs.get(key)
    except TypeError:  # of another type than it must be, which the check names
        pass
    if kind is None:
        _check_description(spec)
        kind = scope.specs[key] = scope.kinds[spec.type]
    return kind


def _check_tensor_name(name: object, spec: TensorSpec) -> None:
    """Check a tensor's name; errors name the field ``plan``, because a full path takes long."""
    check_text(name, "plan")
    if spec.name != name or not spec.name:
        fail("plan", "expected the name of the tensor", spec.name)
    if spec.role in STORED and (name == METADATA_NAME or spec.name.startswith(SAMPLE_PREFIX)):
        raise PlanFormatError("plan", "expected another name, because files reserve this one")


def _check_description(spec: TensorSpec) -> None:
    """Check all of a tensor's spec but its name."""
    check_type(spec.dtype, spec.shape, "plan")
    if spec.role not in ROLES:
        fail("plan.role", f"expected one of {', '.join(ROLES)}", spec.role)
    if spec.format != PLAIN:
        _check_format(spec, "plan")
    if spec.is_complex:
        _check_complex(spec, "plan.complex")


def _check_complex(spec: TensorSpec, field: str) -> None:
    """Check that users see the tensor, and that its type can hold complex numbers."""
    if spec.role not in ("input", "output", "state"):
        fail(field, "expected an input, an output or a state", spec.role)
    if spec.dtype not in COMPLEX or not spec.shape or spec.shape[-1] != 2:
        expected = f"expected {' or '.join(COMPLEX)} with a last axis of 2"
        raise PlanFormatError(field, f"{expected}, got {spec.dtype} of shape {spec.shape}")


def _check_format(spec: TensorSpec, field: str) -> None:
    """Check that the format exists and suits a tensor of this type and role."""
    field = f"{field}.format"
    if type(spec.format) is not str:
        fail(field, "expected a string", spec.format)
    if spec.role not in ("constant", "intermediate"):
        fail(field, f"expected {PLAIN} for a tensor of role {spec.role}", spec.format)
    if any(type(size) is Size for size in spec.shape):
        fail(field, f"expected {PLAIN} for a shape with size expressions", spec.format)
    try:
        dtype, shape, _ = spec.storage
    except OpError as error:
        raise PlanFormatError(field, str(error)) from error
    check_type(dtype, shape, field)


def _check_signature(
    names: Sequence[object],
    tensors: Mapping[str, TensorSpec],
    role: str,
    others: Iterable[str] = (),
) -> None:
    """Check that ``names`` and ``others`` are the tensors of ``role``; outputs may repeat."""
    seen = {name for name in others if type(name) is str}
    for index, name in enumerate(watched(names)):
        field = f"plan.{role}s[{index}]"
        if type(name) is not str or name not in tensors or tensors[name].role != role:
            fail(field, f"expected a tensor of role {role}", name)
        if role == "input" and name in seen:
            fail(field, "expected each input once", name)
        seen.add(name)
    for name, spec in watched(tensors.items()):
        if spec.role == role and name not in seen:
            reason = f"expected the tensor in plan.{role}s, because its role is {role}"
            raise PlanFormatError(f"{tensor_field(name)}.role", reason)


def _check_states(plan: Plan, kept: Collection[str]) -> None:
    """Check that each state has its own next value: an output of the same type, or itself.

    States in ``kept`` need no next value; then nothing may read them.
    """
    batches: set[int] = set()
    for name, spec in watched(plan.tensors.items()):
        if spec.role != "state":
            continue
        if name not in plan.states and name not in kept:
            reason = "expected the tensor in plan.states, because its role is state"
            raise PlanFormatError(f"{tensor_field(name)}.role", reason)
        varying = [size for size in spec.shape if type(size) is Size]
        batches.update(varying)
        if len(varying) > 1 or len(batches) > 1 or not all(map(partial(_is_batch, plan), varying)):
            fail(
                f"{tensor_field(name)}.shape",
                "expected at most one dim that varies, whose size is the same variable in all "
                "states and may be 1",
                spec.shape,
            )
    taken = set(plan.outputs)
    for name, after in watched(plan.states.items()):
        field = f"plan.states[{name!r}]"
        if name not in plan.tensors or plan.tensors[name].role != "state":
            raise PlanFormatError(field, "expected the name of a tensor of role state")
        if after == name:  # the entry only reads it
            continue
        if type(after) is not str or after not in plan.tensors or after in taken:
            fail(
                field,
                "expected a tensor that is not an output of the plan or of another state",
                after,
            )
        if plan.tensors[after].role != "output" or (
            plan.tensors[after].type != plan.tensors[name].type
        ):
            fail(field, f"expected an output of the type of {name!r}", after)
        taken.add(after)


def _is_batch(plan: Plan, size: int) -> bool:
    """Return whether a size is a variable that may be 1."""
    name = str(size)
    return name in plan.sizes and plan.sizes[name][0] <= 1


def _check_block(
    plan: Plan, block: PlanBlock, shared: _CheckScope, replaced: int, field: str, depth: int
) -> None:
    """Check a block of a node; its first ``replaced`` outputs replace inputs."""
    try:
        _check_specs(block.tensors, shared)
        for name, spec in watched(block.tensors.items()):
            if spec.role not in ("input", "output", "intermediate"):
                fail(f"{tensor_field(name)}.role", "expected input, output or intermediate", name)
            if name in shared.names:
                fail(tensor_field(name), "expected a name that no other tensor has", name)
            shared.names.add(name)
        body = plan.body(block)
        _check_expressions(body)
        _check_signature(block.inputs, block.tensors, "input")
        _check_signature(block.outputs, block.tensors, "output")
        if len(set(block.outputs)) < len(block.outputs):
            raise PlanFormatError("plan.outputs", "expected each output once")
        kinds = {name: shared.kinds[spec.type] for name, spec in watched(body.tensors.items())}
        last_read = _check_nodes(body, kinds, shared, depth)
        pairs = zip(block.outputs[:replaced], block.inputs, strict=False)
        check_memory(
            body,
            kinds,
            last_read,
            shared.comparisons,
            {after: name for after, name in pairs if block.placements[after].root == name},
        )
    except PlanFormatError as error:
        raise error.within(field) from error


def _check_arguments(node: PlanNode, field: str) -> None:
    """Check the arguments of the ATen call that a node computes."""
    check_text(node.arguments, field)
    if len(node.targets) != 1:
        fail(field, "expected arguments of one target", node.targets)
    if node.arguments == "{}":
        return
    if parse_object(node.arguments) is None:
        fail(field, "expected the JSON of an object", node.arguments)


def _check_nodes(
    plan: Plan, kinds: Mapping[str, Kind], shared: _CheckScope, depth: int = 0
) -> dict[str, int]:
    """Check every node's op, tensors and attrs; return the last step that reads each tensor.

    ``kinds`` are those of the plan's tensors. Names in blocks are added to ``shared``.
    """
    tensors = plan.tensors
    defined = {name for name, spec in tensors.items() if spec.role in ("input", "constant")}
    defined |= plan.states.keys()
    for step, node in enumerate(watched(plan.nodes)):
        field = f"plan.nodes[{step}]"
        if type(node.op) is not str or node.op not in REGISTRY:
            fail(f"{field}.op", "expected a registered op", node.op)
        check_text(node.source, f"{field}.source")
        for target in node.targets:
            check_text(target, f"{field}.targets")
        if node.arguments is not None:
            _check_arguments(node, f"{field}.arguments")
        for index, name in enumerate(node.inputs):
            if name is not None and (type(name) is not str or name not in defined):
                fail(
                    f"{field}.inputs[{index}]",
                    "expected a tensor that has a value before this step",
                    name,
                )
        if not node.outputs:
            raise PlanFormatError(f"{field}.outputs", "expected at least one tensor")
        for index, name in enumerate(node.outputs):
            if type(name) is not str or name not in tensors:
                fail(f"{field}.outputs[{index}]", "expected the name of a tensor", name)
            if name in defined:
                fail(
                    f"{field}.outputs[{index}]",
                    "expected a tensor that has no value before this step",
                    name,
                )
            defined.add(name)
        if node.blocks:
            _check_blocks(plan, node, shared, field, depth + 1)
        for key, value in node.attrs.items():
            check_attr_items(value, f"{field}.attrs.{key}")
            if type(value) is Size:
                _check_variables(plan.sizes, (value,), f"{field}.attrs.{key}")
            elif type(value) in (tuple, list) and Size in map(type, value):
                _check_variables(plan.sizes, value, f"{field}.attrs.{key}")
        _check_types(node, kinds, shared, field)
        if plan.origins:
            _check_origins_before(plan, node, defined, field)
    for name, spec in watched(tensors.items()):
        if name not in defined and spec.role != "state":
            raise PlanFormatError(tensor_field(name), "expected a node that produces it")
    kept = [n for n, spec in tensors.items() if spec.role == "output"]
    return last_reads(plan.nodes, [*kept, *(tensor for tensor, _ in plan.origins.values())])


def _check_origins_before(plan: Plan, node: PlanNode, defined: Collection[str], field: str) -> None:
    """Check that the tensors that hold the sizes which a node needs are computed before it."""
    needed = _sizes_inside(node.blocks)
    for name in node.outputs:
        needed |= _variables_in(plan.tensors[name].shape)
    for value in node.attrs.values():
        needed |= _variables_in(value if type(value) in (tuple, list) else (value,))
    for name in sorted(needed & plan.origins.keys()):
        if plan.origins[name][0] not in defined:
            reason = f"expected a value of {plan.origins[name][0]!r}, which gives size {name},"
            raise PlanFormatError(field, f"{reason} before this step")


def _check_blocks(plan: Plan, node: PlanNode, shared: _CheckScope, field: str, depth: int) -> None:
    """Check the blocks of a node."""
    op = REGISTRY[node.op]
    if len(node.blocks) != op.blocks:
        fail(f"{field}.blocks", f"expected the {op.blocks} blocks of {node.op}", len(node.blocks))
    try:
        attrs = op.complete(node.attrs)
    except OpError as error:
        raise PlanFormatError(field + _attr_at_fault(op, node.attrs), str(error)) from error
    if depth > MAX_BLOCK_DEPTH:
        fail(f"{field}.blocks", f"expected at most {MAX_BLOCK_DEPTH} levels of blocks", depth)
    for index, block in enumerate(node.blocks):
        carries = op.carries(attrs, index)
        _check_block(plan, block, shared, carries, f"{field}.blocks[{index}]", depth)


def _check_types(
    node: PlanNode, kinds: Mapping[str, Kind], shared: _CheckScope, field: str
) -> None:
    """Check that the op accepts these inputs, attrs and blocks, and infers the declared outputs."""
    inputs = [None if name is None else kinds[name] for name in node.inputs]
    alike = (form_of(node), len(inputs), *inputs, *[kinds[name] for name in node.outputs])
    try:
        if not node.blocks and alike in shared.nodes:
            return
    except TypeError:  # an attr has a value without a hash, which no op accepts
        pass
    _check_inferred(node, inputs, [kinds[name].type for name in node.outputs], field)
    shared.nodes.add(alike)


def _check_inferred(
    node: PlanNode, inputs: Sequence[Kind | None], outputs: Sequence[TensorType], field: str
) -> None:
    """Check a node's types and attrs; ``outputs`` are the types that it says it has."""
    op = REGISTRY[node.op]
    try:
        inferred = op.infer_types(
            [None if kind is None else kind.type for kind in inputs],
            node.attrs,
            [block.signature for block in node.blocks] if node.blocks else (),
        )
    except OpError as error:
        raise PlanFormatError(field + _attr_at_fault(op, node.attrs), str(error)) from error
    if len(inferred) != len(node.outputs):
        fail(
            f"{field}.outputs",
            f"expected the {len(inferred)} outputs of {node.op}",
            len(node.outputs),
        )
    for index, (declared, given) in enumerate(zip(outputs, inferred, strict=True)):
        if given != declared:
            raise PlanFormatError(
                f"{field}.outputs[{index}]",
                f"expected {node.outputs[index]!r} of type {_type_text(given)}, which {node.op} "
                f"returns, got {_type_text(declared)}",
            )


def _type_text(type_: TensorType) -> str:
    text = f"{type_.dtype}{list(type_.shape)}"
    return text if type_.format == PLAIN else f"{text} in format {type_.format}"


def _attr_at_fault(op: OpDef, attrs: Attrs) -> str:
    """Return the path of the first attr that is unknown, missing or of the wrong type; else ""."""
    for name, value in attrs.items():
        if name not in op.attrs or not op.attrs[name].accepts(value):
            return f".attrs.{name}"
    for name, attr in op.attrs.items():
        if name not in attrs and attr.default is REQUIRED:
            return f".attrs.{name}"
    return ""


def _check_trees(plan: Plan) -> None:
    """Check the trees of inputs and outputs; None means that no signature was recorded."""
    if plan.output_tree is not None:
        outputs = {name: plan.tensors[name] for name in plan.outputs}
        check_tree(plan.output_tree, outputs, "plan.output_tree")
    if plan.input_tree is not None:
        inputs = {name: plan.tensors[name] for name in plan.inputs}
        check_arguments(plan.input_tree, inputs, "plan.input_tree")
