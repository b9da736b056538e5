"""Test the command: its options, its JSON, its processes."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import taper_runtime
import taper_runtime.cli
from cli_page import PAGE, check_json, schema, section, taper_command, without_measurement
from measured_plans import measured_plan
from plan_files import chain, renamed, small_plan
from sized_plans import sized_arrays, sized_plan
from taper_runtime.cli import command_line
from taper_runtime.cli.command_line import OWN
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.ops.convert import to_bfloat16
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec


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


@pytest.fixture
def sized(tmp_path):
    sized_plan().save(tmp_path / "s.taper")
    return tmp_path / "s.taper"


# -- what commands print ---------------------------------------------------------------------------


def json_of(result):
    code, out, err = result
    assert (code, err) == (0, "")
    assert out.count("\n") == 1, "one object on one line and nothing else"
    return json.loads(out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("inspect", ["inspect", "m.taper"]),
        ("inspect", ["inspect", "s.taper"]),
        ("why", ["inspect", "m.taper", "--why", "y"]),
        ("run", ["run", "m.taper"]),
        ("run", ["run", "s.taper", "--size", "B=3"]),
        ("bench", ["bench", "m.taper", "--runs", 2]),
        ("bench", ["bench", "s.taper", "--runs", 2]),
        ("machine", ["bench", "--machine", "--threads", 1]),
        ("profile", ["profile", "m.taper", "--runs", 2, "--threads", 1]),
        ("profile", ["profile", "s.taper", "--runs", 2, "--threads", 1]),
        ("report", ["report", "s.taper", "--runs", 2, "--threads", 1, "-o", "s.html"]),
        ("report", ["report", "s.taper", "--runs", 2, "--memory", "-o", "s.html"]),
        ("completion", ["completion", "bash"]),
        ("tune", ["tune", "m.taper", "--db", "t", "--budget", "0.1s", "--other-bits"]),
    ],
)
def test_json_is_as_the_page_says(form, arguments, taper, model, sized):
    check_json(schema(form), json_of(taper(*arguments, "--json")))


def test_json_of_inspect_is_the_plan(taper, sized):
    plan = sized_plan()
    data = json_of(taper("inspect", sized, "--json"))
    assert [item["name"] for item in data["inputs"]] == list(plan.inputs)
    assert data["inputs"][0]["shape"] == ["B", "S", 4]
    assert data["sizes"] == {
        "B": {"least": 1, "largest": 8, "origin": None},
        "S": {"least": 2, "largest": 32, "origin": None},
    }
    assert data["weights_bytes"] == 96
    assert [node["op"] for node in data["nodes"]] == [node.op for node in plan.nodes]
    assert data["nodes_executed"] == sum(node["executed"] for node in data["nodes"]) == 6


def test_json_of_inspect_has_the_origins_of_sizes(taper, tmp_path):
    """A size that a node computes, whose largest value is an expression."""
    measured_plan().save(tmp_path / "found.taper")
    sizes = json_of(taper("inspect", "found.taper", "--json"))["sizes"]
    assert sizes == {
        "n": {"least": 0, "largest": 64, "origin": None},
        "positive": {"least": 0, "largest": "n", "origin": {"tensor": "count", "element": 0}},
        "large": {"least": 0, "largest": "positive", "origin": {"tensor": "count_2", "element": 0}},
    }


def test_json_of_inspect_has_all_members_of_a_plan(taper, model):
    plan = small_plan()
    data = json_of(taper("inspect", model, "--json"))
    assert data["model"] == "model"
    assert data["models"] == ["model"]
    assert data["features"] == []
    assert data["input_tree"] == plan.input_tree
    assert data["output_tree"] == plan.output_tree
    assert data["samples"] == ["x"]
    assert {c["name"]: c["recipe"] for c in data["constants"]} == dict.fromkeys(plan.constants, "")


def test_json_of_inspect_has_the_states(taper, tmp_path):
    counter_plan().save(tmp_path / "c.taper")
    assert json_of(taper("inspect", "c.taper", "--json"))["states"] == [
        {
            "name": "count",
            "dtype": "float32",
            "shape": [],
            "next": "after",
            "in_place": False,
            "zeros": True,
        }
    ]


def counter_plan():
    """A plan that counts its runs, from 0."""
    tensors = [
        TensorSpec("count", "float32", (), "state"),
        TensorSpec("one", "float32", (), "input"),
        TensorSpec("after", "float32", (), "output"),
        TensorSpec("y", "float32", (), "output"),
    ]
    return Plan(
        nodes=(PlanNode("ADD", ("count", "one"), ("after",)), PlanNode("NEG", ("after",), ("y",))),
        tensors={spec.name: spec for spec in tensors},
        placements={spec.name: Placement(spec.name, 0, ()) for spec in tensors},
        inputs=("one",),
        outputs=("y",),
        constants={},
        states={"count": "after"},
    )


def test_json_of_run_has_the_values(taper, model):
    (expected,) = taper_runtime.InferenceSession(model).run(None, small_plan().samples)
    data = json_of(taper("run", model, "--json"))
    assert data["outputs"]["y"]["values"] == expected.tolist()
    data = json_of(taper("run", model, "--json", "--output", "y.npz"))
    assert data["outputs"]["y"] == {"dtype": "float32", "shape": [8]}
    with np.load("y.npz") as file:
        np.testing.assert_array_equal(file["y"], expected)


def test_arguments_come_from_an_archive(taper, tmp_path):
    """What --output writes, --args reads: names that are no file names too."""
    names = {"x": "a/../x", "y": "a/../x_1"}
    plan = renamed(chain(["NEG"], 3), names)
    plan.save(tmp_path / "odd.taper")
    np.savez(tmp_path / "in.npz", **{"a%2F%2E%2E%2Fx": np.array([1, 2, 3], np.float32)})
    data = json_of(taper("run", "odd.taper", "--args", "in.npz", "--json"))
    assert data["outputs"]["a/../x_1"]["values"] == [-1, -2, -3]
    taper("run", "odd.taper", "--args", "in.npz", "--output", "out.npz")
    back = renamed(chain(["NEG"], 3), {"x": "a/../x_1"})
    back.save(tmp_path / "back.taper")
    data = json_of(taper("run", "back.taper", "--args", "out.npz", "--json"))
    assert data["outputs"]["y"]["values"] == [1, 2, 3]


def test_the_sample_is_run(taper, model):
    (expected,) = taper_runtime.InferenceSession(model).run(None, small_plan().samples)
    data = json_of(taper("run", model, "--sample", "--json"))
    assert data["outputs"]["y"]["values"] == expected.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sample"], "--sample: expected samples of all inputs, got none of x"),
        (["--sample", "--args", "in.npz"], "expected --input and --size, or --args, or --sample"),
        (["--args", "in.npz"], "in.npz: expected a .npz archive of arrays: got a single array"),
        (["--args", "text.npz"], "text.npz: expected a .npz archive of arrays"),
        (["--args", "objects.npz"], "objects.npz: expected a .npz archive of arrays"),
        (["--args", "other.npz"], "missing input 'x'; expected ['x'], got ['z']"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, taper, tmp_path):
    chain(["NEG"], 3).save(tmp_path / "m.taper")
    with open("in.npz", "wb") as file:
        np.save(file, np.ones(3, np.float32))
    (tmp_path / "text.npz").write_text("PK\3\4 and text")
    np.savez("objects.npz", x=np.array([{}], object))
    np.savez("other.npz", z=np.ones(3, np.float32))
    code, out, err = taper("run", "m.taper", *arguments)
    assert (code, out) == (1, "")
    assert message in err


def identity(dtype, sample):
    """A plan that gives its input back."""
    names = ("x", "y")
    roles = dict(zip(names, ("input", "output"), strict=True))
    return Plan(
        nodes=(PlanNode("COPY", ("x",), ("y",)),),
        tensors={n: TensorSpec(n, dtype, sample.shape, roles[n]) for n in names},
        placements={n: Placement(n, 0, (1,)) for n in names},
        inputs=("x",),
        outputs=("y",),
        constants={},
        samples={"x": sample},
    )


def test_numbers_that_json_and_numpy_lack(taper):
    identity("float32", np.array([np.nan, np.inf, 1], np.float32)).save("m.taper")
    values = json_of(taper("run", "m.taper", "--json"))["outputs"]["y"]["values"]
    assert values == [{"float": "nan"}, {"float": "inf"}, 1.0]
    identity("bfloat16", to_bfloat16(np.array([1.5, -2], np.float32))).save("m.taper")
    assert json_of(taper("run", "m.taper", "--json"))["outputs"]["y"] == {
        "dtype": "bfloat16",
        "shape": [2],
        "values": [1.5, -2.0],
    }
    assert "y: bfloat16[2]\n[ 1.5 -2. ]" in taper("run", "m.taper")[1]


def test_what_a_command_prints_beside_its_json_goes_to_stderr(taper, monkeypatch, model):
    def chatty(plan, **options):
        print("chatter")
        return {}

    monkeypatch.setattr("taper_runtime.reports.report.plan_data", chatty)
    code, out, err = taper("inspect", model, "--json")
    assert (code, err) == (0, "chatter\n")
    assert [*json.loads(out)] == ["fingerprint", "batch", "model", "models", "layout"]


def test_warnings_are_one_line_each(taper, monkeypatch, model):
    import warnings

    def old(plan, **options):
        warnings.warn("old\nnews", stacklevel=1)
        return {}

    monkeypatch.setattr("taper_runtime.reports.report.plan_data", old)
    warnings.simplefilter("always")
    assert taper("inspect", model)[2] == "taper: warning: old\\nnews\n"


def test_report_writes_a_page(taper, model, tmp_path):
    code, out, err = taper("report", model, "-o", "m.html", "--runs", 2)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"m.html: [\d.]+ kB\n", out)
    page = (tmp_path / "m.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "f32_matmul" in page


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_page_has_every_option(name):
    options = [a for a in command_line.command_parser(name)._actions if a.option_strings]
    flags = {flag for action in options for flag in action.option_strings}
    assert flags > {"--help", "--json"}
    assert all(f"`{flag}`" in PAGE for flag in ("--help", "--json"))
    stated = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", section(name)))
    for flag in flags - {"-h", "--help", "--json"}:
        assert flag in stated, flag
    table = re.findall(r"^\| (`-.*?) \|", section(name), re.M)
    for flag in re.findall(r"--?[a-z][a-z-]*", " ".join(table)):
        assert flag in flags, f"{flag} is on the page, and {name} does not take it"


def test_page_lists_the_commands():
    rows = re.findall(r"^\| \[`taper (\w+)`\].* \| (.*) \|", PAGE, re.M)
    for name in OWN:
        assert (name, command_line.command_parser(name).description) in rows


@pytest.mark.parametrize("command", ["run", "bench", "profile"])
def test_threads_reach_the_executor(command, taper, monkeypatch, model):
    seen = []
    compile_plan = CompiledExecutor.compile

    def compiled(plan, settings):
        seen.append(settings.threads)
        return compile_plan(plan, settings)

    monkeypatch.setattr(CompiledExecutor, "compile", compiled)
    assert taper(command, model, "--threads", 3)[0] == 0
    assert seen == [3]


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "two", str(2**31), "9" * 5000])
def test_numbers_are_checked(number, taper, model):
    code, _, err = taper("run", model, f"--threads={number}")
    assert code == 2
    assert "expected a number of at least 1" in err


def test_sizes_of_samples_follow_inputs_and_options(taper, sized):
    data = json_of(taper("run", sized, "--json", "--size", "B=5"))["outputs"]
    assert [data[name]["shape"] for name in "yz"] == [[5, 3], [6 * 5 * 3]]
    arrays = sized_arrays(4, 7)
    np.save("x.npy", arrays["x"])
    data = json_of(taper("run", sized, "--json", "--input", "x=x.npy"))["outputs"]
    assert [data[name]["shape"] for name in "yz"] == [[4, 3], [6 * 4 * 7]]
    code, _, err = taper("run", sized, "--input", "x=x.npy", "--size", "S=8")
    assert (code, "S = 7" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "s.taper", "--size", "C=1"], 1, "expected NAME=NUMBER with a name of ['B', 'S']"),
        (["run", "s.taper", "--size", f"B={'9' * 5000}"], 1, "expected NAME=NUMBER"),
        (["bench", "m.taper", "--size", "B=1"], 1, "--size 'B=1': no size of this plan varies"),
        (["run", "s.taper", "--input", "y=a.npy"], 1, "unknown input 'y'"),
        (["run", "s.taper", "--input", "x"], 1, "expected NAME=FILE.npy"),
        (["run", "s.taper", "--input", "x=s.taper"], 1, "is not a .npy array"),
        (["run", "s.taper", "--input", "x=a.npz"], 1, "expected a .npy array, got an archive"),
        (["run", "s.taper", "--input", "x=none.npy"], 1, "No such file"),
        (["run", "a.npz"], 1, "a.npz: expected a .taper file, got a NumPy archive"),
        (["bench", "s.taper", "--output", "x.json"], 1, "expected --machine"),
        (["inspct"], 2, "unknown command 'inspct' (did you mean 'inspect'?)"),
        (["\x1b[31m"], 2, r"unknown command '\x1b[31m'"),
        ([], 2, "expected a command, one of "),
        (["run"], 2, "required: FILE.taper"),
        (["run", "s.taper", "--sizes", "\x1b]0;owned\x07"], 2, r"\x1b]0;owned\x07"),
    ],
)
def test_mistakes_are_named(arguments, code, message, taper, sized):
    small_plan().save("m.taper")
    np.savez("a.npz", np.ones(3))
    np.save("a.npy", np.ones(3))
    (got, out, err) = taper(*arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert err.replace("\n", "").isprintable()


def test_version(taper):
    assert taper("--version") == (0, f"taper {taper_runtime.__version__}\n", "")


def test_help_lists_the_commands(taper):
    code, out, _ = taper("--help")
    assert code == 0
    for name in OWN:
        assert re.search(rf"^ +{name} +\w", out, re.M)


@pytest.mark.parametrize("value", ["no_such_package:add", "taper_runtime.cli:no_such_name"])
def test_a_command_that_cannot_be_loaded_leaves_the_others(value, taper, monkeypatch):
    broken = EntryPoint("broken", value, "taper.commands")
    monkeypatch.setattr(command_line, "_others", lambda: {"broken": broken})
    code, out, _ = taper("--help")
    assert code == 0
    assert re.search(r"^ +broken +the command broken of .* cannot be loaded: .*no_such", out, re.M)
    assert re.search(r"^ +run +\w", out, re.M)
    code, _, err = taper("broken")
    assert code == 1
    assert "install the package again" in err


def test_a_command_imports_no_other(model):
    code = f"""
import sys
from taper_runtime.cli import main
assert main(["inspect", {str(model)!r}]) == 0
loaded = set(sys.modules)
assert "taper_runtime.cli.inspect" in loaded
assert not loaded & {{"torch", "rich", "taper_frontend", "taper_runtime.cli.run", "zipfile"}}
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# -- processes -------------------------------------------------------------------------------------


def run_taper(*arguments, **options):
    command = [sys.executable, "-m", "taper_runtime.cli", *map(str, arguments)]
    return subprocess.run(command, check=False, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(("arguments", "code"), [(["inspect", "m.taper"], 141), (["--help"], 0)])
def test_a_reader_that_goes_away_is_no_error(arguments, code, model):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = run_taper(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (code, "")


def test_interruption_is_no_traceback(taper, monkeypatch, model):
    def interrupt(path, model, *, check_fingerprint):
        raise KeyboardInterrupt

    monkeypatch.setattr("taper_runtime.file.reader.load", interrupt)
    assert taper("inspect", model) == (130, "", "")


def test_a_lack_of_memory_is_one_line(taper, model):
    with open("x.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**50,)}
        np.lib.format.write_array_header_1_0(file, header)
    code, out, err = taper("run", model, "--input", "x=x.npy")
    assert (code, out) == (1, "")
    assert re.fullmatch("taper: not enough memory: .*\n", err)


def test_names_outside_the_terminals_encoding(model):
    renamed(small_plan(), {"y": "größe"}).save(model)
    result = run_taper(
        "inspect", model, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert result.returncode == 0, result.stderr
    assert r"output  gr\xf6\xdfe: float32[8]" in result.stdout


def test_page_lists_the_exit_codes():
    documented = set(re.findall(r"^\| (\d+) \|", PAGE, re.M))
    assert documented == {"0", "1", "2", "130", "141"}
    assert all(code in taper_runtime.cli.__doc__ for code in documented)


def test_what_is_printed_may_go_to_a_text_in_memory():
    """Such a stream has no encoding."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert taper_runtime.cli.main(["completion", "bash"]) == 0
    assert "complete" in printed.getvalue()
