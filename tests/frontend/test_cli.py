"""`taper export`, and what the command does where torch and rich are installed."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import taper_frontend
import taper_runtime
import taper_runtime.cli
from cli_page import PAGE, check_json, schema, section, taper_command
from plan_files import small_plan
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.cli.command_line import command_parser

MODULE = """
import torch
from torch.export import Dim

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, rows):
        return self.linear(x), rows + 1

def make():
    print("made")
    return Model().eval(), (torch.ones(2, 4), torch.arange(2))

def program():
    return torch.export.export(make()[0], make()[1]), ()

def decoder():
    return Model().eval()

def dims():
    return ({0: Dim("batch", max=64)}, None)

def broken():
    return torch.nn.Sequential(Fft()), (torch.ones(4),)

class Fft(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)
"""


@pytest.fixture
def taper(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models_of_cli.py").write_text(MODULE)

    yield taper_command(capsys)
    sys.modules.pop("models_of_cli", None)


def test_json_of_export(taper):
    code, out, err = taper("export", "models_of_cli:make", "-o", "m.taper", "--json")
    assert code == 0
    assert "made" in err
    data = json.loads(out)
    plan_form = schema("inspect")
    left_out = [
        "fingerprint",
        "batch",
        "model",
        "models",
        "weights",
        "constants",
        "nodes",
        "layout",
        "others",
    ]
    for key in left_out:
        del plan_form[key]
    *first, last = left_out
    without = f"as inspect prints it, without {', '.join(first)} and {last}"
    assert schema("export")["plan"] == without
    check_json(plan_form, data.pop("plan"))
    form = schema("export")
    del form["plan"]
    check_json(form, data)
    assert data == {"output": "m.taper", "bytes": os.path.getsize("m.taper")}


@pytest.mark.parametrize(("factory", "code"), [("make", 0), ("broken", 1)])
def test_json_of_explain(factory, code, taper):
    got, out, err = taper("export", f"models_of_cli:{factory}", "--explain", "--json")
    assert got == code
    assert ("taper: the model cannot be exported" in err) == bool(code)
    data = json.loads(out)
    check_json(schema("explain"), data)
    assert len(data["breaks"]) == code


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["models_of_cli:nothing", "-o", "m.taper"], 1, "has no attribute 'nothing'"),
        (["models_of_cli", "-o", "m.taper"], 1, "'models_of_cli': expected MODULE:NAME"),
        (
            ["weights.pth", "-o", "m.taper"],
            1,
            "it is a state dict of 1 tensors, which has no model",
        ),
        (["none_of_cli:make", "-o", "m.taper"], 1, "No module named 'none_of_cli'"),
        (["models_of_cli:broken", "-o", "m.taper"], 1, "special_bessel_j0"),
        (["models_of_cli:make", "-o", "none/m.taper"], 1, "none/"),
        (["models_of_cli:make", "-o", "."], 1, "expected a regular file or none to replace"),
        (["models_of_cli:make", "--args", "models_of_cli:dim", "-o", "m"], 1, "no attribute 'dim'"),
        (["models_of_cli:make"], 2, "one of the arguments -o/--output --explain is required"),
        (["models_of_cli:make", "-o", "m.taper", "--dtype", "int8"], 2, "invalid choice: 'int8'"),
    ],
)
def test_mistakes_are_named(arguments, code, message, taper):
    torch.save({"weight": torch.ones(2)}, "weights.pth")
    got, _, err = taper("export", *arguments)
    assert got == code
    assert message in err
    assert "Traceback" not in err
    assert not os.path.exists("m.taper")


@pytest.mark.parametrize("name", ["export", "export-decoder"])
def test_page_has_every_option(name):
    rows = re.findall(r"^\| \[`taper ([\w-]+)`\].* \| (.*) \|", PAGE, re.M)
    assert (name, command_parser(name).description) in rows
    flags = {flag for action in command_parser(name)._actions for flag in action.option_strings}
    table = " ".join(re.findall(r"^\| (`-.*?) \|", section(name), re.M))
    stated = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", table))
    assert stated | {"-h", "--help", "--json"} == flags
    for action in command_parser(name)._actions:
        assert all(f"`{choice}`" in section(name) for choice in action.choices or ())


def test_export_decoder_passes_its_options(taper, monkeypatch):
    given = []

    def export_decoder(model, **options):
        given.append((type(model).__name__, options))
        return small_plan()

    monkeypatch.setattr(taper_frontend, "export_decoder", export_decoder, raising=False)
    options = ["--max-context", "32", "--max-source", "8", "--quantize", "int8"]
    options += ["--no-verify", "--quiet", "--cache-dtype", "float16", "--window-room", "9"]
    code, out, _ = taper("export-decoder", "models_of_cli:decoder", "-o", "m.taper", *options)
    assert code == 0
    assert "m.taper" in out
    expected = {
        "max_context": 32,
        "max_source": 8,
        "cache_dtype": "float16",
        "window_room": 9,
        "quantize": "int8",
        "progress": False,
        "verify": False,
    }
    assert given == [("Model", expected)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["models_of_cli:decoder", "--max-context", "8"], 1, "expected a model of transformers, w"),
        (["models_of_cli:decoder", "--max-context", "0"], 2, "--max-context"),
        (["models_of_cli:decoder", "--max-context", "8", "--max-source", "0"], 2, "--max-source"),
        (["models_of_cli:decoder"], 2, "required: --max-context"),
        (["models_of_cli:nothing", "--max-context", "8"], 1, "has no attribute 'nothing'"),
    ],
)
def test_mistakes_of_export_decoder_are_named(arguments, code, message, taper):
    got, _, err = taper("export-decoder", *arguments, "-o", "m.taper")
    assert (got, message in err) == (code, True), err
    assert not os.path.exists("m.taper")


def test_dynamic_shapes_of_a_function(taper):
    options = ["--dynamic", "models_of_cli:dims"]
    code, out, _ = taper("export", "models_of_cli:make", "-o", "m.taper", *options)
    assert code == 0
    assert "size    batch: 0 to 64" in out
    assert taper_runtime.load("m.taper").sizes == {"batch": (0, 64)}
    code, out, _ = taper("export", "models_of_cli:make", "--explain", *options)
    assert (code, "(100.0%)" in out) == (0, True)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], {}),
        (["--dynamic", "x=0:batch,1:length"], {"dynamic_axes": {"x": {0: "batch", 1: "length"}}}),
        (
            ["--dynamic", "x=0:batch,1", "--dynamic", "rows=0:batch"],
            {"dynamic_axes": {"x": {0: "batch", 1: Dim.AUTO}, "rows": {0: "batch"}}},
        ),
        (
            ["--dynamic", '{"x": {"0": "batch"}, "rows": [0]}'],
            {"dynamic_axes": {"x": {0: "batch"}, "rows": [0]}},
        ),
        (["--input-names", "a,b"], {"input_names": ["a", "b"]}),
        (["--output-names", "c"], {"output_names": ["c"]}),
        (["--trace", "t.html"], {"trace": Path("t.html")}),
        (["--weights", "replaceable"], {"weights": "replaceable"}),
    ],
)
def test_options_are_those_of_python(options, wanted, taper, monkeypatch):
    seen = []

    def export(module, args, kwargs, *, model, progress, **given):
        seen.append(given)
        return small_plan()

    monkeypatch.setattr(taper_frontend, "export", export, raising=False)
    code, _, err = taper("export", "models_of_cli:make", "-o", "m.taper", *options)
    assert code == 0, err
    assert seen == [wanted]


@pytest.mark.parametrize("options", [[], ["--quiet"]])
def test_progress_is_shown_unless_it_is_to_be_quiet(options, taper, monkeypatch):
    seen = []

    def export(module, args, kwargs, *, progress, **given):
        seen.append(progress)
        return small_plan()

    monkeypatch.setattr(taper_frontend, "export", export, raising=False)
    code, _, err = taper("export", "models_of_cli:make", "-o", "m.taper", *options)
    assert code == 0, err
    assert seen == [not options]


def test_a_trace_is_of_an_export(taper):
    options = ["--explain", "--trace", "t.html"]
    code, _, err = taper("export", "models_of_cli:make", *options)
    assert code == 1
    assert "--trace: expected an export" in err
    code, _, err = taper("export", "models_of_cli:make", "-o", "m.taper", "--trace", "t.txt")
    assert code == 1
    assert "trace: expected a path that ends in .html or .json, got 't.txt'" in err
    assert not Path("m.taper").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=", "got ''"),
        ("x=first", "expected NAME=AXIS[:SIZE],... got 'first'"),
        ("x=0:", "got '0:'"),
        ("x=-1", "got '-1'"),
        ("=0", "got '0'"),
        (f"x={'9' * 5000}", "expected NAME=AXIS"),
        ("{", "expected JSON as in"),
        ('{"x": 5}', "expected JSON as in"),
        ('{"x": {"a": "b"}}', "expected JSON as in"),
        ("models_of_cli", "expected MODULE:NAME"),
        ("models_of_cli:nothing", "has no attribute 'nothing'"),
    ],
)
def test_mistakes_of_dynamic(text, message, taper):
    code, _, err = taper("export", "models_of_cli:make", "-o", "m.taper", "--dynamic", text)
    assert code == 1
    assert message in err
    assert err.startswith("taper: ")


def test_dtype_casts_the_module_and_its_floats(taper):
    code, _, err = taper("export", "models_of_cli:make", "-o", "m.taper", "--dtype", "bfloat16")
    assert code == 0, err
    plan = taper_runtime.load("m.taper")
    assert [plan.tensors[name].dtype for name in plan.inputs] == ["bfloat16", "int64"]
    assert [plan.tensors[name].dtype for name in plan.outputs] == ["bfloat16", "int64"]
    code, _, err = taper("export", "models_of_cli:program", "-o", "m.taper", "--dtype", "float16")
    assert (code, "--dtype: expected a module" in err) == (1, True)


def test_no_verify(taper):
    for options, verified in ([], True), (["--no-verify"], False):
        assert taper("export", "models_of_cli:make", "-o", "m.taper", *options)[0] == 0
        assert ("verified" in taper_runtime.load("m.taper").metadata) == verified


def write_checkpoint(path):
    torch.save({"w": torch.ones(2)}, path)


def write_old_checkpoint(path):
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)


def write_program(path):
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path)


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (write_checkpoint, r"a PyTorch file \(.pt, .pth, .pt2\)"),
        (write_old_checkpoint, r"a PyTorch checkpoint \(.pt, .pth\)"),
        (write_program, r"a PyTorch file \(.pt, .pth, .pt2\)"),
    ],
)
def test_files_of_torch_are_named(write, kind, tmp_path):
    write(tmp_path / "m.pt2")
    with pytest.raises(PlanFormatError, match=f"m.pt2: .* got {kind}"):
        taper_runtime.load(tmp_path / "m.pt2")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_terminals_alone(terminal, tmp_path):
    small_plan().save(tmp_path / "m.taper")
    command = [
        sys.executable,
        "-m",
        "taper_runtime.cli",
        "bench",
        "m.taper",
        "--runs",
        "3",
        "--json",
    ]
    ours, theirs = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    out, _ = process.communicate()
    shown = b""
    while chunk := read_some(ours):
        shown += chunk
    os.close(ours)
    check_json(schema("bench"), json.loads(out))
    assert (b"bench" in shown) == terminal
    assert process.returncode == 0


def read_some(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # a terminal without the other end
        return b""
