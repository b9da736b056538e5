"""Files that would cost much memory or time are refused first, unless the caller raises a limit."""

import json
import sys
from mmap import mmap

import pytest

from control_plans import B, F, block, plan_of
from plan_files import pack, small_file, small_plan
from taper_runtime import InferenceSession, InputError, Limits, PlanFormatError, SessionOptions
from taper_runtime.base.file_limits import UNLIMITED
from taper_runtime.base.sizes import largest, smallest, variable
from taper_runtime.file import FORMAT_VERSION, container
from taper_runtime.file.reader import load, loads
from taper_runtime.plan.plan import PlanNode
from taper_runtime.plan.validate import validate


def file_of(inputs, outputs, tensors, nodes=(), header=None, **changes):
    plan = {
        "format_version": FORMAT_VERSION, "features": [], "default": "forward", "inputs": inputs,
        "outputs": outputs, "nodes": list(nodes), "tensors": tensors, "input_tree": None,
        "output_tree": None, "sizes": {}, "origins": {}, "states": {}, "metadata": {},
        "entries": {}, **changes,
    }  # fmt: skip
    metadata = {"format": "taper", "plan": json.dumps(plan)}
    return pack(json.dumps({"__metadata__": metadata, **(header or {})}))


def tensor(shape, role, root, offset=0):
    strides = [1] * len(shape)
    return {
        "dtype": "float32", "shape": shape, "role": role, "root": root, "offset": offset,
        "strides": strides,
    }  # fmt: skip


def node(op, inputs, output, **attrs):
    return {"op": op, "inputs": inputs, "outputs": [output], "attrs": attrs, "source": ""}


def joined(count, size=1, sizes=None):
    """As many tensors in the memory of the one that joins them."""
    whole = count if size == 1 else f"{count}*{size}"
    tensors = {
        "x": tensor([size], "input", "x"),
        "all": tensor([whole], "intermediate", "all"),
        "y": tensor([whole], "output", "y"),
    }
    nodes = []
    for index in range(count):
        offset = 4 * index if size == 1 or not index else f"{4 * index}*{size}"
        tensors[f"p{index}"] = tensor([size], "intermediate", "all", offset)
        nodes.append(node("NEG", ["x"], f"p{index}"))
    nodes.append(node("CAT", [f"p{index}" for index in range(count)], "all", axis=0))
    nodes.append(node("NEG", ["all"], "y"))
    return file_of(["x"], ["y"], tensors, nodes, sizes=sizes or {})


def viewed(count):
    """As many views of one tensor, which nobody reads."""
    tensors = {
        "x": tensor([count], "input", "x"),
        "h": tensor([count], "intermediate", "h"),
        "y": tensor([count], "output", "y"),
    }
    nodes = [node("NEG", ["x"], "h")]
    for index in range(count):
        tensors[f"v{index}"] = tensor([1], "intermediate", "h", 4 * index)
        nodes.append(node("SLICE", ["h"], f"v{index}", axis=0, start=index, stop=index + 1))
    return file_of(["x"], ["y"], tensors, [*nodes, node("NEG", ["h"], "y")])


def sampled(count):
    names = [f"x{index}" for index in range(count)]
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    tensors = {name: tensor([0], "input", name) for name in names}
    return file_of(names, [], tensors, header={f"sample/{name}": empty for name in names})


def written_as(*texts):
    """Outputs of these sizes, which nothing produces."""
    tensors = {f"y{i}": tensor([text], "output", f"y{i}") for i, text in enumerate(texts)}
    tensors["x"] = tensor(["n"], "input", "x")
    return file_of(["x"], [f"y{i}" for i in range(len(texts))], tensors, sizes={"n": [1, 9]})


def in_blocks(count):
    """A branch with as many nodes as two branches have, no valid ones."""
    empty = {"inputs": [], "outputs": [], "tensors": {"t": {}}}
    block = {**empty, "nodes": [node("NEG", ["x"], "y")] * ((count - 1) // 2)}
    branch = {**node("IF", ["x"], "y"), "blocks": [block, block]}
    return file_of([], [], {}, [branch])


#: limit -> a file that needs so much of it, how much, the field at fault, what is said without.
BOMBS = {
    "header_bytes": (small_file(), None, "header.length", None),
    "nodes": (in_blocks(9), 9, "plan.nodes", "plan.nodes[0].blocks[0].tensors['t'].dtype"),
    "tensors": (viewed(7), 10, "plan.tensors", None),
    "entries": (
        file_of([], [], {}, entries={f"e{i}": {} for i in range(5)}), 5, "plan.entries",
        "plan.entries['e0'].input_tree",
    ),
    "models": (
        file_of([], [], {}, models={"a": {}, "b": {}}, features=["models"]), 2, "plan.models",
        "plan.default",
    ),
    "expression_chars": (
        written_as("2*n", "2*n", "n + 1"), 9, "plan.tensors['x']", "plan.tensors['y0']",
    ),
    "comparisons": (
        joined(5, "n", {"n": [1, 9]}), 1 + 2 + 3 + 4, "plan.tensors", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_more_than_a_limit_is_refused_and_as_much_is_not(name):
    blob, most, field, then = BOMBS[name]
    if most is None:
        most = int.from_bytes(blob[:8], "little")
    with pytest.raises(PlanFormatError, match=f"Limits.{name} sets this limit") as caught:
        loads(blob, limits=Limits()._replace(**{name: most - 1}))
    assert caught.value.field == field
    if then is None:
        loads(blob, limits=Limits()._replace(**{name: most}))
        return
    with pytest.raises(PlanFormatError) as caught:
        loads(blob, limits=Limits()._replace(**{name: most}))
    assert caught.value.field == then


def steep():
    """Return the text of an expression whose proof tries both arguments of six maxima."""
    a, b = variable("a", 1, 2**20), variable("b", 1, 2**20)
    sums = [
        sum(largest(p * a + q, r * b + s) for p, q, r, s in numbers)
        for numbers in ([(2, 7, 3, 8), (5, 2, 7, 9), (11, 5, 13, 3)],
                        [(3, 5, 2, 4), (7, 3, 5, 8), (13, 2, 11, 6)])
    ]  # fmt: skip
    return str(smallest(*sums))


def test_proofs_about_sizes_have_an_end_and_name_the_expression():
    """A valid expression of 236 characters took 8 s to load once, one of 284 took 36 s."""
    text, sizes = steep(), {"a": [1, 2**20], "b": [1, 2**20]}
    tensors = {"x": tensor(["a"], "input", "x"), "w": tensor(["b"], "input", "w"),
               "y": tensor([text], "output", "y")}  # fmt: skip
    blob = file_of(["x", "w"], ["y"], tensors, sizes=sizes)
    with pytest.raises(PlanFormatError, match="expected a node that produces it"):
        loads(blob)  # the proofs end, and what is wrong is something else
    with pytest.raises(PlanFormatError, match=r"Limits\.proof_steps sets this limit") as caught:
        loads(blob, limits=Limits(proof_steps=100))
    assert caught.value.field == "plan.tensors['y']"
    assert f"at most 100 steps to prove facts about sizes, got more at {text[:100]}" in str(
        caught.value
    )


def test_all_proofs_of_a_load_take_their_steps_from_one_budget():
    """A file full of expressions, each of which is harmless, costs no more than one."""
    n, m = variable("n", 1, 99), variable("m", 1, 90)
    texts = [str(smallest(n // (i + 2), m // (i + 3))) for i in range(80)]
    tensors = {f"y{i}": tensor([text], "output", f"y{i}") for i, text in enumerate(texts)}
    tensors |= {"x": tensor(["n"], "input", "x"), "w": tensor(["m"], "input", "w")}
    names = [f"y{i}" for i in range(len(texts))]
    blob = file_of(["x", "w"], names, tensors, sizes={"m": [1, 90], "n": [1, 99]})
    with pytest.raises(PlanFormatError, match="expected a node that produces it"):
        loads(blob)
    with pytest.raises(PlanFormatError, match=r"Limits\.proof_steps sets this limit") as caught:
        loads(blob, limits=Limits(proof_steps=2000))
    assert caught.value.field not in ("plan.tensors['y0']", "plan.tensors['y79']")


def test_tensors_of_the_header_are_counted():
    with pytest.raises(PlanFormatError, match=r"Limits\.tensors") as caught:
        loads(sampled(9), limits=Limits(tensors=8))
    assert caught.value.field == "header"


def test_a_long_header_is_refused_unread(monkeypatch):
    monkeypatch.setattr(container, "_parse_json", None)
    with pytest.raises(PlanFormatError, match="header_bytes"):
        loads(small_file(), limits=Limits(header_bytes=100))


def test_what_is_refused_says_how_to_allow_it(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    options = SessionOptions()
    options.limits = Limits(nodes=5)
    for model in (path, path.read_bytes()):
        with pytest.raises(PlanFormatError, match=r"at most 5, got 6; Limits\.nodes"):
            InferenceSession(model, options)
    options.limits = Limits(nodes=6)
    assert len(InferenceSession(path, options).plan.nodes) == 6
    with pytest.raises(PlanFormatError, match=r"Limits\.copied_bytes"):
        load(path, load_mode="copy", limits=Limits(copied_bytes=path.stat().st_size - 1))


@pytest.mark.parametrize("limits", [None, 5, (1,) * 7, Limits(nodes=-1), Limits(nodes=1.5)])
def test_limits_that_are_none(limits):
    with pytest.raises(InputError, match="limits"):
        loads(small_file(), limits=limits)
    with pytest.raises(InputError, match="limits"):
        SessionOptions().limits = limits


def calls(blob):
    """Calls, of functions in Python and in C, until a file is loaded.

    Bytes at an address that is not aligned would be copied, with calls of their own.
    """
    with mmap(-1, len(blob)) as aligned:
        aligned.write(blob)
        return calls_of(loads, aligned, limits=UNLIMITED)


def calls_of(function, *args, **kwargs):
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [joined, viewed, sampled])
def test_the_work_grows_as_the_file_does(make):
    one, two = (calls(make(count)) for count in (300, 600))
    assert two < 2.2 * one


def branch(count):
    """A plan of one IF with as many outputs."""
    x = (F, (2,), "input")
    blocks = [
        block(
            [PlanNode(op, (f"{op}x",), (f"{op}{i}",)) for i in range(count)],
            f"{op}x",
            " ".join(f"{op}{i}" for i in range(count)),
            **{f"{op}x": x},
            **{f"{op}{i}": (F, (2,), "output") for i in range(count)},
        )
        for op in ("NEG", "SIN")
    ]
    names = [f"y{i}" for i in range(count)]
    return plan_of(
        PlanNode("IF", ("p", "x"), tuple(names), blocks=tuple(blocks)),
        "p x",
        " ".join(names),
        p=(B, (), "input"),
        x=x,
        **dict.fromkeys(names, (F, (2,), "output")),
    )


def test_the_outputs_of_one_node_are_not_compared_in_pairs():
    one, two = (calls_of(validate, branch(count)) for count in (200, 400))
    assert two < 2.2 * one


def test_tensors_of_one_root_are_told_apart_among_many():
    """Beyond the number from which all are compared at once."""
    file = json.loads(joined(80)[8:])
    plan = json.loads(file["__metadata__"]["plan"])
    plan["tensors"]["p70"]["offset"] = 4 * 20
    file["__metadata__"]["plan"] = json.dumps(plan)
    with pytest.raises(PlanFormatError, match="NEG overwrites 'p20', but node 80 reads it"):
        loads(pack(json.dumps(file)))
