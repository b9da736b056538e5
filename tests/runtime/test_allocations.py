"""Allocations of the executor and the kernels: none in a run, and each may fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"

BEGIN = """
import ctypes, gc, os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from fault_plans import bits, cases, opened
from taper_runtime import InputError
from taper_runtime.native import _kernels

hook = ctypes.CDLL(None)
for name in ("allocations_made", "allocations_in_use"):
    getattr(hook, name).restype = ctypes.c_long
hook.allocations_fail_at.argtypes = [ctypes.c_long]
WHOSE = os.path.dirname(_kernels.__file__).encode()
"""

#: Runs after the first, of all threads, allocate nothing.
COUNTED = """
hook.allocations_of(WHOSE)
modes = ("sequential", "parallel")
for name, (plan, feed), mode in [(*case, mode) for case in cases().items() for mode in modes]:
    hook.allocations_fail_at(0)
    session = opened(plan, execution_mode=mode, inter_op_num_threads=2)
    outputs = session.run(None, feed)
    made = hook.allocations_made()
    out = {name: np.empty_like(a) for name, a in zip(plan.outputs, outputs)}
    session.run(None, feed, out=out)
    hook.allocations_fail_at(0)
    for _ in range(3):
        session.run(None, feed)
        session.run(None, feed, out=out)
    print(name, made > 0, hook.allocations_made())
"""

#: Each allocation of session and first run fails once.
FAILING = """
hook.allocations_of(WHOSE)
gc.freeze()  # later collections look only at what is made from here on
for name, (plan, feed) in cases().items():
    hook.allocations_fail_at(0)
    want = bits(opened(plan).run(None, feed))
    failed, raised, left = 0, set(), set()
    while True:
        hook.allocations_fail_at(0)
        gc.collect()
        before = hook.allocations_in_use()
        hook.allocations_fail_at(failed + 1)
        session = None
        try:
            session = opened(plan, execution_mode="parallel", inter_op_num_threads=2)
            session.run(None, feed)
        except (MemoryError, InputError) as error:
            raised.add(type(error).__name__)
            del error
        done = hook.allocations_made() <= failed
        hook.allocations_fail_at(0)
        if session is not None:
            assert bits(session.run(None, feed)) == want, (name, failed)
        del session
        gc.collect()
        left.add(hook.allocations_in_use() - before)
        if done:
            break
        failed += 1
    print(name, failed > 3, max(left), *sorted(raised))
"""


@pytest.fixture(scope="module")
def hook(tmp_path_factory):
    path = tmp_path_factory.mktemp("hook") / "allocations.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", path, SUPPORT / "allocations.c"]
    subprocess.run(command, check=True)
    return path


def run(program, hook):
    command = [sys.executable, "-c", BEGIN + program, SUPPORT]
    environment = os.environ | {"LD_PRELOAD": str(hook)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD, and glibc's names")


def test_runs_allocate_nothing(hook):
    lines = run(COUNTED, hook)
    assert len(lines) == 14
    for name, prepared, count in lines:
        assert prepared == "True", name  # the hook sees what a session allocates
        assert count == "0", name


def test_every_allocation_may_fail(hook):
    lines = run(FAILING, hook)
    assert len(lines) == 7
    for name, some, left, *raised in lines:
        assert some == "True", name
        assert int(left) <= 0, name
        assert set(raised) <= {"MemoryError", "InputError"}, name
