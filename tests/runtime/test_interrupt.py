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
from plan_files import chain
from taper_runtime import InferenceSession, SessionOptions

options = SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
count = 2_000_000
session = InferenceSession(chain(["SIN"] * 1000 + [sys.argv[3]] + ["SIN"] * 1000, count), options)
sent = []

def interrupt():
    time.sleep(0.3)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(2):
    threading.Thread(target=interrupt).start()
    try:
        session.run(None, {"x": np.zeros(count, np.float32)})
        print("ran to its end")
    except KeyboardInterrupt:
        print("late" if time.monotonic() - sent[-1] > 5 else "interrupted")
print(len(InferenceSession(chain(["SIN"], 4)).run(None, {"x": np.zeros(4, np.float32)})))
"""


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_is_interrupted_between_its_nodes(threads):
    command = [sys.executable, "-c", PROGRAM, SUPPORT, str(threads), "COS"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["interrupted", "interrupted", "1"], done.stderr
