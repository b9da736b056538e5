"""Hypothesis strategies: small valid plans, placed by a planner as simple as can be."""

import numpy as np
from hypothesis import strategies as st

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda name: name != "__metadata__" and not name.startswith("sample/")
)
shapes = st.lists(st.sampled_from([0, 1, 2, 3, 4, 16]), max_size=3).map(tuple)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names.filter(lambda key: key != "float"), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def arrays(draw, dtype, shape):
    """Any bytes, but bools are 0 or 1."""
    storage = DTYPES[dtype].storage
    count = int(np.prod(shape))
    if dtype == "bool":
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return np.array(values, np.bool_).reshape(shape)
    seed = draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).bytes(count * storage.itemsize)
    return np.frombuffer(raw, storage).reshape(shape).copy()


@st.composite
def steps(draw, types):
    """A node over tensors of ``types`` (name -> TensorType): op, inputs, attrs; or None."""
    name = draw(st.sampled_from(sorted(types)))
    shape = types[name].shape
    rank = len(shape)
    op = draw(st.sampled_from(["NEG", "RELU", "ADD", "MUL", "RESHAPE", "SLICE", "PERMUTE", "CAT"]))
    if op in ("NEG", "RELU"):
        return op, (name,), {}
    if op in ("ADD", "MUL"):
        mates = sorted(
            other
            for other, other_type in types.items()
            if other_type.shape in (shape, (), shape[-1:])
        )
        return op, (name, draw(st.sampled_from(mates))), {}
    if op == "RESHAPE":
        return op, (name,), {"shape": draw(st.permutations(shape).map(tuple))}
    if rank == 0:
        return None
    axis = draw(st.integers(0, rank - 1))
    if op == "SLICE":
        start, stop = sorted(draw(st.tuples(*[st.integers(0, shape[axis])] * 2)))
        step = draw(st.integers(1, 2))
        return op, (name,), {"axis": axis, "start": start, "stop": stop, "step": step}
    if op == "PERMUTE":
        return op, (name,), {"axes": draw(st.permutations(range(rank)).map(tuple))}
    return op, (name, name), {"axis": axis}


@st.composite
def plans(draw, max_nodes=10):
    """A valid plan: a random DAG with views, in-place nodes and shared outputs."""
    types, roles, nodes = {}, {}, []
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        types[name], roles[name] = TensorType("float32", draw(shapes)), "input"
    for name in draw(st.lists(names, max_size=2, unique=True)):
        if name not in types:
            types[name], roles[name] = TensorType("float32", draw(shapes)), "constant"
    for index in range(draw(st.integers(1, max_nodes))):
        step = draw(steps(types))
        output = f"t{index}"
        if step is not None and output not in types:
            op, inputs, attrs = step
            types[output] = REGISTRY[op].infer_type([types[name] for name in inputs], attrs)
            roles[output] = "intermediate"
            nodes.append(PlanNode(op, inputs, (output,), attrs))
    read = {name for node in nodes for name in node.inputs}
    outputs = [n.output for n in nodes if n.output not in read or draw(st.integers(0, 9)) == 0]
    roles |= dict.fromkeys(outputs, "output")
    # Constants nobody reads may have any dtype.
    for name, role in roles.items():
        if role == "constant" and name not in read:
            types[name] = types[name]._replace(dtype=draw(st.sampled_from(sorted(DTYPES))))
    tensors = {
        name: TensorSpec(name, types[name].dtype, types[name].shape, roles[name]) for name in types
    }
    placements = _draw_placements(draw, tensors, nodes)
    inputs = tuple(name for name, role in roles.items() if role == "input")
    return Plan(
        nodes=tuple(nodes),
        tensors=tensors,
        placements=placements,
        inputs=inputs,
        outputs=tuple(outputs),
        constants={
            name: draw(arrays(*types[name][:2]))
            for name, role in roles.items()
            if role == "constant"
        },
        samples={name: draw(arrays(*types[name][:2])) for name in inputs if draw(st.booleans())},
        input_tree=[
            "tuple",
            [["tuple", []], ["dict", [[name, ["tensor", name]] for name in inputs]]],
        ],
        output_tree=["dict", [[i, ["tensor", name]] for i, name in enumerate(outputs)]],
        metadata=draw(st.dictionaries(names.filter(lambda key: key != "float"), plain, max_size=2)),
    )


def last_reads(tensors, nodes):
    last = dict.fromkeys(tensors, -1)
    for index, node in enumerate(nodes):
        last |= dict.fromkeys(node.inputs, index)
    return last | {name: len(nodes) for name, spec in tensors.items() if spec.role == "output"}


def _draw_placements(draw, tensors, nodes):
    """Who lies in whose memory."""
    last = last_reads(tensors, nodes)
    places = {name: Placement(name, 0, contiguous_strides(s.shape)) for name, s in tensors.items()}
    for index, node in enumerate(nodes):
        op, source = REGISTRY[node.op], node.inputs[0]
        output, inner = tensors[node.output], places[source]
        mates = [n for n, p in places.items() if p.root == inner.root and n != output.name]
        if op.view is not None:
            attrs = op.complete(node.attrs)
            view = op.view(tensors[source].shape, inner.strides, attrs)
            if view is None or not draw(st.booleans()):
                continue
            offset = inner.offset + view.offset * DTYPES[output.dtype].size
            place = Placement(inner.root, offset, tuple(view.strides))
        elif 0 in op.inplace and output.type == tensors[source].type and draw(st.booleans()):
            dead = all(last[name] < index for name in mates if name not in (source, inner.root))
            dead = dead and last[inner.root] <= index and last[source] == index
            if not dead or not inner.is_contiguous(output.shape) or source in node.inputs[1:]:
                continue
            if any(name in mates for name in node.inputs[1:]):
                continue
            place = inner
        else:
            continue
        if tensors[place.root].role in ("input", "constant") and op.view is None:
            continue
        if output.role == "intermediate":
            if _takes_strides(nodes, output.name) or place.is_contiguous(output.shape):
                places[output.name] = place
        elif (
            tensors[place.root].role == "intermediate"
            and place.offset == 0
            and place.strides == contiguous_strides(output.shape)
            and tensors[place.root].nbytes == output.nbytes
        ):
            # The whole chain moves into the output's memory.
            for name in [n for n, p in places.items() if p.root == place.root]:
                places[name] = places[name]._replace(root=output.name)
    return places


def _takes_strides(nodes, name):
    return all(
        REGISTRY[node.op].takes_strided(index)
        for node in nodes
        for index, read in enumerate(node.inputs)
        if read == name
    )
