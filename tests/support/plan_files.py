"""A small plan with a bit of everything, and plan files as parts that a test can break."""

import json
import tempfile
from pathlib import Path

import numpy as np

from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec


def chain(ops: list[str], size: int) -> Plan:
    """Elementwise ops of one float32 vector x, one after the other, each in place but the last."""
    names = ["x", *(f"t{i}" for i in range(1, len(ops))), "y"]
    roles = ["input", *["intermediate"] * (len(ops) - 1), "output"]
    roots = ["x", *["t1"] * (len(ops) - 1), "y"]
    return Plan(
        nodes=tuple(
            PlanNode(op, (source,), (target,))
            for op, source, target in zip(ops, names, names[1:], strict=False)
        ),
        tensors={
            name: TensorSpec(name, "float32", (size,), role)
            for name, role in zip(names, roles, strict=True)
        },
        placements={
            name: Placement(root, 0, (1,)) for name, root in zip(names, roots, strict=True)
        },
        inputs=("x",),
        outputs=("y",),
        constants={},
    )


def towers(count: int, ops: list[str], size: int) -> Plan:
    """``count`` chains of elementwise ops over one vector x that need not wait for each other,
    added up."""
    tails = [[f"{op.lower()}{tower}_{i}" for i, op in enumerate(ops)] for tower in range(count)]
    sums = [f"sum{i}" for i in range(count - 2)] + ["y"]
    nodes = [
        PlanNode(op, (source,), (target,))
        for tower in tails
        for op, source, target in zip(ops, ["x", *tower], tower, strict=False)
    ]
    ends = [tower[-1] for tower in tails]
    nodes += [
        PlanNode("ADD", (left, right), (target,))
        for left, right, target in zip([ends[0], *sums], ends[1:], sums, strict=False)
    ]
    roots = {"x": "x", "y": "y", **{name: tower[0] for tower in tails for name in tower}}
    roots |= {name: name for name in sums}
    roles = {"x": "input", "y": "output"}
    return Plan(
        nodes=tuple(nodes),
        tensors={
            name: TensorSpec(name, "float32", (size,), roles.get(name, "intermediate"))
            for name in roots
        },
        placements={name: Placement(root, 0, (1,)) for name, root in roots.items()},
        inputs=("x",),
        outputs=("y",),
        constants={},
    )


def small_plan() -> Plan:
    """relu(x @ w), its first half kept where `keep` says, plus b: with intermediates and views."""
    f32 = "float32"
    tensors = [
        TensorSpec("x", f32, (2, 4), "input"),
        TensorSpec("w", f32, (4, 8), "constant"),
        TensorSpec("b", f32, (8,), "constant"),
        TensorSpec("keep", "bool", (4,), "constant"),
        TensorSpec("h", f32, (2, 8), "intermediate"),
        TensorSpec("r", f32, (2, 8), "intermediate"),
        TensorSpec("s", f32, (2, 4), "intermediate"),
        TensorSpec("t", f32, (2, 4), "intermediate"),
        TensorSpec("u", f32, (8,), "intermediate"),
        TensorSpec("y", f32, (8,), "output"),
    ]
    return Plan(
        nodes=(
            PlanNode("MATMUL", ("x", "w"), ("h",), {"alpha": 0.5}, "model.py:7"),
            PlanNode("RELU", ("h",), ("r",)),  # in place
            PlanNode("SLICE", ("r",), ("s",), {"axis": 1, "start": 0, "stop": 4}),  # a view
            PlanNode("WHERE", ("keep", "s", "x"), ("t",)),
            PlanNode("RESHAPE", ("t",), ("u",), {"shape": (8,)}),  # a view
            PlanNode("ADD", ("u", "b"), ("y",)),
        ),
        tensors={spec.name: spec for spec in tensors},
        placements={
            "x": Placement("x", 0, (4, 1)),
            "w": Placement("w", 0, (8, 1)),
            "b": Placement("b", 0, (1,)),
            "keep": Placement("keep", 0, (1,)),
            "h": Placement("h", 0, (8, 1)),
            "r": Placement("h", 0, (8, 1)),
            "s": Placement("h", 0, (8, 1)),
            "t": Placement("t", 0, (4, 1)),
            "u": Placement("t", 0, (1,)),
            "y": Placement("y", 0, (1,)),
        },
        inputs=("x",),
        outputs=("y",),
        constants={
            "w": np.arange(32, dtype=np.float32).reshape(4, 8),
            "b": np.linspace(-1, 1, 8, dtype=np.float32),
            "keep": np.array([True, False, True, True]),
        },
        samples={"x": np.ones((2, 4), np.float32)},
        input_tree=["tuple", [["tuple", [["tensor", "x"]]], ["dict", [["scale", ["value", 0.5]]]]]],
        output_tree=["tensor", "y"],
        metadata={"name": "small", "error": 1e-7},
    )


def small_file() -> bytes:
    """The bytes of a file that holds :func:`small_plan`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.taper")
        small_plan().save(path)
        return path.read_bytes()


class PlanFile:
    """The parts of a file, put together by :meth:`pack` without the writer under test.

    ``header`` is the JSON header without the plan and the recipes, which are ``plan`` and
    ``provenance``; ``data`` is the bytes after the header. :meth:`pack` takes the texts instead
    where a test sets them.
    """

    def __init__(self, blob: bytes) -> None:
        length = int.from_bytes(blob[:8], "little")
        self.header = json.loads(blob[8 : 8 + length])
        self.plan = json.loads(self.header["__metadata__"].pop("plan"))
        self.provenance = json.loads(self.header["__metadata__"].pop("provenance", "{}"))
        self.data = blob[8 + length :]
        self.plan_text = None
        self.header_text = None

    def pack(self) -> bytes:
        if self.plan_text is None:
            self.plan_text = json.dumps(self.plan)
        if self.header_text is None:
            metadata = self.header.get("__metadata__")
            if isinstance(metadata, dict):
                recipes = {"provenance": json.dumps(self.provenance)} if self.provenance else {}
                self.header["__metadata__"] = {"plan": self.plan_text, **recipes} | metadata
            self.header_text = json.dumps(self.header)
        return pack(self.header_text, self.data)


def pack(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + data


def assert_same_plan(got: Plan, expected: Plan) -> None:
    for part in ("tensors", "placements", "inputs", "outputs", "metadata", "provenance"):
        assert getattr(got, part) == getattr(expected, part), part
    assert [astuple(node) for node in got.nodes] == [astuple(node) for node in expected.nodes]
    assert as_lists(got.input_tree) == as_lists(expected.input_tree)
    assert as_lists(got.output_tree) == as_lists(expected.output_tree)
    for part in ("constants", "samples"):
        arrays, wanted = getattr(got, part), getattr(expected, part)
        assert arrays.keys() == wanted.keys()
        for name, array in wanted.items():
            assert arrays[name].dtype == array.dtype
            assert arrays[name].shape == array.shape
            assert arrays[name].tobytes() == array.tobytes()


def astuple(node: PlanNode) -> tuple:
    return node.op, node.inputs, node.outputs, dict(node.attrs), node.source


def as_lists(tree: object) -> object:
    return [as_lists(item) for item in tree] if isinstance(tree, list | tuple) else tree


def renamed(plan, names):
    """A plan with other names for tensors."""

    def new(name):
        return names.get(name, name)

    return plan._replace(
        nodes=tuple(
            n._replace(inputs=tuple(map(new, n.inputs)), outputs=tuple(map(new, n.outputs)))
            for n in plan.nodes
        ),
        tensors={new(k): v._replace(name=new(k)) for k, v in plan.tensors.items()},
        placements={new(k): v._replace(root=new(v.root)) for k, v in plan.placements.items()},
        inputs=tuple(map(new, plan.inputs)),
        outputs=tuple(map(new, plan.outputs)),
        constants={new(k): v for k, v in plan.constants.items()},
        samples={new(k): v for k, v in plan.samples.items()},
        input_tree=None,
        output_tree=None,
    )
