"""Calls as the module takes them: nested arguments in, nested results out."""

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taper_runtime
from plan_files import small_plan
from taper_runtime import InferenceSession, InputError
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.trees import leaves


def negating_plan(arguments, results=None, *, dtypes=None):
    """A plan that negates ``x0``, ``x1``... as ``y0``, ``y1``...: vectors of 2, or numbers.

    ``arguments`` is the tree of (args, kwargs), ``results`` that of the results.
    """
    names = [leaf[1] for leaf in leaves(arguments) if leaf[0] != "value"]
    numbers = {leaf[1] for leaf in leaves(arguments) if leaf[0] == "number"}
    shapes = {name: () if name in numbers else (2,) for name in names}
    ends = [(name, "input") for name in names]
    ends += [(name.replace("x", "y"), "output") for name in names]
    specs = {
        name: TensorSpec(
            name, (dtypes or {}).get(name, "float32"), shapes[name.replace("y", "x")], role
        )
        for name, role in ends
    }
    return Plan(
        nodes=tuple(PlanNode("NEG", (n,), (n.replace("x", "y"),)) for n in names),
        tensors=specs,
        placements={n: Placement(n, 0, (1,) * len(spec.shape)) for n, spec in specs.items()},
        inputs=tuple(names),
        outputs=tuple(n.replace("x", "y") for n in names),
        constants={},
        samples={n: np.full(shapes[n], i, specs[n].dtype) for i, n in enumerate(names)},
        input_tree=arguments,
        output_tree=results,
    )


def arguments(*args, **kwargs):
    return ["tuple", [["tuple", list(args)], ["dict", [[k, v] for k, v in kwargs.items()]]]]


KEYS = st.one_of(st.text("abc", min_size=1, max_size=2), st.integers(0, 3))
FIELDS = st.lists(st.sampled_from(["head", "tail", "n", "Z"]), min_size=1, max_size=3, unique=True)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=3))


def nested(children):
    return st.one_of(
        st.lists(children, max_size=3).map(lambda c: ["list", c]),
        st.lists(children, max_size=3).map(lambda c: ["tuple", c]),
        st.dictionaries(KEYS, children, max_size=3).map(
            lambda d: ["dict", [[key, child] for key, child in d.items()]]
        ),
        st.tuples(FIELDS, st.lists(children, min_size=3, max_size=3)).map(
            lambda p: [
                "namedtuple",
                ["Pair", [[f, c] for f, c in zip(p[0], p[1], strict=False)]],
            ]
        ),
    )


TREES = st.recursive(
    st.one_of(st.just(["tensor", ""]), VALUES.map(lambda v: ["value", v])), nested, max_leaves=8
)


def numbered(tree, count=None, prefix="x"):
    """Give the tensors of a tree their names."""
    count = iter(range(1000)) if count is None else count
    kind, content = tree
    if kind == "tensor":
        return [kind, f"{prefix}{next(count)}"]
    if kind in ("list", "tuple"):
        return [kind, [numbered(child, count, prefix) for child in content]]
    if kind == "dict":
        return [kind, [[key, numbered(child, count, prefix)] for key, child in content]]
    if kind == "namedtuple":
        fields = [[field, numbered(child, count, prefix)] for field, child in content[1]]
        return [kind, [content[0], fields]]
    return tree


def built(tree, leaf):
    """What a user would pass or get, written without the code under test."""
    kind, content = tree
    match kind:
        case "tensor":
            return leaf(content)
        case "value":
            return content
        case "list":
            return [built(child, leaf) for child in content]
        case "tuple":
            return tuple(built(child, leaf) for child in content)
        case "dict":
            return {key: built(child, leaf) for key, child in content}
        case _:
            cls = namedtuple(content[0], [field for field, _ in content[1]])
            return cls(*[built(child, leaf) for _, child in content[1]])


def assert_same(got, expected):
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(got, expected, strict=True)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, item in expected.items():
            assert_same(got[key], item)
    elif isinstance(expected, list | tuple):
        fields = getattr(expected, "_fields", None)
        assert getattr(got, "_fields", None) == fields
        assert fields is None or type(got).__name__ == type(expected).__name__
        assert isinstance(got, list) == isinstance(expected, list)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert got == expected or (got != got and expected != expected)


@settings(max_examples=80)
@given(tree=TREES)
def test_every_structure_goes_in_and_comes_out(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("calls") / "m.taper"
    plan = negating_plan(arguments(numbered(tree)), numbered(tree, prefix="y"))
    plan.save(path)
    session = InferenceSession(path)
    number = iter(range(1000))
    value = built(numbered(tree), lambda name: np.full(2, next(number), np.float32))
    number = iter(range(1000))
    expected = built(numbered(tree), lambda name: -np.full(2, next(number), np.float32))
    assert_same(session(value), expected)
    args, kwargs = session.load_sample_inputs()
    assert_same((args, kwargs), ((value,), {}))
    assert_same(session(*args, **kwargs), expected)


def spoiled(value, data):
    """Return a value with one part replaced by something that fits nowhere, and the path to it."""
    if not isinstance(value, dict | list | tuple) or not value or data.draw(st.booleans()):
        return Ellipsis, ""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    key, part = data.draw(st.sampled_from(list(parts)))
    part, path = spoiled(part, data)
    if isinstance(value, dict):
        return value | {key: part}, f"[{key!r}]{path}"
    items = [*value[:key], part, *value[key + 1 :]]
    if isinstance(value, list):
        return items, f"[{key}]{path}"
    fields = getattr(value, "_fields", None)
    if fields is None:
        return tuple(items), f"[{key}]{path}"
    return type(value)(*items), f".{fields[key]}{path}"


@settings(max_examples=80)
@given(tree=TREES, data=st.data())
def test_a_wrong_structure_is_named_by_its_path(tree, data):
    tree = numbered(tree)
    session = InferenceSession(negating_plan(arguments(tree), ["value", None]))
    value, path = spoiled(built(tree, lambda name: ONE), data)
    with pytest.raises(InputError) as error:
        session(value)
    assert str(error.value).startswith(f"args[0]{path}: expected ")


Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(scope="module")
def session():
    tree = arguments(
        [
            "dict",
            [
                ["ids", ["tensor", "x0"]],
                ["mask", ["list", [["tensor", "x1"], ["value", None], ["tensor", "x2"]]]],
            ],
        ],
        ["namedtuple", ["Pair", [["first", ["tensor", "x3"]], ["second", ["value", 2.0]]]]],
        scale=["number", "x4"],
        mode=["value", "mean"],
    )
    return InferenceSession(
        negating_plan(tree, ["tuple", [["number", "y4"], ["tensor", "y0"]]], dtypes=INTS)
    )


INTS = {"x4": "int64", "y4": "int64"}
ONE = np.ones(2, np.float32)


def batch(**changes):
    return {"ids": ONE, "mask": [ONE, None, ONE]} | changes


def test_numbers_go_in_and_come_out_as_pythons(session):
    result = session(batch(), Pair(ONE, 2.0), scale=3, mode="mean")
    assert type(result[0]) is int
    assert result[0] == -3
    assert session(batch(), Pair(ONE, 2.0), scale=np.int32(4), mode="mean")[0] == -4
    assert session(batch(), Pair(ONE, 2.0), scale=np.array(5), mode="mean")[0] == -5
    assert session(batch(), Pair(ONE, np.float32(2)), scale=3, mode="mean")[0] == -3


def test_any_mapping_is_a_dict_and_its_order_is_free(session):
    given = OrderedDict([("mask", [ONE, None, ONE]), ("ids", ONE)])
    assert session(given, Pair(ONE, 2.0), mode="mean", scale=1)[0] == -1


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"args: expected a tuple of 2, got 0"),
        ((batch(),), {}, r"args: expected a tuple of 2, got 1"),
        ((batch(), Pair(ONE, 2.0)), {"scale": 1}, r"kwargs: .*missing keys \['mode'\]"),
        (
            (batch(), Pair(ONE, 2.0)),
            {"scale": 1, "mode": "mean", "x": 1},
            r"kwargs: expected the keys \['scale', 'mode'\], got unknown keys \['x'\]",
        ),
        (([ONE], Pair(ONE, 2.0)), {}, r"args\[0\]: expected a dict with the keys .*, got list"),
        ((batch(extra=1), Pair(ONE, 2.0)), {}, r"args\[0\]: .*unknown keys \['extra'\]"),
        ((batch(mask=[ONE]), None), {}, r"args\[0\]\[.mask.\]: expected a list of 3, got 1"),
        ((batch(mask=(ONE, None, ONE)), None), {}, r"a list of 3, got a tuple of 3"),
        ((batch(mask=[ONE, None, 7]), None), {}, r"mask.\]\[2\]: expected a numpy array, got int"),
        (
            (batch(mask=[ONE, 0, ONE]), None),
            {},
            r"mask.\]\[1\]: expected None, the value at export",
        ),
        ((batch(), (ONE, 2.0)), {}, r"args\[1\]: .*Pair\(first, second\), got a tuple of 2"),
        (
            (batch(), Pair(ONE, 2)),
            {},
            r"args\[1\]\.second: expected 2\.0, the value at export, got 2",
        ),
        (
            (batch(), Pair(ONE, np.float32(3))),
            {},
            r"args\[1\]\.second: expected 2\.0, the value at export, got .*3\.0",
        ),
        (
            (batch(), Pair(ONE, 2.0)),
            {"scale": 1.5, "mode": "mean"},
            r"kwargs\['scale'\]: expected a number of int64, got 1\.5",
        ),
        (
            (batch(), Pair(ONE, 2.0)),
            {"scale": True, "mode": "mean"},
            r"kwargs\['scale'\]: expected a number of int64, got True",
        ),
        (
            (batch(), Pair(ONE, 2.0)),
            {"scale": 2**70, "mode": "mean"},
            r"kwargs\['scale'\]: expected a number of int64",
        ),
        (
            (batch(), Pair(ONE, 2.0)),
            {"scale": 1, "mode": "sum" * 100},
            r"kwargs\['mode'\]: expected 'mean', the value at export, got 'sumsum.*\.\.\.$",
        ),
    ],
)
def test_mistakes_are_named_by_their_path(session, args, kwargs, message):
    with pytest.raises(InputError, match=message):
        session(*args, **kwargs)


def test_the_last_positional_arguments_may_be_named():
    tree = arguments(["tensor", "x0"], ["tensor", "x1"], ["tensor", "x2"], k=["tensor", "x3"])
    results = ["tuple", [["tensor", f"y{i}"] for i in range(4)]]
    session = InferenceSession(negating_plan(tree, results))
    given = [np.full(2, i, np.float32) for i in range(4)]
    x0, x1, x2, k = given
    for args, kwargs in (
        ((x0, x1), {"x2": x2, "k": k}),
        ((x0,), {"k": k, "x2": x2, "x1": x1}),
        ((), {"x2": x2, "k": k, "x1": x1, "x0": x0}),
    ):
        np.testing.assert_array_equal(session(*args, **kwargs), np.negative(given))
    for args, kwargs in (
        ((x0,), {"x2": x2, "k": k}),
        ((x0, x1, x2), {"k": k, "x2": x2}),
        ((x0, x1, x2, k), {}),
        ((x0, x1), {"x2": x2, "k": k, "x4": x0}),
    ):
        with pytest.raises(InputError, match=r"; write session\(x0, x1, x2, k=x3\)$"):
            session(*args, **kwargs)


def test_a_missing_argument_shows_the_call(session):
    with pytest.raises(InputError, match="args: expected a tuple of 2, got 1; write") as caught:
        session(batch())
    assert str(caught.value).endswith(
        "session({'ids': x0, 'mask': [x1, None, x2]}, Pair(first=x3, second=2.0), scale=x4, "
        "mode='mean')"
    )


def test_what_nothing_depends_on_is_named_and_checked():
    plan = negating_plan(arguments(["tensor", "x0"], ["tensor", "x1"]), ["tensor", "y0"])
    plan = plan._replace(
        nodes=plan.nodes[:1],
        outputs=("y0",),
        tensors={n: spec for n, spec in plan.tensors.items() if n != "y1"},
        placements={n: place for n, place in plan.placements.items() if n != "y1"},
    )
    session = InferenceSession(plan)
    assert [argument.is_read for argument in session.get_inputs()] == [True, False]
    np.testing.assert_array_equal(session(ONE, ONE), -ONE)
    for other in (None, "text", ONE[:0], ONE.astype(np.int64), [1, 2]):
        with pytest.raises(InputError):
            session(ONE, other)


def test_a_wrong_array_is_named_by_its_path():
    items = ["list", [["tensor", "x0"], ["dict", [["mask", ["tensor", "x1"]]]]]]
    tree = arguments(
        items,
        ["namedtuple", ["Pair", [["a", ["tensor", "x2"]], ["b", ["value", 3]]]]],
        k=["tensor", "x3"],
    )
    session = InferenceSession(negating_plan(tree, ["tensor", "y0"]))
    pair = namedtuple("Pair", ["a", "b"])
    good = np.zeros(2, np.float32)
    for wrong, words in ((np.zeros(2), "expected dtype float32"), (np.zeros(3, np.float32), "3")):
        for place, path in enumerate(
            ("args[0][0]", "args[0][1]['mask']", "args[1].a", "kwargs['k']")
        ):
            a, b, c, d = (wrong if i == place else good for i in range(4))
            with pytest.raises(InputError) as caught:
                session([a, {"mask": b}], pair(c, 3), k=d)
            assert str(caught.value).startswith(f"{path}: input 'x{place}': "), caught.value
            assert words in str(caught.value)


def test_a_plan_without_tensors_runs():
    session = InferenceSession(negating_plan(arguments(["value", 1]), ["value", "done"]))
    assert session.run(None, {}) == []
    assert session(1) == "done"


def test_a_plan_that_says_nothing_of_its_arguments():
    session = InferenceSession(small_plan()._replace(input_tree=None))
    with pytest.raises(InputError, match="does not record how arguments and results are nested"):
        session(np.ones((2, 4), np.float32))
    session = InferenceSession(small_plan()._replace(samples={}))
    with pytest.raises(InputError, match="the plan has no sample of input 'x'"):
        session.load_sample_inputs()


def test_samples_are_copies(tmp_path):
    small_plan().save(tmp_path / "m.taper")
    session = InferenceSession(tmp_path / "m.taper")
    args, kwargs = session.load_sample_inputs()
    args[0][...] = 7
    assert session.load_sample_inputs()[0][0].max() == 1
    assert kwargs == {"scale": 0.5}


def test_named_tuples_of_one_kind_are_of_one_class():
    tree = ["namedtuple", ["Out", [["first", ["tensor", "y0"]]]]]
    session = InferenceSession(negating_plan(arguments(["tensor", "x0"]), tree))
    first, second = session(ONE), session(ONE)
    assert type(first) is type(second)
    assert first._fields == ("first",)


def test_options_of_a_run_go_with_a_call():
    options = taper_runtime.RunOptions()
    options.terminate = True
    session = InferenceSession(small_plan())
    with pytest.raises(taper_runtime.TaperError):
        session.call((np.ones((2, 4), np.float32),), {"scale": 0.5}, options)


def test_a_numpy_scalar_is_an_array_without_dims():
    """What a reduction of numpy gives is an argument; its dtype is checked."""
    scalar = TensorSpec("x0", "float32", (), "input")
    plan = negating_plan(arguments(["tensor", "x0"]), ["tensor", "y0"])
    plan = plan._replace(
        tensors={"x0": scalar, "y0": TensorSpec("y0", "float32", (), "output")},
        placements={name: Placement(name, 0, ()) for name in ("x0", "y0")},
        samples={},
    )
    for executor in ("compiled", "interpreted"):
        options = taper_runtime.SessionOptions()
        options.executor = executor
        session = InferenceSession(plan, options)
        total = np.ones(3, np.float32).sum()
        assert session(total) == -3
        assert session.run(None, {"x0": total})[0] == -3
        for call in (session, lambda value, run=session.run: run(None, {"x0": value})):
            with pytest.raises(InputError, match="expected dtype float32, got float64"):
                call(np.float64(2))
