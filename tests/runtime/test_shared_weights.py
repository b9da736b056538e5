"""Processes that run one file: its weights are in memory once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

#: Of the weights; TAPER_SHARED_MB measures others.
MB = int(os.environ.get("TAPER_SHARED_MB", "64"))

COLUMNS = 8192

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells what is shared"
)

RUN = """
import sys
import numpy as np
from taper_runtime import InferenceSession
session = InferenceSession(sys.argv[1])
(shape,) = [x.shape for x in session.get_inputs()]
assert not session.run(None, {"x": np.ones(shape, np.float32)})[0].any()
print("ran", flush=True)
sys.stdin.read()
"""


def _large_plan():
    """A product that reads every weight."""
    rows = MB * 2**20 // (4 * COLUMNS)
    shapes = {"x": (1, rows), "w": (rows, COLUMNS), "y": (1, COLUMNS)}
    roles = {"x": "input", "w": "constant", "y": "output"}
    return Plan(
        nodes=(PlanNode("MATMUL", ("x", "w"), ("y",)),),
        tensors={name: TensorSpec(name, "float32", shapes[name], roles[name]) for name in shapes},
        placements={name: Placement(name, 0, (shape[1], 1)) for name, shape in shapes.items()},
        inputs=("x",),
        outputs=("y",),
        constants={"w": np.zeros(shapes["w"], np.float32)},
    )


def _mib(text, key):
    return sum(int(kb) for kb in re.findall(rf"^{key}: +(\d+) kB", text, re.M)) / 1024


def _of_file(process, path):
    """MiB of a file's pages: resident in a process, and its share of those that others have too."""
    maps = Path(f"/proc/{process.pid}/smaps").read_text()
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.M)
    text = "".join(part for part in parts if str(path) in part.partition("\n")[0])
    return _mib(text, "Rss"), _mib(text, "Pss")


def test_two_processes_have_weights_in_memory_once(tmp_path):
    path = tmp_path / "m.taper"
    _large_plan().save(path)
    command, pipe = [sys.executable, "-c", RUN, str(path)], subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ran\n"] * 2
        weights = [_of_file(process, path) for process in processes]
        rollups = [Path(f"/proc/{p.pid}/smaps_rollup").read_text() for p in processes]
    finally:
        for process in processes:
            process.communicate()
    whole = [f"{_mib(text, 'Pss'):.0f} of {_mib(text, 'Rss'):.0f}" for text in rollups]
    print(f"{MB} MiB of weights; proportional of resident MiB: {' and '.join(whole)}")
    for resident, share in weights:
        assert MB <= resident < MB + 1
        assert share <= resident / 2 + 1
