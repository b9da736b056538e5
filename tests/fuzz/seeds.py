"""Valid plan files to begin from: every op, and every part that a file can have."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from control_plans import branching, calling, counting, cumulative, delegating
from measured_plans import measured_plan
from op_samples import SAMPLED, samples_of, stored_inputs, type_of
from plan_files import small_plan
from random_graphs import random_graph
from sized_plans import sized_plan
from stateful_plans import accumulating_plan
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Entry, Placement, Plan, PlanNode, TensorSpec
from weighted_plans import weighted_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from op_samples.sample import Sample

#: Samples of one op that are seeds; the largest seed in bytes.
_PER_OP, _LARGEST = 4, 1 << 15


def seeds() -> Iterator[bytes]:
    """The bytes of each seed's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.taper")
        for plan in plans():
            plan.save(path)
            blob = path.read_bytes()
            if len(blob) <= _LARGEST:
                yield blob
        path.unlink()
        for name, plan in (("one", small_plan()), ("other", weighted_plan())):
            plan.save(path, name=name, append=True)
        yield path.read_bytes()


def plans() -> Iterator[Plan]:
    """The plans of the seeds."""
    yield small_plan()
    yield weighted_plan()
    yield sized_plan()
    yield measured_plan()
    yield counting()
    yield cumulative()
    yield branching()
    yield calling()
    yield delegating()
    yield small_plan().with_assets({"tokenizer.json": b'{"model": {}}', "notes.txt": b"words"})
    yield _with_entries()
    yield accumulating_plan(6, 3)
    yield _of_complex_numbers()
    for seed in range(12):
        graph = random_graph(seed)
        compile_graph(graph)
        yield make_plan(graph)
    for op in SAMPLED:
        samples = sorted(samples_of(op.name), key=_sample_bytes)
        small = [sample for sample in samples if _sample_bytes(sample) < 4096] or samples[:_PER_OP]
        for sample in small[:: max(1, len(small) // _PER_OP)]:
            plan = of_sample(op.name, sample)
            if all(plan.tensors[name].format == PLAIN for name in plan.outputs):
                yield plan


def of_sample(op: str, sample: object) -> Plan:
    """A plan of one node, with a constant for each input that is in a format."""
    arrays = [None if array is None else np.asarray(array) for array in stored_inputs(sample)]
    names = [None if array is None else f"x{i}" for i, array in enumerate(arrays)]
    types = [
        type_ and type_._replace(format=sample.formats.get(i, PLAIN))
        for i, type_ in enumerate(map(type_of, sample.inputs))
    ]
    roles = ["constant" if i in sample.formats else "input" for i in range(len(types))]
    known = {n: (t, r) for n, t, r in zip(names, types, roles, strict=True) if n is not None}
    outputs = REGISTRY[op].infer_types(types, sample.attrs)
    known |= {f"y{i}": (type_, "output") for i, type_ in enumerate(outputs)}
    named = {name: array for name, array in zip(names, arrays, strict=True) if name is not None}
    return Plan(
        nodes=(PlanNode(op, tuple(names), tuple(n for n in known if n[0] == "y"), sample.attrs),),
        tensors={n: TensorSpec(n, t.dtype, t.shape, r, t.format) for n, (t, r) in known.items()},
        placements={
            n: Placement(n, 0, contiguous_strides(t.storage.shape)) for n, (t, _) in known.items()
        },
        inputs=tuple(n for n, (_, role) in known.items() if role == "input"),
        outputs=tuple(n for n in known if n[0] == "y"),
        constants={n: array for n, array in named.items() if known[n][1] == "constant"},
        samples={n: array for n, array in named.items() if known[n][1] == "input"},
    )


def _sample_bytes(sample: Sample) -> int:
    return sum(np.asarray(array).nbytes for array in sample.inputs if array is not None)


def _with_entries() -> Plan:
    plan = small_plan()
    block = plan.as_block()
    own = {name: s for name, s in plan.tensors.items() if s.role != "constant"}
    places = {name: plan.placements[name] for name in own}
    other = Entry(*block._replace(tensors=own, placements=places), samples=plan.samples)
    return plan._replace(entries={"again": other})


def _of_complex_numbers() -> Plan:
    names = {"a": "input", "b": "input", "y": "output"}
    strides = contiguous_strides((3, 2))
    return Plan(
        nodes=(PlanNode("COMPLEX_MUL", ("a", "b"), ("y",)),),
        tensors={n: TensorSpec(n, "float32", (3, 2), r, is_complex=True) for n, r in names.items()},
        placements={name: Placement(name, 0, strides) for name in names},
        inputs=("a", "b"),
        outputs=("y",),
        constants={},
    )
