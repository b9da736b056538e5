"""Files in large pages, and weights that sessions copy into them."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime import InferenceSession, InputError, SessionOptions
from taper_runtime.file.mapping import mapped
from taper_runtime.file.replacing import BLOCK_BYTES, in_blocks, replace_file
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec


def opened(plan, memory):
    options = SessionOptions()
    options.weights_memory = memory
    return InferenceSession(plan, options)


def product(k, n):
    """A plan of one product, and its input."""
    rng = np.random.default_rng(0)
    weight = np.asarray(rng.standard_normal((k, n)), np.float32)
    types = {"x": ((1, k), "input"), "w": ((k, n), "constant"), "y": ((1, n), "output")}
    tensors = {name: TensorSpec(name, "float32", *of) for name, of in types.items()}
    places = {name: Placement(name, 0, (tensors[name].shape[1], 1)) for name in types}
    nodes = [PlanNode("MATMUL", ("x", "w"), ("y",))]
    plan = Plan(nodes, tensors, places, ("x",), ("y",), {"w": weight})
    return plan, {"x": np.asarray(rng.standard_normal((1, k)), np.float32)}


def test_weights_are_copied_into_large_pages_and_give_the_same_bits():
    plan, feed = product(512, 4096)
    session = opened(plan, "huge")
    (want,) = opened(plan, "mapped").run(None, feed)
    np.testing.assert_array_equal(session.run(None, feed)[0], want)
    stats = session.stats()
    assert stats.copied_bytes == plan.constants["w"].nbytes
    # as many whole large pages as there are, if the system has any
    with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
        if "[never]" not in file.read():
            assert stats.large_page_bytes in range(0, (8 << 20) + (2 << 20) + 1, 2 << 20)
    assert session.plan.constants["w"].ctypes.data % 64 == 0
    assert not session.plan.constants["w"].flags.writeable
    mapped = opened(plan, "mapped").stats()
    assert (mapped.copied_bytes, mapped.large_page_bytes) == (0, 0)
    assert f"taper_copied_bytes {stats.copied_bytes}" in stats.prometheus()


def test_weights_and_states_of_any_plan_can_be_copied():
    plan = small_plan()
    feed = {
        name: np.ones(plan.tensors[name].shape, plan.tensors[name].dtype) for name in plan.inputs
    }
    want = opened(plan, "mapped").run(None, feed)
    for got, array in zip(opened(plan, "huge").run(None, feed), want, strict=True):
        np.testing.assert_array_equal(got, array)


def test_another_value_and_a_system_without_large_pages_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"weights_memory: expected .*'mapped'.*'huge'.*'large'"):
        opened(small_plan(), "large")
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    with pytest.raises(InputError, match="expected 'mapped', for this system has no large pages"):
        opened(small_plan(), "huge")


def test_a_large_file_is_written_in_whole_blocks(tmp_path):
    data = os.urandom(1 << 20)
    parts = [b"header", memoryview(data), b"", data, data[:-6], data * 5, data[:7]]
    sizes = [len(block) for block in in_blocks(parts)]
    assert [size % BLOCK_BYTES for size in sizes] == [0] * (len(sizes) - 1) + [
        sum(sizes) % (2 << 20)
    ]
    replace_file(str(tmp_path / "file"), parts)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
@pytest.mark.parametrize(("nbytes", "asks"), [(BLOCK_BYTES, True), (BLOCK_BYTES - 1, False)])
def test_large_pages_are_asked_for_where_a_file_fills_one(tmp_path, nbytes, asks):
    path = tmp_path / "file"
    path.write_bytes(bytes(nbytes))
    with mapped(path) as buffer:
        flags = Path("/proc/self/smaps").read_text().split(str(path))[1].split("VmFlags:")[1]
        assert ("hg" in flags.splitlines()[0].split()) is asks
        assert len(buffer) == nbytes
