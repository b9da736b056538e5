"""Change a plan file by its structure: what comes out is often valid, and reaches the kernels."""

from __future__ import annotations

import copy
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from plan_files import PlanFile
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

_SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 257)
_HUGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**48, 2**62, 2**63 - 1, 2**63, -(2**63), 10**4000)
_FLOATS = (0.0, -0.0, 0.5, 1.0, -1.5, 1e-45, 1e38, 1e308, -1e308, 5e-324)
_TEXTS = ("", "x", "B", "S", "B + S", "2*B", "floordiv(B, 2)", "max(1, B - S)", "B*B*B*B", "none")
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FC00000, 0x7F800000, 0xFF800000, 0x3F800000, 0x80000000)

#: What a file that is no plan's, or one without what is to be changed, raises in :func:`mutate`.
STRANGE = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError),
    *(OverflowError, MemoryError),
)

#: Most steps of one mutation.
_STEPS = 4


def mutate(blob: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return another file; ``others`` are files that parts may come from.

    Raises
    ------
    STRANGE
        If ``blob`` is no plan file whose structure can be told, or lacks what was to be changed.
    """
    file = PlanFile(blob)
    donor = PlanFile(rng.choice(others)) if others else file
    steps = rng.randint(1, _STEPS)
    for _ in range(steps):
        rng.choice(_MUTATIONS)(file, donor, rng)
    static = all(
        type(size) is int
        for block in _blocks(file.plan)
        for tensor in block["tensors"].values()
        for size in tensor["shape"]
    )
    if static and rng.random() < 0.8:
        _repair(file.plan)
    if static and rng.random() < 0.9:
        _refill(file, rng)
    return file.pack()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in JSON: what holds it, and its key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _wild(rng: random.Random) -> Any:
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(_SIZES)
    if kind == 3:
        return rng.choice(_HUGE)
    if kind == 4:
        return rng.choice((*_FLOATS, {"float": "nan"}, {"float": "inf"}))
    if kind == 5:
        return rng.choice(_TEXTS)
    if kind == 6:
        return rng.choice((None, True, False, {}, []))
    return [_wild(rng) for _ in range(rng.randrange(4))]


def _blocks(item: Any) -> Iterator[Any]:
    """The plan or entry, and every block in it."""
    yield item
    for node in item["nodes"]:
        for block in node.get("blocks", ()):
            yield from _blocks(block)
    for entry in item.get("entries", {}).values():
        yield from _blocks(entry)


def _pick_node(plan: Any, rng: random.Random) -> Any:
    return rng.choice([node for block in _blocks(plan) for node in block["nodes"]])


def _pick_tensor(plan: Any, rng: random.Random) -> Any:
    return rng.choice([tensor for block in _blocks(plan) for tensor in block["tensors"].values()])


def _anywhere(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Put anything anywhere."""
    root = rng.choices((file.plan, file.header, file.provenance), (8, 1, 1))[0]
    holder, key = rng.choice(list(_places(root)))
    how = rng.randrange(5)
    if how == 0:
        holder[key] = _wild(rng)
    elif how == 1:
        other, at = rng.choice(list(_places(rng.choice((root, donor.plan)))))
        holder[key] = copy.deepcopy(other[at])
    elif how == 2:
        del holder[key]
    elif how == 3 and isinstance(holder, list):
        holder.insert(key, _wild(rng))
    elif type(holder[key]) is int:
        holder[key] += rng.choice((-64, -1, 1, 4, 64))


def _size(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Give every dim of one size another."""
    dims = [size for block in _blocks(file.plan) for t in block["tensors"].values()
            for size in t["shape"]]  # fmt: skip
    old, new = rng.choice(dims), rng.choice(_SIZES)
    for block in _blocks(file.plan):
        for tensor in block["tensors"].values():
            tensor["shape"] = [new if size == old else size for size in tensor["shape"]]


def _shape(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    tensor = _pick_tensor(file.plan, rng)
    shape = tensor["shape"]
    how = rng.randrange(4)
    if how == 0 or not shape:
        shape.insert(rng.randint(0, len(shape)), rng.choice(_SIZES))
    elif how == 1:
        del shape[rng.randrange(len(shape))]
    elif how == 2:
        shape[rng.randrange(len(shape))] = rng.choice(_SIZES)
    else:
        rng.shuffle(shape)


def _attr(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    node = _pick_node(file.plan, rng)
    known = REGISTRY[node["op"]].attrs
    name = rng.choice([*known])
    value = node["attrs"].get(name, _wild(rng))
    if type(value) is list and value and rng.random() < 0.7:
        value[rng.randrange(len(value))] = rng.choice((*_SIZES, -1, -2, _wild(rng)))
    elif type(value) is int:
        value = rng.choice((*_SIZES, -1, value + 1, value - 1, rng.choice(_HUGE)))
    elif type(value) is float:
        value = rng.choice((*_FLOATS, {"float": "nan"}, {"float": "inf"}, {"float": "-inf"}))
    elif type(value) is bool:
        value = not value
    else:
        value = _wild(rng)
    node["attrs"][name] = value


def _op(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Compute another op of as many inputs."""
    node = _pick_node(file.plan, rng)
    count = len(node["inputs"])
    fitting = [op for op in REGISTRY.values() if op.inputs[0] <= count <= op.inputs[1]]
    op = rng.choice(fitting)
    node["op"] = op.name
    if rng.random() < 0.8:
        node["attrs"] = {name: v for name, v in node["attrs"].items() if name in op.attrs}


def _dtype(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    old, new = _pick_tensor(file.plan, rng)["dtype"], rng.choice([*DTYPES])
    everywhere = rng.random() < 0.5
    for block in _blocks(file.plan):
        for tensor in block["tensors"].values():
            if tensor["dtype"] == old and (everywhere or rng.random() < 0.3):
                tensor["dtype"] = new


def _inputs(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Have a node read another tensor, none, or one more."""
    block = rng.choice(list(_blocks(file.plan)))
    node = rng.choice(block["nodes"])
    name = rng.choice((*block["tensors"], *file.plan["tensors"], None))
    if node["inputs"] and rng.random() < 0.7:
        node["inputs"][rng.randrange(len(node["inputs"]))] = name
    else:
        node["inputs"].append(name)


def _place(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Put a tensor elsewhere."""
    block = rng.choice(list(_blocks(file.plan)))
    tensor = rng.choice([*block["tensors"].values()])
    tensor["root"] = rng.choice([*block["tensors"], *file.plan["tensors"]])
    tensor["offset"] = rng.choice((0, 4, 12, 16, 64, 128, 256))


def _role(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Make an input of a constant, or an output of what is none, and so on."""
    plan = file.plan
    name = rng.choice([*plan["tensors"]])
    role = rng.choice(("input", "output", "constant", "state", "intermediate"))
    plan["tensors"][name]["role"] = role
    for kind in ("input", "output"):
        plan[f"{kind}s"] = [n for n in plan[f"{kind}s"] if n != name]
    if role in ("input", "output"):
        plan[f"{role}s"].append(name)
    if role == "state":
        plan["states"][name] = rng.choice([*plan["tensors"]])


def _data(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Change numbers in the constants and samples."""
    data = bytearray(file.data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) & ~3
        data[at : at + 4] = struct.pack("<I", rng.choice((*_NUMBERS, rng.getrandbits(32))))
    file.data = bytes(data[: len(file.data)])


def _graft(file: PlanFile, donor: PlanFile, rng: random.Random) -> None:
    """Add a node of the donor with its tensors, whose inputs become the plan's where they can."""
    node = copy.deepcopy(rng.choice(donor.plan["nodes"]))
    taken = file.plan["tensors"]
    named = {*node["inputs"], *node["outputs"]} - {None}
    for name in sorted(named - taken.keys()):
        taken[name] = copy.deepcopy(donor.plan["tensors"][name]) | {"root": name, "offset": 0}
        if name in node["outputs"]:
            taken[name]["role"] = "output"
            file.plan["outputs"].append(name)
        else:
            taken[name]["role"] = "input"
            file.plan["inputs"].append(name)
    file.plan["nodes"].insert(rng.randint(0, len(file.plan["nodes"])), node)


_MUTATIONS = (
    _anywhere, _anywhere, _size, _size, _shape, _shape, _attr, _attr, _attr, _op, _op, _dtype,
    _inputs, _place, _role, _data, _graft, _graft,
)  # fmt: skip


def _repair(plan: Any) -> None:
    """Declare what the nodes give of what they now get, and roots row-major."""
    types: dict[str, TensorType] = {}
    for block in _blocks(plan):
        tensors = block["tensors"]
        for name, tensor in tensors.items():
            types[name] = _type(tensor)
        for node in block["nodes"]:
            with suppress(OpError, KeyError, TypeError, ValueError, IndexError, AttributeError):
                _infer(node, types, tensors)
        for name, tensor in tensors.items():
            with suppress(OpError, KeyError, TypeError, ValueError):
                if tensor["root"] == name:
                    shape = types[name].storage.shape
                    tensor["strides"] = list(contiguous_strides(shape))


def _type(tensor: Any) -> TensorType:
    return TensorType(tensor["dtype"], tuple(tensor["shape"]), tensor.get("format", PLAIN))


def _infer(node: Any, types: dict[str, TensorType], tensors: Any) -> None:
    attrs = {k: tuple(v) if type(v) is list else v for k, v in node["attrs"].items()}
    if "blocks" in node:
        return
    op = REGISTRY[node["op"]]
    given = op.infer_types([None if n is None else types[n] for n in node["inputs"]], attrs)
    for name, type_ in zip(node["outputs"], given, strict=False):
        types[name] = type_
        tensors[name].update(dtype=type_.dtype, shape=list(type_.shape))
        first = node["inputs"][0]
        if op.view is not None and tensors[name]["root"] != name and first in tensors:
            source = tensors[first]
            view = op.view(types[first].shape, tuple(source["strides"]), op.complete(attrs))
            if view is not None:
                item = DTYPES[type_.dtype].size
                tensors[name]["strides"] = list(view.strides)
                tensors[name]["offset"] = source["offset"] + view.offset * item


def _refill(file: PlanFile, rng: random.Random) -> None:
    """Have the file hold data of the types that constants and samples now have."""
    metadata = file.header.get("__metadata__")
    old, data, header = file.data, b"", {}
    wanted = {
        name: _type(t) for name, t in file.plan["tensors"].items()
        if t["role"] == "constant" or (t["role"] == "state" and name in file.header)
    }  # fmt: skip
    for name in file.header:
        if name.startswith("sample/") and name[7:] in file.plan["inputs"]:
            tensor = file.plan["tensors"][name[7:]]
            if not any(type(size) is str for size in tensor["shape"]):
                wanted[name] = _type(tensor)
    for name, type_ in sorted(wanted.items(), key=lambda item: -DTYPES[item[1].dtype].size):
        dtype, shape, _ = type_.storage
        nbytes = type_.nbytes
        if nbytes > 1 << 16:
            continue
        start, stop = file.header.get(name, {}).get("data_offsets", (0, 0))
        kept = old[start:stop][:nbytes]
        kept += rng.randbytes(nbytes - len(kept))
        if dtype == "bool":
            kept = bytes(byte & 1 for byte in kept)
        code = DTYPES[dtype].code
        span = [len(data), len(data) + nbytes]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": span}
        data += kept
    file.header = header if metadata is None else {"__metadata__": metadata, **header}
    file.data = data
