"""Liveness, against its definition on random programs."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from taper_runtime.plan.liveness import NEVER, last_reads, lifetimes


class Step(NamedTuple):
    reads: list
    outputs: list


@st.composite
def programs(draw):
    """Steps over inputs a and b, and the root of each tensor: its own or that of one before it."""
    names = ["a", "b"]
    roots = {"a": "a", "b": "b"}
    steps = []
    for index in range(draw(st.integers(1, 12))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        name = f"t{index}"
        made = [name, *([f"u{index}"] if draw(st.booleans()) else [])]
        steps.append(Step(inputs, made))
        for name in made:
            roots[name] = draw(st.sampled_from([name, roots[inputs[0]]]))
        names += made
    outputs = draw(st.lists(st.sampled_from(["a", *names[2:]]), max_size=3))
    return steps, roots, outputs


@settings(derandomize=True)
@given(programs())
def test_last_reads(program):
    steps, _, outputs = program
    found = last_reads(steps, outputs)
    for name in ["a", "b", *(name for step in steps for name in step.outputs)]:
        reads = [index for index, step in enumerate(steps) if name in step.reads]
        reads += [len(steps)] * (name in outputs)
        assert found.get(name, NEVER) == max(reads, default=NEVER)
    assert {name for step in steps for name in step.outputs} <= found.keys()


@settings(derandomize=True)
@given(programs())
def test_lifetimes(program):
    steps, roots, outputs = program
    found = lifetimes(steps, roots, ["a"], outputs)
    uses = {}
    for index, step in enumerate(steps):
        for name in (*step.outputs, *step.reads):
            uses.setdefault(roots[name], []).append(index)
    for name in outputs:
        uses.setdefault(roots[name], [len(steps)]).append(len(steps))
    uses["a"] = [-1, *uses.get("a", [])]
    assert found == {root: (min(at), max(at)) for root, at in uses.items()}
    births = [life.birth for life in found.values()]
    assert births == sorted(births)


def test_tensors_without_a_root_do_not_count():
    steps = [Step(["a", "w"], ["x"]), Step(["x"], ["y"])]
    assert lifetimes(steps, {"x": "x"}) == {"x": (0, 1)}
