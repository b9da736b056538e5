"""Objects of extension types that Python makes without what they need: errors, never a crash."""

import subprocess
import sys

import pytest

#: Makes an object of each type by __new__ alone, and with Nones, and touches all that it has.
ATTEMPTS = """
import copy, importlib, pickle, weakref

PROGRAM = (
    "inputs outputs n_constants steps bodies restores threads variables tensor_bytes refuse order"
)
#: Of types with arguments that are given by name.
NAMED = {
    "Program": [((), dict.fromkeys(PROGRAM.split(), value)) for value in (None, (), [], 0)],
    "Step": [((None, {}, [], []), dict(label=None)), ((None, {}, [None], [None]), dict(label=0))],
    "Control": [((None, ()), dict(predicate=None)), ((0, [0]), dict(enter=[None], next=[None]))],
}

def attempt(what, function, *args):
    print(what, flush=True)
    try:
        return function(*args)
    except Exception:
        return None

def touch(kind):
    made = [attempt(f"{kind} of {n}", kind, *[None] * n) for n in range(14)]
    for given, named in NAMED.get(kind.__name__, ()):
        made.append(attempt(f"{kind} of {given}, {named}", lambda: kind(*given, **named)))
    for new in [attempt(f"{kind} new", kind.__new__, kind), *made]:
        if new is None:
            continue
        for name in dir(kind):
            if name in ("__class__", "__init_subclass__", "__subclasshook__"):
                continue
            value = attempt(f"{kind} {name}", getattr, new, name)
            for args in [(None,) * n for n in range(7)] + [(0,), ([],), ([], []), (new,)]:
                if callable(value):
                    attempt(f"{kind} {name} {len(args)}", value, *args)
            for other in (None, 1, "", [], new) if not name.startswith("__") else ():
                attempt(f"{kind} {name} set", setattr, new, name, other)
        for use in (copy.copy, copy.deepcopy, pickle.dumps, weakref.ref, repr, hash, len, list):
            attempt(f"{kind} {use}", use, new)

count = 0
for module in ("native._kernels", *(f"executor._{n}" for n in ("program", "stop", "pool", "run"))):
    module = importlib.import_module(f"taper_runtime.{module}")
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            touch(kind)
            count += 1
print("touched", count)
"""


@pytest.fixture(scope="module")
def attempts():
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", ATTEMPTS],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_what_python_makes_of_extension_types_never_crashes(attempts):
    lines = attempts.stdout.splitlines()
    assert attempts.returncode == 0, (lines[-3:], attempts.stderr[-2000:])
    assert int(lines[-1].removeprefix("touched ")) > 25


def test_all_extension_modules_are_touched():
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    from taper_runtime.executor import _program, _run
    from taper_runtime.native import _kernels

    folders = {Path(module.__file__).parent for module in (_kernels, _program, _run)}
    found = {
        path.name.split(".")[0]
        for folder in folders
        for path in folder.iterdir()
        if path.name.endswith(tuple(EXTENSION_SUFFIXES))
    }
    assert found == {"_kernels", "_program", "_stop", "_pool", "_run"}
