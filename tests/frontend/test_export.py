"""Test the frontend's entry point: arguments, pipeline, verification, report, command line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import taper_frontend
import taper_openinfer
import taper_runtime
from marks import STATE
from models import Block, seeded
from taper_frontend.compiler.stages import PIPELINE, STAGES
from taper_frontend.errors import ExportError
from taper_frontend.export_progress import STEPS
from taper_runtime.cli import main
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.reports.report import describe_plan


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, batch, *, shift=None, power=2):
        y = batch["x"] ** power * self.weight
        return {"y": y if shift is None else y + shift, "pair": (y, batch["x"])}


ARGS = ({"x": torch.arange(6.0).reshape(2, 3)},)


def run(plan, *arrays):
    session = taper_runtime.InferenceSession(plan)
    return session.run(None, dict(zip(plan.inputs, arrays, strict=True)))


def test_nested_arguments_flatten_in_order():
    shift = torch.ones(3)
    with pytest.warns(taper_frontend.ExportWarning, match="1 argument is not a tensor.*power=3"):
        plan = taper_frontend.export(Scale().eval(), ARGS, {"shift": shift, "power": 3})
    assert len(plan.inputs) == 2
    x = ARGS[0]["x"].numpy()
    y, first, second = run(plan, x, shift.numpy())
    np.testing.assert_allclose(y, x**3 * [1, 2, 3] + 1, rtol=1e-6)
    np.testing.assert_allclose(first, x**3 * [1, 2, 3], rtol=1e-6)
    np.testing.assert_array_equal(second, x)


def test_any_pipeline_may_return_an_input():
    plan = taper_frontend.export(Scale().eval(), ARGS, passes=())
    assert run(plan, ARGS[0]["x"].numpy())[2].shape == (2, 3)


def test_structure_is_kept_in_the_plan(tmp_path):
    plan = taper_frontend.export(Scale().eval(), ARGS)
    plan.save(tmp_path / "m.taper")
    loaded = taper_runtime.load(tmp_path / "m.taper")
    kind, items = loaded.output_tree
    assert kind == "dict"
    assert [key for key, _ in items] == ["y", "pair"]
    names = [items[0][1][1], *[leaf[1] for leaf in items[1][1][1]]]
    assert names == list(loaded.outputs)


@pytest.mark.parametrize("kind", ["program", "file"])
def test_programs_and_files_export_alike(kind, tmp_path):
    module = seeded(lambda: Block(32, "sdpa", causal=False))
    args = (torch.randn(1, 8, 32),)
    program = torch.export.export(module, args)
    if kind == "file":
        torch.export.save(program, tmp_path / "m.pt2")
        program = tmp_path / "m.pt2"
    plan = taper_frontend.export(program)
    assert plan.metadata["verified"]["relative_error"] < 1e-5


def test_users_pass_runs_in_the_pipeline():
    seen = []

    def count_nodes(graph):
        seen.append(len(graph.nodes))
        return False

    taper_frontend.export(Scale().eval(), ARGS, passes=[count_nodes, *PIPELINE, count_nodes])
    assert len(seen) == 2
    assert seen[1] <= seen[0]


@pytest.mark.parametrize("factor", [2.0, np.inf, np.nan])
def test_wrong_pass_is_caught_by_verification(factor):
    def scale_everything(graph):
        (output, *_) = graph.outputs
        scaled = graph.add_node("MUL", [output], {"scalar": factor, "scalar_index": 1})
        graph.set_outputs([scaled, *graph.outputs[1:]])
        return True

    module, args = Scale().eval(), ARGS
    with pytest.raises(taper_frontend.VerificationError, match="differs from the module's"):
        taper_frontend.export(module, args, passes=[scale_everything, *PIPELINE])
    plan = taper_frontend.export(module, args, passes=[scale_everything, *PIPELINE], verify=False)
    assert "verified" not in plan.metadata


def test_module_is_left_as_it_was():
    module = Scale()
    assert module.training
    before = {name: value.clone() for name, value in module.state_dict().items()}
    taper_frontend.export(module, ARGS)
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_report_stands_in_the_plan():
    module = seeded(lambda: Block(32, "manual", causal=True))
    plan = taper_frontend.export(module, (torch.randn(1, 8, 32),))
    metadata = plan.metadata
    assert metadata["nodes_lowered"] == metadata["passes"][0]["before"]
    assert {"name", "before", "after"} == set(metadata["passes"][0])
    memory = memory_use(plan)
    assert memory.lower_bound <= memory.arena <= memory.intermediates + (1 << 20)
    assert metadata["fallbacks"] == []
    assert metadata["verified"]["max_error"] < 1e-4


def test_texts_of_the_maker_are_kept_apart_from_the_report(tmp_path):
    texts = {"character": "a\nb\n\u00e9", "producer": "me"}
    x = torch.ones(2)
    plan = taper_frontend.export(torch.nn.ReLU(), (x,), metadata=texts)
    plan.save(tmp_path / "m.taper")
    meta = taper_runtime.InferenceSession(tmp_path / "m.taper").get_modelmeta()
    assert meta.custom_metadata_map == texts
    assert meta.producer_name.startswith("taper_frontend ")
    plain = taper_frontend.export(torch.nn.ReLU(), (x,))
    assert plan.metadata == {**plain.metadata, "user": texts}


@pytest.mark.parametrize("metadata", [{"version": 3}, {3: "a"}])
def test_metadata_that_is_no_text_is_refused(metadata):
    with pytest.raises(taper_frontend.ExportError, match="metadata: expected a dict of strings"):
        taper_frontend.export(torch.nn.ReLU(), (torch.ones(2),), metadata=metadata)


def test_versions_agree():
    root = Path(__file__).parents[2]
    version = f"version: '{taper_runtime.__version__}'"
    for path in ("meson.build", "packages/kernels/meson.build", "packages/runtime/meson.build"):
        assert version in (root / path).read_text().partition("\n\n")[0] + (root / path).read_text()
    for package in ("frontend", "openinfer"):
        pyproject = (root / "packages" / package / "pyproject.toml").read_text()
        assert f'version = "{taper_runtime.__version__}"' in pyproject
        assert f"taper-runtime=={taper_runtime.__version__}" in pyproject
    assert f"taper-frontend=={taper_frontend.__version__}" in pyproject
    assert taper_frontend.__version__ == taper_runtime.__version__
    assert taper_openinfer.__version__ == taper_runtime.__version__


@STATE
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("name", ["__metadata__", "sample/x"])
def test_buffers_may_have_names_that_the_file_keeps_for_itself(name, written, tmp_path):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer(name, torch.ones(3))

        def forward(self, x):
            buffer = self._buffers[name]
            return x + (buffer.add_(1) if written else buffer)

    plan = taper_frontend.export(Named(), (torch.ones(3),))
    plan.save(tmp_path / "named.taper")
    (got,) = run(taper_runtime.load(tmp_path / "named.taper"), np.ones(3, np.float32))
    np.testing.assert_array_equal(got, np.full(3, 3.0 if written else 2.0, np.float32))


@pytest.mark.parametrize("depth", [40, 60])
def test_arguments_that_nest_too_deeply_are_an_export_error(depth, tmp_path):
    class Unpacks(torch.nn.Module):
        def forward(self, x):
            while isinstance(x, list):
                (x,) = x
            return x + 1

    x = torch.ones(3)
    for _ in range(depth):
        x = [x]
    if depth == 60:
        with pytest.raises(ExportError, match="expected at most 100 levels of nesting"):
            taper_frontend.export(Unpacks(), (x,))
    else:
        taper_frontend.export(Unpacks(), (x,)).save(tmp_path / "deep.taper")


def test_halves_given_floats_are_an_export_error():
    with pytest.raises(ExportError, match=r"cannot run its example arguments.*float32\[2, 4\]"):
        taper_frontend.export(torch.nn.Linear(4, 3).half(), (torch.ones(2, 4),))


FACTORY = """
import torch

def make():
    return torch.nn.Linear(4, 3).eval()

def args():
    return (torch.ones(2, 4),)

def both():
    return make(), args()
"""


def test_command_line_from_export_to_output(tmp_path, monkeypatch, capsys):
    """Export in a process of its own; other verbs as processes are the runtime's tests."""
    (tmp_path / "zoo.py").write_text(FACTORY)
    export = ("export", "zoo:make", "--args", "zoo:args", "-o", "m.taper")
    result = subprocess.run(
        [sys.executable, "-m", "taper_runtime.cli", *export],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "every node has a native kernel" in result.stdout
    assert "verified on 3 inputs" in result.stdout

    monkeypatch.chdir(tmp_path)

    def printed(*arguments):
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    assert "MATMUL" in printed("inspect", "m.taper")
    np.save("x.npy", np.ones((2, 4), np.float32))
    name = taper_runtime.load("m.taper").inputs[0]
    printed("run", "m.taper", "--input", f"{name}=x.npy", "--output", "out.npz")
    with np.load("out.npz") as outputs:
        assert [outputs[key].shape for key in outputs] == [(2, 3)]
    printed("bench", "m.taper", "--runs", 3)
    assert "f32_matmul" in printed("profile", "m.taper", "--runs", 3, "--trace", "trace.json")
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_report_names_what_only_moves_values():
    x = torch.randn(1, 3, 6, 5)
    plan = taper_frontend.export(torch.nn.Conv2d(3, 4, 3).eval(), (x,), verify=False)
    text = describe_plan(plan, nodes=False)
    assert "2 nodes that only move values" in text
    assert "PERMUTE, input to CONV, 0.4 kB" in text
    assert "PERMUTE, CONV to output, 0.2 kB" in text


def test_progress_names_every_step_and_every_pass(monkeypatch):
    told, shown = [], []
    model, args = torch.nn.Linear(4, 3).eval(), (torch.ones(2, 4),)
    plan = taper_frontend.export(model, args, progress=told.append)
    assert list(dict.fromkeys(name.partition(":")[0] for name in told)) == list(STEPS)
    passes = [name.split(": ")[1:] for name in told if ":" in name]
    assert list(dict.fromkeys(at[0] for at in passes if len(at) > 1)) == [s.name for s in STAGES]
    assert {at[0] for at in passes if len(at) == 1} == {"keep_unfused", "materialize_outputs"}
    changed = {each["name"] for each in plan.metadata["passes"]}
    assert changed <= {at[-1] for at in passes}
    monkeypatch.setattr("rich.progress.Progress.update", lambda *_, **to: shown.append(to))
    taper_frontend.export(model, args, progress=True)
    assert [to["description"] for to in shown] == [f"export: {name}" for name in told]
    assert sorted({to["completed"] for to in shown}) == list(range(len(STEPS)))
