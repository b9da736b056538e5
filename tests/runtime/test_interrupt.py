"""A run in C ends when the user wants it, and its session goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"

#: The first run takes some ten seconds, most of it without the GIL.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from plan_files import towers
from taper_runtime import InferenceSession, SessionOptions

options = SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(sys.argv[2]), 2
options.execution_mode = sys.argv[3]
count = 2_000_000
session = InferenceSession(towers(2, ["SIN"] * 1000, count), options)
sent = []

def interrupt():
    time.sleep(0.3)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

if sys.argv[4] == "busy":  # the run waits for a frame, and another thread computes it
    from taper_runtime.executor._pool import Lease

    leases = [Lease(session._pool, None, None) for _ in range(session._pool.at_once)]
    for lease in leases:
        lease.__enter__()
    threading.Timer(0.1, leases[0].__exit__).start()

for _ in range(2):
    threading.Thread(target=interrupt).start()
    try:
        session.run(None, {"x": np.zeros(count, np.float32)})
        print("ran to its end")
    except KeyboardInterrupt:
        print("late" if time.monotonic() - sent[-1] > 5 else "interrupted")
print(len(InferenceSession(towers(2, ["SIN"], 4)).run(None, {"x": np.zeros(4, np.float32)})))
"""


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
@pytest.mark.parametrize(
    ("threads", "mode", "others"),
    [
        ("1", "sequential", "idle"),
        ("2", "sequential", "idle"),
        ("1", "parallel", "idle"),
        ("1", "sequential", "busy"),
    ],
)
def test_a_run_is_interrupted_between_its_nodes(threads, mode, others):
    command = [sys.executable, "-c", PROGRAM, SUPPORT, threads, mode, others]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["interrupted", "interrupted", "1"], done.stderr
