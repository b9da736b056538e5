"""Sessions called as the module is called, beside the module."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
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


def test_what_the_module_does_not_read_may_be_anything(arguments, path):
    args, kwargs = map(numpy_of, arguments)
    session = InferenceSession(path)
    expected = session(*args, **kwargs)["total"][0]
    unread = {**args[0], "rest": [None]}, Point("nothing", args[1].y)
    np.testing.assert_array_equal(session(*unread, **kwargs)["total"][0], expected)
    with pytest.raises(InputError, match=r"args\[0\]\['rest'\]: expected a list of 1, got 0"):
        session({**args[0], "rest": []}, args[1], **kwargs)


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
    with pytest.raises(InputError, match=r"args\[1\]: expected 'double', as it was .*, got 'half'"):
        session(x, "half", times=3.0)
    with pytest.raises(InputError, match=r"kwargs\['times'\]: expected 3.0, as it was .*, got 4.0"):
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
    np.testing.assert_array_equal(added, (h + h).view(torch.uint16).numpy())
