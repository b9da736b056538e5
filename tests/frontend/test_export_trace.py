"""`export(..., trace=)` and TAPER_TRACE: the trace tells of the export that was done."""

import itertools
import json
import re

import pytest
import torch

import taper_frontend
from taper_frontend.capture import capture as capture_module
from taper_frontend.compiler.trace import writing


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.mix(x).transpose(0, 1).transpose(0, 1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Block()

    def forward(self, x):
        return {"scores": self.body(x)}


def export(**options):
    return taper_frontend.export(Model().eval(), (torch.ones(2, 4),), **options)


def final_tensors(trace):
    tensors = dict(trace["lowered"]["tensors"])
    for step in trace["steps"]:
        for name in step["before"]:
            del tensors[name]
        tensors |= step["after"]
    return {name: trace["records"][place] for name, place in tensors.items()}


def test_the_trace_ends_with_the_plan(tmp_path):
    plan = export(trace=tmp_path / "model.json")
    trace = json.loads((tmp_path / "model.json").read_text())
    assert trace["title"] == "Model"
    final = final_tensors(trace)
    nodes = {name: (r["op"], r["inputs"]) for name, r in final.items() if "op" in r}
    assert nodes == {node.output: (node.op, list(node.inputs)) for node in plan.nodes}
    assert {n for n, r in final.items() if r.get("role") == "constant"} == set(plan.constants)
    assert "scores" in nodes, "the outputs have their final names"


def test_steps_have_the_line_and_the_module_of_the_model(tmp_path):
    export(trace=tmp_path / "model.json", verify=False)
    trace = json.loads((tmp_path / "model.json").read_text())
    records = [
        trace["records"][place] for step in trace["steps"] for place in step["before"].values()
    ]
    sources = [trace["sources"][record["source"]] for record in records if "op" in record]
    lines = [line for line, module in sources if module == "body"]
    assert any("test_export_trace.py" in line and "transpose(0, 1)" in line for line in lines)


def test_weights_are_not_in_the_trace(tmp_path):
    module = Model().eval()
    torch.nn.init.constant_(module.body.mix.weight, 0.123456)
    for suffix in ("html", "json"):
        path = tmp_path / f"m.{suffix}"
        taper_frontend.export(module, (torch.ones(2, 4),), trace=path, verify=False)
        assert "0.12345" not in path.read_text()


def test_the_plan_is_the_same(tmp_path):
    torch.manual_seed(0)
    module = Model().eval()
    files = []
    for number, trace in enumerate((None, tmp_path / "trace.html")):
        plan = taper_frontend.export(module, (torch.ones(2, 4),), trace=trace, verify=False)
        files.append(tmp_path / f"{number}.taper")
        plan.save(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_bad_path_is_refused_before_the_module_is_looked_at(tmp_path):
    with pytest.raises(taper_frontend.ExportError, match=r"^trace: expected a path that ends in"):
        taper_frontend.export("no module", trace=tmp_path / "trace.txt")


def test_the_variable_traces_every_export_of_a_process(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_numbers", itertools.count(1))
    monkeypatch.setenv("TAPER_TRACE", str(tmp_path / "out.json"))
    for _ in range(2):
        export(verify=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-2.json", "out.json"]
    monkeypatch.setenv("TAPER_TRACE", "out.txt")
    with pytest.raises(taper_frontend.ExportError, match=r"^TAPER_TRACE: "):
        export()


class Decomposed(torch.nn.Module):
    """A call that stays, one that becomes several, and one that nothing needs."""

    def forward(self, x):
        torch.tanh(x)
        return torch.std(torch.relu(x), -1)


@pytest.mark.parametrize("whole", [False, True])
def test_a_trace_begins_at_what_torch_gave(tmp_path, monkeypatch, whole):
    if whole:  # decomposed by torch, not call by call
        monkeypatch.setattr(capture_module, "decompose_calls", lambda *given: False)
    x = torch.randn(3, 4)
    for suffix in ("json", "html"):
        taper_frontend.export(Decomposed(), (x,), trace=tmp_path / f"t.{suffix}")
    program = json.loads((tmp_path / "t.json").read_text())["program"]
    graph = torch.export.export(Decomposed(), (x,)).graph
    names = [node.name for node in graph.nodes if node.op == "call_function"]
    assert [call["name"] for call in program] == names
    relu, std = (next(c for c in program if c["name"] == name) for name in ("relu", "std"))
    assert [each["call"] for each in relu["became"]] == [relu["call"]] == ["aten.relu.default(x)"]
    assert len(std["became"]) > 1
    assert std["call"].startswith("aten.std.")
    assert not any("aten.std." in each["call"] for each in std["became"])
    assert (std["type"], relu["type"]) == ("float32[3]", "float32[3, 4]")
    assert "test_export_trace.py" in std["source"]
    assert next(c for c in program if c["name"] == "tanh")["became"] == []
    text = (tmp_path / "t.html").read_text()
    (page,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    section = json.loads(page)["sections"][0]
    assert section["title"] == "Program"
    rows = [row for row in section["rows"] if row[1].startswith("std = ")]
    assert [row[2] for row in rows] == [f"{e['name']} = {e['call']}" for e in std["became"]]
