"""Forks, ends of the interpreter, full disks and memory errors of Python: a defined end of each."""

import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fault_plans import bits, cases, drawn, layers, opened
from plan_files import small_plan
from taper_runtime import RunOptions, TaperError
from taper_runtime.cli import main

SUPPORT = Path(__file__).parents[1] / "support"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, limits, signals of Linux")

BEGIN = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from fault_plans import bits, drawn, layers, opened
plan = layers(8)
feed = drawn(plan)
session = opened(plan)
want = bits(session.run(None, feed))
"""

#: Children of a process whose threads are anywhere in a run, or wait for one.
FORKS = """
import os, signal
from plan_files import towers
if sys.argv[3] == "parallel":
    plan = towers(4, ["SIN"] * 4, 5000)
    feed = drawn(plan)
    want = bits(opened(plan).run(None, feed))
options = {"execution_mode": sys.argv[3], "inter_op_num_threads": 2}
session = opened(plan, max_concurrent_runs=int(sys.argv[2]), **options)
stop = threading.Event()
def work():
    while not stop.is_set():
        session.run(None, feed)
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs is ended by it
        right = all(bits(session.run(None, feed)) == want for _ in range(3))
        other = bits(opened(plan, **options).run(None, feed)) == want
        os._exit(0 if right and other else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
print(*codes)
"""

#: Daemon threads run on while the interpreter ends.
SHUTDOWN = """
def work():
    while True:
        session.run(None, feed)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
import time
time.sleep(0.05)
print("end")
"""

#: One failing allocation after the other. Prints how many ended a run.
MEMORY = """
import _testcapi
from fault_plans import cases
from taper_runtime import InputError
plan, feed = cases()[sys.argv[2]]
session = opened(plan, threads=1, execution_mode="parallel", inter_op_num_threads=2)
want = bits(session.run(None, feed))
failed = 0
for number in range(200):
    try:
        _testcapi.set_nomemory(number, number + 1)
        try:
            session.run(None, feed)
        finally:
            _testcapi.remove_mem_hooks()
    except (MemoryError, InputError):
        failed += 1
    assert session.stats().frames.in_use == 0, number
    assert bits(session.run(None, feed)) == want, number
print(failed)
"""


def python(program, *arguments):
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + program, SUPPORT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("runs", "mode"),  # of 6 threads; with 2 most of them wait
    [("8", "sequential"), ("2", "sequential"), ("8", "parallel")],
)
def test_children_of_a_busy_process_run(runs, mode):
    done = python(FORKS, runs, mode)
    assert done.stdout.split() == ["0"] * 20, done.stderr


def test_the_interpreter_ends_while_threads_run():
    for _ in range(3):
        done = python(SHUTDOWN)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_session_dropped_by_its_last_runner():
    """Threads hold the only references, and drop them in any order."""
    plan = layers()
    feed = drawn(plan)
    want = bits(opened(plan).run(None, feed))
    wrong = []

    def work(session):
        if bits(session.run(None, feed)) != want:
            wrong.append(1)

    for _ in range(20):
        session = opened(plan)
        threads = [threading.Thread(target=work, args=(session,)) for _ in range(4)]
        del session
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_runs_that_end_early_lose_nothing():
    """Threads whose runs time out, are ended or refused anywhere, also while they wait."""
    plan = layers(8)
    feeds = [drawn(plan, seed) for seed in range(4)]
    wants = [bits(opened(plan).run(None, feed)) for feed in feeds]
    session = opened(plan, max_concurrent_runs=2, frame_cleanup_interval_s=0.01)
    problems, ended = [], []

    def work(number):
        rng = np.random.default_rng(number)
        for _ in range(150):
            index = int(rng.integers(4))
            options = RunOptions()
            if rng.random() < 0.5:
                options.timeout_s = float(10 ** rng.uniform(-7, -3))
            if rng.random() < 0.1:
                options.terminate = True
            try:
                if bits(session.run(None, feeds[index], options)) != wants[index]:
                    problems.append("wrong bits")
            except TaperError as error:
                ended.append(type(error).__name__)
            except BaseException as error:
                problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len({*ended}) == 2  # those that timed out, and those that were ended
    frames = session.stats().frames
    assert frames.in_use == 0
    assert frames.idle <= frames.peak <= 2
    assert bits(session.run(None, feeds[0])) == wants[0]


def test_a_session_closed_while_others_run():
    plan = layers(8)
    feed = drawn(plan)
    want = bits(opened(plan).run(None, feed))
    session = opened(plan, max_concurrent_runs=2)
    begun, problems, refused = threading.Barrier(7), [], []

    def work():
        begun.wait()
        try:
            while True:
                if bits(session.run(None, feed)) != want:
                    problems.append("wrong bits")
        except TaperError as error:
            refused.append(str(error))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    begun.wait()
    session.close()
    for thread in threads:
        thread.join(30)
    assert not problems
    assert refused == ["the session is closed"] * 6
    frames = session.stats().frames
    assert (frames.in_use, frames.idle, frames.arena_bytes) == (0, 0, 0)


@contextmanager
def full_disk():
    """Limit files to a few bytes, which writing exceeds as it does a full disk.

    It holds for what pytest prints to a file too, so nothing may be printed meanwhile.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes(b"old")
    for each in (path, tmp_path / "new.taper"):
        with pytest.raises(OSError, match="File too large"), full_disk():
            small_plan().save(each)
    assert [item.name for item in tmp_path.iterdir()] == ["m.taper"]
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_one_line_of_the_command(tmp_path, capsys):
    model = tmp_path / "m.taper"
    small_plan().save(model)
    for arguments in (
        ["run", str(model), "--output", "/dev/full"],
        ["report", str(model), "-o", "/dev/full", "--runs", "1"],
    ):
        code = main(arguments)
        captured = capsys.readouterr()
        assert code == 1, arguments
        assert captured.err.count("\n") == 1, captured.err
        assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "name", sorted(cases().keys() - {"while"})
)  # numpy's node may be a SystemError
def test_every_memory_error_of_python_in_a_run(name):
    """CPython's own allocations, one after the other; then the session gives the same bits."""
    pytest.importorskip("_testcapi")  # CPython's, if it is built with its tests
    result = python(MEMORY, name)  # by itself: other threads, and pytest, would meet them too
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 3


def test_memory_that_cannot_be_had_takes_no_other_away():
    """A mapping that failed was unmapped all the same, from address 0 on."""
    program = (
        "from taper_runtime.native._kernels import Buffer\n"
        "try:\n    Buffer(127 << 40)\n"
        "except MemoryError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"cannot allocate {127 << 40} bytes\n", done.stderr
