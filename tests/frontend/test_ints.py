"""Ints that vary from run to run, among the arguments and among the results."""

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.export.graph_signature import CustomObjArgument, InputKind, InputSpec

import taper_frontend
import taper_runtime
from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.capture.tensors import to_numpy
from taper_frontend.errors import ExportError, ExportWarning, UnsupportedNodesError
from taper_frontend.lowering import lower
from taper_runtime import InferenceSession, InputError


class Cut(torch.nn.Module):
    """An int that is a size, and one that is only computed with."""

    def forward(self, x, count, step):
        rows = x[:, :count] * step
        return rows, count + 1, {"steps": [step - 10, step * step], "rows": x.shape[0]}


X = torch.arange(24.0).reshape(3, 8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("ints") / "m.taper"
    shapes = ({0: "rows"}, "count", "step")
    taper_frontend.export(Cut(), (X, 4, 3), dynamic_shapes=shapes).save(path)
    return path


def check(got, want):
    assert type(got) is type(want) if not isinstance(want, torch.Tensor) else True
    if isinstance(want, torch.Tensor):
        np.testing.assert_allclose(got, want.numpy())
    elif isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            check(got[key], want[key])
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            check(*pair)
    else:
        assert got == want


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_ints_go_in_and_come_out(executor, path):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    session = InferenceSession(path, options)
    for rows, count, step in [(3, 4, 3), (3, 8, -2), (5, 1, 0), (1, 0, 7), (3, 4, 3)]:
        x = torch.randn(rows, 8)
        check(session(x.numpy(), count, step), Cut()(x, count, step))


def test_a_run_takes_and_gives_them_as_scalars(path):
    session = InferenceSession(path)
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()[1:]] == [
        ("count", "tensor(int64)", []),
        ("step", "tensor(int64)", []),
    ]
    outputs = session.run(None, {"x": X.numpy(), "count": np.array(2), "step": np.array(5)})
    assert [array.tolist() for array in outputs[1:]] == [3, -5, 25, 3]


def test_only_the_size_is_one(path):
    plan = taper_runtime.load(path)
    assert plan.origins == {"count": ("count", 0)}
    assert plan.sizes["count"] == (0, 8)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (9, r"input 'count' \(count\): expected 0 to 8, got 9"),
        (-1, r"input 'count' \(count\): expected 0 to 8, got -1"),
        (2**40, r"input 'count' \(count\): expected 0 to 8, got 1099511627776"),
    ],
)
def test_a_size_out_of_its_range_is_named(count, message, path):
    session = InferenceSession(path)
    with pytest.raises(InputError, match=message):
        session(X.numpy(), count, 1)
    check(session(X.numpy(), 2, 1), Cut()(X, 2, 1))


class Lists(torch.nn.Module):
    """Lists of tensors and of ints."""

    def forward(self, tensors, factors):
        return [x * n for x, n in zip(tensors, factors, strict=True)], [n + 1 for n in factors]


def test_lists_of_tensors_and_of_ints():
    shapes = ([None, None], ["first", "second"])
    args = ([X, X + 1], [2, 3])
    session = InferenceSession(taper_frontend.export(Lists(), args, dynamic_shapes=shapes))
    for factors in ([2, 3], [0, -4]):
        check(session([X.numpy(), (X + 1).numpy()], factors), Lists()(args[0], factors))
    with pytest.raises(InputError, match=r"args\[1\]\[1\]: expected a number of int64, got 1\.5"):
        session([X.numpy(), X.numpy()], [1, 1.5])
    with pytest.raises(InputError, match=r"args\[0\]: expected a list of 2, got 1"):
        session([X.numpy()], [1, 2])


class Make(torch.nn.Module):
    """Shapes that an int alone decides."""

    def forward(self, count):
        return torch.arange(count) * 2, torch.ones(count, 3)


def test_an_int_alone_decides_the_shapes():
    with pytest.warns(
        ExportWarning, match="the int 'count' was to vary from 0, but varies only from 2"
    ):
        plan = taper_frontend.export(Make(), (5,), dynamic_shapes=(Dim.DYNAMIC,))
    session = InferenceSession(plan)
    assert plan.sizes["count"] == (2, 2**31 - 1)
    for count in (2, 5, 64):
        check(session(count), Make()(count))
    with pytest.raises(InputError, match="expected at least 2, got 1"):
        session(1)


def test_a_size_is_returned_as_int():
    class Sizes(torch.nn.Module):
        def forward(self, x):
            return x * 2, x.shape[0], x.shape[0] * 2 + 1, x.shape[1]

    plan = taper_frontend.export(Sizes(), (X,), dynamic_shapes=({0: "rows"},))
    session = InferenceSession(plan)
    assert session(np.ones((6, 8), np.float32))[1:] == (6, 13, 8)


def test_numbers_that_values_decide():
    class Peak(torch.nn.Module):
        def forward(self, x):
            return x.max().item(), x.argmax().item()

    session = InferenceSession(taper_frontend.export(Peak(), (X,)))
    peak, place = session(X.numpy())
    assert type(peak) is float
    assert type(place) is int
    assert (peak, place) == (23.0, 23)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int32", "bool"]
)
def test_numbers_of_any_dtype(dtype):
    class Number(torch.nn.Module):
        def forward(self, x, y):
            return x.item(), y * x.item()

    x, y = torch.tensor([[2.3]]).to(getattr(torch, dtype)), torch.tensor([1.0, -3.0])
    session = InferenceSession(taper_frontend.export(Number(), (x, y)))
    for given in (x,) if dtype in ("uint8", "bool") else (x, -x):
        number, product = session(to_numpy(given), y.numpy())
        wanted, theirs = Number()(given, y)
        assert type(number) is type(wanted)
        assert number == wanted
        np.testing.assert_array_equal(product, theirs)


def test_names_of_inputs_count_ints():
    plan = taper_frontend.export(
        Cut(),
        (X, 4, 3),
        input_names=["image", "columns", "factor"],
        dynamic_shapes=(None, "count", "step"),
    )
    assert plan.inputs == ("image", "columns", "factor")
    assert plan.origins == {"count": ("columns", 0)}


@pytest.mark.filterwarnings("ignore:1 argument is not a tensor")
def test_an_int_before_a_tensor_that_varies():
    class Late(torch.nn.Module):
        def forward(self, count, flag, x):
            return x * count if flag else x

    plan = taper_frontend.export(
        Late(), (2, True, X), dynamic_shapes=("count", None, {0: Dim("rows", max=64)})
    )
    assert plan.sizes["rows"] == (1, 64) or plan.sizes["rows"] == (0, 64)
    check(InferenceSession(plan)(3, True, X[:2].numpy()), X[:2] * 3)


def test_an_int_that_the_model_fixes_is_an_error():
    class Fixed(torch.nn.Module):
        def forward(self, x, count):
            return x * 2 if count == 3 else x

    with pytest.raises(ExportError):
        taper_frontend.export(Fixed(), (X, 3), dynamic_shapes=(None, "count"))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("no name", "expected a name of letters"),
        ({0: "a"}, "expected a name of letters"),
        (Dim("count", max=8), "expected a name of letters, .*, got Dim"),
    ],
)
def test_what_an_int_cannot_be_told(wanted, message):
    with pytest.raises(ExportError, match=message):
        taper_frontend.export(Make(), (5,), dynamic_shapes=(wanted,))


def test_what_is_neither_tensor_nor_int_cannot_vary():
    class Scaled(torch.nn.Module):
        def forward(self, x, factor):
            return x * factor

    with pytest.raises(ExportError, match="neither a tensor nor an int"):
        taper_frontend.export(Scaled(), (X, 1.5), dynamic_shapes=(None, "factor"))


def test_an_object_of_a_class_is_refused_by_its_name():
    """No op of a plan takes an object, so that a plan has no use for one."""
    program = capture(Lists(), ([X], [2]))
    specs = program.graph_signature.input_specs
    argument = CustomObjArgument(name=specs[0].arg.name, class_fqn="my::Vocabulary")
    specs[0] = InputSpec(InputKind.CUSTOM_OBJ, argument, target="vocabulary")
    with pytest.raises(
        UnsupportedNodesError, match=r"constant 'vocabulary'.* of class my::Vocabulary"
    ):
        lower(read_program(program))


def test_an_int_that_must_be_a_size_is_refused():
    class Same(torch.nn.Module):
        def forward(self, x, rows):
            return x + torch.ones(rows, 8)

    with pytest.raises((UnsupportedNodesError, ExportError)):
        taper_frontend.export(Same(), (X, 3), dynamic_shapes=({0: "rows"}, "count"))
