"""Output and files of the command for a stranger's file."""

import os
import re
import shutil

import numpy as np
import pytest

import taper_runtime
from cli_page import taper_command, without_measurement
from plan_files import renamed, small_plan
from taper_runtime.plan.plan import PlanNode


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without_measurement(monkeypatch)


@pytest.fixture
def taper(capsys):
    return taper_command(capsys)


@pytest.fixture
def model(tmp_path):
    small_plan().save(tmp_path / "m.taper")
    return tmp_path / "m.taper"


ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e\x9b\n"


@pytest.fixture
def hostile(tmp_path):
    plan = renamed(small_plan(), {name: f"{name}{ESCAPE}" for name in small_plan().tensors})
    nodes = (plan.nodes[0]._replace(source=f"model.py:7{ESCAPE}"), *plan.nodes[1:])
    metadata = {
        "producer": ESCAPE,
        "passes": [{"name": ESCAPE, "before": 1, "after": 2}],
        "warnings": [{"kind": ESCAPE, "text": ESCAPE}],
        "fallbacks": [{"node": ESCAPE, "op": ESCAPE, "source": ESCAPE}],
    }
    plan._replace(nodes=nodes, metadata=metadata).save(tmp_path / "h.taper")
    return tmp_path / "h.taper"


@pytest.mark.parametrize("command", ["inspect", "run", "profile", "bench"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--size", f"x{ESCAPE}=1"]])
def test_nothing_of_a_file_reaches_the_terminal_raw(command, options, taper, hostile):
    if command == "inspect" and "--size" in options:
        options = [f"--{ESCAPE}"]
    code, out, err = taper(command, hostile, *options)
    assert code == (0 if options in ([], ["--json"]) else 2 if command == "inspect" else 1)
    assert len(out) + len(err) > 20
    assert (out + err).replace("\n", "").isprintable()
    if command in ("inspect", "run", "profile") and not options:
        assert r"y\x1b]0;owned\x07\x1b[31m\u202e\x9b\n" in out
        assert sum("owned" in line for line in out.splitlines()) > 0


def test_errors_about_a_file_are_escaped(taper, model):
    plan = renamed(small_plan(), {"x": f"x{ESCAPE}"})._replace(samples={})
    plan.save(model)
    np.save("x.npy", np.ones((3, 3)))
    code, _, err = taper("run", model, "--input", f"x{ESCAPE}=x.npy")
    assert code == 1
    assert err.startswith("taper: input 'x")
    assert err.replace("\n", "").isprintable()
    gamma = PlanNode("LGAMMA", ("u",), (f"y{ESCAPE}",))
    plan = renamed(small_plan(), {"y": f"y{ESCAPE}"})
    plan._replace(nodes=(*plan.nodes[:-1], gamma)).save(model)
    code, _, err = taper("run", model, "--strict-native")
    assert code == 1
    assert r"owned\x07" in err
    assert all(line.isprintable() for line in err.splitlines())


@pytest.mark.parametrize(
    "name",
    [
        "file",
        "allow_pickle",
        "../../evil",
        "/etc/evil",
        "a\\b",
        "nul\0",
        "..",
        ".",
        "größe",
        ESCAPE,
    ],
)
def test_outputs_of_any_name_are_safe_members(name, taper, model, tmp_path):
    renamed(small_plan(), {"y": name}).save(model)
    (expected,) = taper_runtime.InferenceSession(model).run(None, small_plan().samples)
    code, _, err = taper("run", model, "--output", "out.npz")
    assert (code, err) == (0, "")
    with np.load("out.npz") as file:
        (member,) = file.files
        np.testing.assert_array_equal(file[member], expected)
    assert re.fullmatch(r"[\w.~%-]+", member, re.ASCII)
    (tmp_path / "unpacked").mkdir()
    shutil.unpack_archive("out.npz", "unpacked", "zip")
    assert os.listdir("unpacked") == [f"{member}.npy"]


def test_an_output_whose_name_no_archive_holds(taper, model):
    renamed(small_plan(), {"y": "y" * 65_532}).save(model)
    code, _, err = taper("run", model, "--output", "out.npz")
    assert (code, "expected names of at most" in err) == (1, True)
    assert not os.path.exists("out.npz")
