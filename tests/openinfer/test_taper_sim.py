"""Test the command ``taper sim``: lines, files, inputs, what it refuses."""

import json

import numpy as np
import pytest

from cli_page import check_json, schema
from simulated import PROGRAMS
from taper_openinfer import SizeVar, write_model
from taper_runtime.cli import main


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.oinf"
    write_model(path, {"B": SizeVar(3), "D": SizeVar(4), "a": np.full(3, 2, np.float32)})
    return path


def sim(capsys, *arguments):
    code = main(["sim", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_it_prints_nodes_and_what_variables_are_in_the_end(capsys, model, tmp_path):
    np.save(tmp_path / "x.npy", np.array([1, 2, 3], np.float32))
    options = ("--input", f"x={tmp_path / 'x.npy'}", "--steps", 2)
    code, out, _ = sim(capsys, PROGRAMS / "minimal.oi", model, *options)
    assert code == 0
    lines = out.splitlines()
    nodes = [line.split(" -- ")[1] for line in lines if " -- " in line]
    assert nodes == ["assign t0", "op add(x,a) >> t0", "op mul(y,t0) >> y", "return"] * 2
    assert sum(line.endswith("ns)") for line in lines) == 4
    assert lines[-1] == "y: f32[3] = {15.00, 20.00, 25.00}"


def test_json_has_the_variables_and_no_lines(capsys, model):
    code, out, err = sim(
        capsys,
        PROGRAMS / "kv_cache_decode.oi",
        model,
        "--input",
        "key=random",
        "--steps",
        3,
        "--json",
    )
    data = json.loads(out)
    check_json(schema("sim"), data)
    assert (code, data["steps"], data["nodes"]) == (0, 3, 12)
    assert data["variables"]["step"]["values"] == "{3}"
    assert data["variables"]["K"]["shape"] == [4, 4]
    assert "cache.write key >> K[step]" in err


def test_inputs_may_differ_from_step_to_step(capsys, model, tmp_path):
    keys = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "keys.npy", keys)
    program = PROGRAMS / "kv_cache_decode.oi"
    options = ("--input", f"key={tmp_path / 'keys.npy'}", "--steps", 2)
    _, out, _ = sim(capsys, program, model, *options)
    assert "key: f32[4] = {4.00, 5.00, 6.00, 7.00}" in out
    assert "K: f32[4, 4] = {0.00, 1.00 ... 0.00, 0.00}" in out


def test_random_inputs_are_the_same_again(capsys, model):
    options = (PROGRAMS / "minimal.oi", model, "--input", "x=random")
    first, again = (sim(capsys, *options)[1].splitlines()[-1] for _ in range(2))
    assert first == again
    assert first != "y: f32[3] = {10.00, 10.00, 10.00}"


def test_it_writes_traces_and_a_page(capsys, model, tmp_path):
    files = [tmp_path / name for name in ("trace.json", "perfetto.json", "page.html")]
    options = [
        f"--{kind}={path}" for kind, path in zip(("trace", "perfetto", "html"), files, strict=True)
    ]
    code, out, _ = sim(capsys, PROGRAMS / "minimal.oi", model, "--input", "x=random", *options)
    assert code == 0
    events = json.loads(files[0].read_text())
    fields = ["block_name", "node_index", "node_uuid", "kind", "params", "output", "micros"]
    assert all(list(event) == fields for event in events)
    assert [event["kind"] for event in events] == ["Assign", "OpExecute", "OpExecute", "Return"]
    assert [e["node_uuid"] for e in events] == [x.split()[1] for x in out.splitlines() if "--" in x]
    spans = [e for e in json.loads(files[1].read_text())["traceEvents"] if e["ph"] == "X"]
    assert [span["name"] for span in spans][1] == "op add(x,a) >> t0"
    page = files[2].read_text()
    assert "op mul(y,t0)" in page
    assert "minimal.oi step by step" in page


def test_what_began_as_zeros_is_listed(capsys, model, tmp_path):
    program = tmp_path / "p.oi"
    program.write_text("""
    volatile { v: f32; a: f32[B]; y: f32[B]; } block entry { op add(a, v) >> y; }
    """)
    _, out, _ = sim(capsys, program, model)
    assert "began as zeros, because the model has no such tensors: v\n" in out
    assert json.loads(sim(capsys, program, model, "--json")[1])["zeros"] == ["v"]
    code, _, err = sim(capsys, program, model, "--strict")
    assert code == 1
    assert "p.oi:2:16: 'v': expected a tensor of this name in the file, or @init, because" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected a value of each dynamic variable: --input x=FILE.npy"),
        (["--input", "y=random"], "--input: expected a dynamic variable (x), got 'y'"),
        (["--input", "x=random", "--device", "Vulkan"], "device 'Vulkan' is not built"),
        (["--input", "x={long}"], "--input x: expected shape (3,), or (1, 3) with one for each"),
        (["--input", "x={wrong}"], "x: expected float32 elements of f32, got float64"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(capsys, model, tmp_path, options, message):
    arrays = {"long": np.zeros(5, np.float32), "wrong": np.zeros(3)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    paths = {name: tmp_path / f"{name}.npy" for name in arrays}
    options = [option.format(**paths) for option in options]
    code, _, err = sim(capsys, PROGRAMS / "minimal.oi", model, *options)
    assert code == 1
    assert err.startswith("taper: ")
    assert message in err


def test_a_step_that_fails_ends_it_behind_the_lines_of_its_nodes(capsys, model):
    program = PROGRAMS / "kv_cache_decode.oi"
    code, out, err = sim(capsys, program, model, "--input", "key=random", "--steps", 5)
    assert code == 1
    assert len(out.splitlines()) == 16
    assert "cache.write key >> K[step]: K: index i: expected positions below 4" in err
