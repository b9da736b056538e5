"""Test the temporary file of a plan's constants."""

import mmap
import tempfile

import numpy as np
import pytest

from graph_checks import Builder, floats
from taper_frontend.compiler.graph.constants import Parameter, derived, literal, transposed
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.planning.spool import ConstantValues, spool
from taper_frontend.errors import ExportError
from taper_runtime.ops.opdef import TensorType


def base_of(array: np.ndarray) -> object:
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def test_values_lie_in_a_mapped_file_on_boundaries():
    arrays = {
        "scalar": np.array(7, np.int64),
        "odd": np.arange(5, dtype=np.int8),
        "none": np.zeros((0, 3), np.float32),
        "bits": np.arange(9, dtype=np.uint16),
        "w": floats(17, 3),
    }
    constants = {
        name: literal(array, "bfloat16" if name == "bits" else None)
        for name, array in arrays.items()
    }
    constants["negative"] = derived("NEG", [constants["w"]])
    arrays["negative"] = -arrays["w"]
    found = spool(constants)
    assert list(found) == list(constants)
    for name, want in arrays.items():
        got = found[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)
        assert not got.flags.writeable
        assert got.size == 0 or got.ctypes.data % 64 == 0
        owner = base_of(got)
        assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)


def test_empty_constants_need_no_file():
    (found,) = spool({"none": literal(np.zeros((0, 3), np.float32))}).values()
    assert found.shape == (0, 3)
    assert spool({}) == {}


def test_a_plan_keeps_nothing_of_what_it_was_made_from():
    b = Builder()
    weight = floats(4, 4)
    graph = b.done(b.op("ADD", b.input("x", 4, 4), b.constant(weight, "w")))
    plan = make_plan(graph)
    before = weight.copy()
    weight[:] = 0
    np.testing.assert_array_equal(plan.constants["w"], before)


def test_a_full_disk_is_told_with_what_is_needed(monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def tell(self):
            return 0

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Full())
    with pytest.raises(ExportError, match=r"room for 64 bytes .*No space left.*TMPDIR"):
        spool({"w": literal(floats(3))})


def test_values_are_evaluated_once_for_several_plans():
    reads = []

    def read():
        reads.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3)

    weight = Parameter(TensorType("float32", (2, 3)), ("w",), read)
    values = ConstantValues()
    first = values.of({"a": weight, "b": transposed(weight)})
    second = values.of({"c": transposed(weight), "d": weight})
    assert second["c"] is first["b"]
    assert second["d"] is first["a"]
    assert np.array_equal(second["c"], read().T)
    assert len(reads) == 3  # by "a", by "b", and here


def test_values_of_literals_that_are_gone_are_not_mistaken_for_others():
    """A digest of a literal has its address, which a later array may have."""
    values = ConstantValues()
    for number in range(50):
        made = values.of({"a": literal(np.full((64, 64), number, np.float32))})
        assert made["a"].min() == made["a"].max() == number
