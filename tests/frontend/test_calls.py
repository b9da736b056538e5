"""Sessions called as the module is called, beside the module."""

import re
import threading
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.utils._pytree import tree_map_only
from transformers.utils import ModelOutput

import taper_frontend
from taper_runtime import InferenceSession, InputError

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Scores(ModelOutput):
    """As the models of transformers return them."""

    best: torch.Tensor | None = None
    rest: tuple[torch.Tensor, ...] | None = None


class Nested(torch.nn.Module):
    """Every container in, every container out."""

    def forward(self, batch, point, *, scale, flags=(), mode="sum"):
        x, y = batch["ids"] * scale, point.y
        total = (x + y).sum() if mode == "sum" else x
        return {
            "point": Point(x, [y, None, "as exported"]),
            "total": (total, {1: x * 2}),
            "scores": Scores(best=x, rest=(y, x)),
        }


def numpy_of(tree):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.numpy(), tree)


@pytest.fixture(scope="module")
def arguments():
    torch.manual_seed(0)
    batch = {"ids": torch.randn(2, 3), "rest": [torch.randn(1)]}
    return (batch, Point(torch.randn(3), torch.randn(3))), {"scale": torch.randn(1)}


@pytest.fixture(scope="module")
def path(arguments, tmp_path_factory):
    path = tmp_path_factory.mktemp("nested") / "m.taper"
    args, kwargs = arguments
    taper_frontend.export(Nested().eval(), args, kwargs).save(path)
    return path


def test_a_session_is_called_as_the_module(arguments, path):
    args, kwargs = arguments
    session = InferenceSession(path)
    expected = numpy_of(Nested()(*args, **kwargs))
    result = session(*numpy_of(args), **numpy_of(kwargs))
    assert list(result) == ["point", "total", "scores"]
    assert result["point"]._fields == ("x", "y")
    assert type(result["point"]).__name__ == "Point"
    np.testing.assert_allclose(result["point"].x, expected["point"].x)
    assert result["point"].y[1:] == [None, "as exported"]
    assert isinstance(result["total"], tuple)
    np.testing.assert_allclose(result["total"][0], expected["total"][0], rtol=1e-5)
    np.testing.assert_allclose(result["total"][1][1], expected["total"][1][1])
    assert list(result["scores"]) == ["best", "rest"]
    np.testing.assert_allclose(result["scores"]["rest"][0], expected["scores"]["rest"][0])


def test_samples_are_the_arguments_of_the_export(arguments, path):
    session = InferenceSession(path)
    args, kwargs = session.load_sample_inputs()
    assert isinstance(args[1], tuple)
    assert args[1]._fields == ("x", "y")
    np.testing.assert_array_equal(args[0]["ids"], arguments[0][0]["ids"].numpy())
    np.testing.assert_array_equal(kwargs["scale"], arguments[1]["scale"].numpy())
    np.testing.assert_array_equal(
        session(*args, **kwargs)["scores"]["best"],
        session(*numpy_of(arguments[0]), **numpy_of(arguments[1]))["scores"]["best"],
    )


def test_what_the_module_does_not_read_is_checked_too(arguments, path):
    args, kwargs = map(numpy_of, arguments)
    session = InferenceSession(path)
    with pytest.raises(
        InputError, match=r"args\[0\]\['rest'\]\[0\]: expected a numpy array, got N"
    ):
        session({**args[0], "rest": [None]}, args[1], **kwargs)
    with pytest.raises(InputError, match=r"args\[0\]\['rest'\]: expected a list of 1, got 0"):
        session({**args[0], "rest": []}, args[1], **kwargs)
    with pytest.raises(InputError, match=r"'point\.x': expected shape \(3,\), got \(4,\)"):
        session(args[0], Point(np.zeros(4, np.float32), args[1].y), **kwargs)
    read = {item.name: item.is_read for item in session.get_inputs()}
    assert [name for name, is_read in read.items() if not is_read] == ["batch.rest.0", "point.x"]
    assert "input   point.x: float32[3], not read" in str(session.plan)


class Table(torch.nn.Module):
    """The first rows of a table of positions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(512.0).reshape(64, 8))

    def forward(self, x):
        return self.table[: x.size(1)]


def of(function):
    """A module of a function."""

    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Module()


def square(*sizes):
    return torch.ones(sizes)


#: Modules that read no element of their last argument, and that argument of another size.
BY_SIZE = {
    "positions": (Table(), [square(2, 10, 8)], square(2, 3, 8)),
    "resize": (
        of(lambda x, like: F.interpolate(x, size=like.shape[-2:])),
        [square(1, 1, 4, 4), square(1, 1, 9, 7)],
        square(1, 1, 5, 5),
    ),
    "zeros": (
        of(lambda x, y: torch.zeros_like(y)[:, :1] + x),
        [square(2, 3), square(2, 5)],
        square(1, 5),
    ),
    "linspace": (of(lambda x: torch.linspace(0, 1, x.shape[0])), [square(7)], square(5)),
    "window": (of(lambda x: torch.hann_window(x.shape[0])), [square(8)], square(6)),
    "grid": (
        of(lambda theta, x: F.affine_grid(theta, [1, 1, len(x), len(x)], False)),
        [square(1, 2, 3), square(4)],
        square(6),
    ),
    "dtype": (
        of(lambda x, y: x * 2 if y.dtype == torch.float32 else x),
        [square(2), square(2)],
        square(2).int(),
    ),
    "ndim": (of(lambda x, y: x * y.ndim), [square(2), square(2)], square(2, 2)),
}


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("case", BY_SIZE)
def test_an_argument_is_checked_whose_elements_are_not_read(case, varying):
    module, example, other = BY_SIZE[case]
    shapes = tuple(dict.fromkeys(range(x.dim()), Dim.AUTO) for x in example) if varying else None
    if shapes and case != "positions":
        shapes = (shapes,)  # of *args
    plan = taper_frontend.export(module, tuple(example), dynamic_shapes=shapes)
    session = InferenceSession(plan)
    args = [x.numpy() for x in [*example[:-1], other]]
    feed = dict(zip(plan.inputs, args, strict=True))
    try:
        expected = session.run(None, feed)[0]
    except InputError as error:
        assert not varying or case in ("linspace", "window", "grid", "dtype", "ndim", "zeros")
        refused = str(error)
        with pytest.raises(InputError, match=re.escape(refused)):
            session(*args)
        told = []
        done = threading.Event()

        def callback(outputs, data, text):
            told.append(text)
            done.set()

        session.run_async(None, feed, callback, None)
        assert done.wait(60)
        assert refused in told[0]
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(plan.outputs[0])
        with pytest.raises(InputError, match=re.escape(refused)):
            session.run_with_iobinding(binding)
    else:
        assert varying
        np.testing.assert_array_equal(session(*args), expected)
        want = module(*example[:-1], other).numpy()
        np.testing.assert_allclose(expected, want, rtol=1e-6)


class Mode(torch.nn.Module):
    """A value that becomes part of the plan."""

    def forward(self, x, mode="double", times=2.0):
        return x * times if mode == "double" else x


@pytest.mark.filterwarnings("ignore:2 arguments are not a tensor")
def test_a_value_of_the_plan_is_held_to():
    plan = taper_frontend.export(Mode(), (torch.ones(2), "double"), {"times": 3.0})
    session = InferenceSession(plan)
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(session(x, "double", times=3.0), 3 * x)
    with pytest.raises(InputError, match=r"args\[1\]: expected 'double', .* at export, got 'half'"):
        session(x, "half", times=3.0)
    with pytest.raises(InputError, match=r"kwargs\['times'\]: expected 3.0, .* at export, got 4.0"):
        session(x, "double", times=4.0)


def test_complex_numbers_and_bfloat16_go_through():
    class Both(torch.nn.Module):
        def forward(self, z, h):
            return [z * 2, h + h]

    z = torch.randn(3, dtype=torch.complex64)
    h = torch.randn(3).bfloat16()
    session = InferenceSession(taper_frontend.export(Both(), (z, h)))
    args, kwargs = session.load_sample_inputs()
    assert args[0].dtype == np.complex64
    doubled, added = session(*args, **kwargs)
    np.testing.assert_allclose(doubled, (z * 2).numpy())
    np.testing.assert_array_equal(added, (h + h).float().numpy())
