"""A session whose file changes while it is open."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime import InferenceSession, InputError, PlanFormatError, SessionOptions, load
from taper_runtime.file import mapping
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

SUPPORT = Path(__file__).parents[1] / "support"
SIZE = 1 << 20

PROGRAM = """
import os, sys
import numpy as np
from taper_runtime import InferenceSession, SessionOptions

options = SessionOptions()
options.load_mode = sys.argv[2]
session = InferenceSession(sys.argv[1], options)
os.truncate(sys.argv[1], 4096)
(y,) = session.run(None, {"x": np.zeros(1, np.float32)})
print(y.sum())
"""


def large():
    """x + w, where w has many pages."""
    tensors = [
        TensorSpec("x", "float32", (1,), "input"),
        TensorSpec("w", "float32", (SIZE,), "constant"),
        TensorSpec("y", "float32", (SIZE,), "output"),
    ]
    return Plan(
        nodes=(PlanNode("ADD", ("x", "w"), ("y",)),),
        tensors={spec.name: spec for spec in tensors},
        placements={spec.name: Placement(spec.name, 0, (1,)) for spec in tensors},
        inputs=("x",),
        outputs=("y",),
        constants={"w": np.ones(SIZE, np.float32)},
    )


def session_of(path, mode):
    options = SessionOptions()
    options.load_mode = mode
    return InferenceSession(path, options)


@pytest.mark.skipif(sys.platform != "linux", reason="others lock mapped files, or send no SIGBUS")
@pytest.mark.parametrize("mode", ["map", "copy"])
def test_a_file_truncated_under_a_session(mode, tmp_path):
    """SECURITY.md tells why a mapped one ends the process."""
    path = tmp_path / "m.taper"
    large().save(path)
    command = [sys.executable, "-c", PROGRAM, path, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if mode == "map":
        assert done.returncode == -signal.SIGBUS
    else:
        assert float(done.stdout) == SIZE, done.stderr


@pytest.mark.parametrize("mode", ["map", "copy"])
def test_a_file_replaced_under_a_session(mode, tmp_path):
    if mode == "map" and os.name == "nt":
        pytest.skip("Windows does not replace mapped files")
    path = tmp_path / "m.taper"
    plan = small_plan()
    plan.save(path)
    session = session_of(path, mode)
    before = session.run(None, dict(plan.samples))
    zeros = {**plan.constants, "b": np.zeros(8, np.float32)}
    plan._replace(constants=zeros).save(path)
    assert session.run(None, dict(plan.samples))[0].tobytes() == before[0].tobytes()
    assert session_of(path, mode).run(None, dict(plan.samples))[0].tobytes() != before[0].tobytes()


def test_a_file_overwritten_under_a_copy(tmp_path):
    path = tmp_path / "m.taper"
    plan = small_plan()
    plan.save(path)
    copy = load(path, load_mode="copy")
    path.write_bytes(bytes(path.stat().st_size))
    for name, array in plan.constants.items():
        np.testing.assert_array_equal(copy.constants[name], array)
        assert not copy.constants[name].flags.writeable
        if array.nbytes % 64 == 0:
            assert copy.constants[name].ctypes.data % 64 == 0


def test_a_file_that_ends_while_it_is_copied(tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes(bytes(100))
    with open(path, "rb", buffering=0) as file, pytest.raises(PlanFormatError, match="truncated"):
        mapping._copy(file.fileno(), 101)


def test_there_are_two_modes(tmp_path):
    for value in ("mmap", None, 1):
        with pytest.raises(InputError, match="'map'"):
            load(tmp_path / "m.taper", load_mode=value)
        with pytest.raises(InputError, match="'map'"):
            SessionOptions().load_mode = value
