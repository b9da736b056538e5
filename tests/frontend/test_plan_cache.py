"""Plans of earlier exports, and every change after which they are not used."""

import json
import multiprocessing
import os
import shutil

import numpy as np
import pytest
import torch

import taper_frontend
from taper_frontend import ExportError, plan_cache
from taper_frontend.plan_cache import PlanCache
from taper_runtime import InferenceSession
from taper_runtime.cli import main


class Small(torch.nn.Module):
    def __init__(self, bias=0.5, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(width, 4)
        self.bias = bias

    def forward(self, x):
        return torch.relu(self.linear(x)) + self.bias


class Other(Small):
    def forward(self, x):
        return torch.relu(self.linear(x)) - self.bias


X = torch.linspace(-1, 1, 16).reshape(2, 8)


def export(cache, module=None, x=X, verify=False, **options):
    module = (module or Small()).eval()
    return taper_frontend.export(module, (x,), cache=cache, verify=verify, **options)


def report(plan):
    return plan.metadata["cache"]


def test_the_second_export_is_the_first_ones_plan(tmp_path):
    first, second = (export(tmp_path, verify=True) for _ in range(2))
    assert (report(first)["hit"], report(first)["reason"]) == (False, "the cache is empty")
    assert report(second)["hit"]
    assert report(second)["key"] == report(first)["key"]
    assert "saved_s" in report(second)
    without = export(False, verify=True)
    assert "cache" not in without.metadata
    for plan in (first, second):
        rest = {name: value for name, value in plan.metadata.items() if name != "cache"}
        plan._replace(metadata=rest).save(tmp_path / "a.taper")
        without.save(tmp_path / "b.taper")
        assert (tmp_path / "a.taper").read_bytes() == (tmp_path / "b.taper").read_bytes()


def changed_weight():
    module = Small()
    with torch.no_grad():
        module.linear.weight[3, 7] += 1e-3
    return module


MISSES = {
    "graph": lambda folder: export(folder, Other()),
    "weights": lambda folder: export(folder, changed_weight()),
    "samples": lambda folder: export(folder, x=X + 1),
    "options": lambda folder: export(folder, verify="outputs"),
    "metadata": lambda folder: export(folder, metadata={"version": "2"}),
    "packing": lambda folder: export(folder, packing="at_open"),
    "names": lambda folder: export(folder, input_names=["y"]),
    "passes": lambda folder: export(folder, passes=()),
    "quantize": lambda folder: export(folder, quantize="float16"),
    "dynamic": lambda folder: export(folder, dynamic_shapes=({0: "n"},)),
}
#: The part of the key that the reason names, where it is not the name of the case.
PARTS = {"metadata": "options", "packing": "options", "names": "options", "passes": "options"}
PARTS |= {"quantize": "options", "dynamic": "options"}


@pytest.mark.parametrize("change", MISSES)
def test_each_change_misses_with_its_reason(change, tmp_path):
    first = export(tmp_path)
    plan = MISSES[change](tmp_path)
    assert not report(plan)["hit"]
    reason = report(plan)["reason"]
    assert PARTS.get(change, change) in reason.split(":")[0].split(", ")
    assert report(first)["key"][:12] in reason
    assert report(MISSES[change](tmp_path))["hit"]
    assert report(export(tmp_path))["hit"]


@pytest.mark.parametrize("part", ["code", "numpy", "machine", "captured by", "lines"])
def test_another_version_or_machine_misses(part, tmp_path, monkeypatch):
    export(tmp_path)
    parts = plan_cache.graph_parts
    monkeypatch.setattr(plan_cache, "graph_parts", lambda *args: parts(*args) | {part: "other"})
    assert report(export(tmp_path))["reason"].startswith(f"{part}: other than in entry")


@pytest.mark.parametrize("where", [0.001, 0.1, 0.5, 0.9, 1])
def test_a_flipped_byte_is_found(where, tmp_path):
    first = export(tmp_path)
    path = tmp_path / f"{report(first)['key']}.taper"
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    plan = export(tmp_path)
    assert report(plan)["reason"] == "the entry was not usable: a byte of the file has changed"
    assert plan.fingerprint() == first.fingerprint()
    assert report(export(tmp_path))["hit"]


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 10**5, '{"version": 1}', '{"version": 9}'])
def test_damaged_entries_are_made_anew(text, tmp_path):
    key = report(export(tmp_path))["key"]
    (tmp_path / f"{key}.json").write_text(text)
    assert not report(export(tmp_path))["hit"]
    assert report(export(tmp_path))["hit"]


def test_an_entry_under_another_key_is_none(tmp_path):
    key = report(export(tmp_path))["key"]
    other = report(export(tmp_path, Other()))["key"]
    for suffix in (".json", ".taper"):
        shutil.copy(tmp_path / f"{other}{suffix}", tmp_path / f"{key}{suffix}")
    plan = export(tmp_path)
    assert not report(plan)["hit"]
    (y,) = InferenceSession(plan).run(None, {plan.inputs[0]: X.numpy()})
    np.testing.assert_allclose(y, Small()(X).detach(), rtol=1e-5, atol=1e-6)


def test_a_stored_plan_with_other_results_is_made_anew(tmp_path):
    """Of an entry that was replaced as a whole, only its results tell."""
    key = report(export(tmp_path, verify="outputs"))["key"]
    other = export(False, Other())
    cache, entry = PlanCache(tmp_path), PlanCache(tmp_path).find(key)
    cache._store(key, entry.parts, other, 1.0)
    plan = export(tmp_path, verify="outputs")
    assert "not usable" in report(plan)["reason"]
    assert plan.fingerprint() != other.fingerprint()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    plan = export(tmp_path / "file" / "cache")
    assert not report(plan)["hit"]
    assert "Not a directory" in report(plan)["not_stored"]


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("taper_runtime.file.writer.replace_file", full)
    assert "No space left" in report(export(tmp_path))["not_stored"]
    monkeypatch.undo()
    assert not report(export(tmp_path))["hit"]
    assert report(export(tmp_path))["hit"]


def test_the_entry_used_longest_ago_goes_first(tmp_path):
    keys = [report(export(tmp_path, Small(bias)))["key"] for bias in (1.0, 2.0, 3.0)]
    for age, key in enumerate(keys):
        os.utime(tmp_path / f"{key}.taper", (1000 + age, 1000 + age))
    assert report(export(tmp_path, Small(1.0)))["hit"]  # is now the last one used
    cache = PlanCache(tmp_path)
    size = cache.find(keys[0]).nbytes
    assert cache.prune(2 * size + size // 2) == [keys[1]]
    assert [entry.key for entry in cache.entries()] == [keys[0], keys[2]]
    assert cache.prune(0) == [keys[2], keys[0]] or not cache.entries()


def test_a_plan_larger_than_the_limit_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(PlanCache.__init__, "__defaults__", (100,))
    assert "more than the limit of 100" in report(export(tmp_path))["not_stored"]
    assert list(tmp_path.iterdir()) == []


def write_in_turn(folder, bias):
    torch.set_num_threads(1)
    for _ in range(3):
        plan = export(folder, Small(bias))
        (y,) = InferenceSession(plan).run(None, {plan.inputs[0]: X.numpy()})
        np.testing.assert_allclose(y, Small(bias)(X).detach(), rtol=1e-5, atol=1e-6)


def test_four_writers(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=write_in_turn, args=(tmp_path, bias))
        for bias in (1.0, 1.0, 2.0, 2.0)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(PlanCache(tmp_path).entries()) == 2
    assert report(export(tmp_path, Small(2.0)))["hit"]


def test_what_has_no_name_is_not_kept(tmp_path):
    plan = export(tmp_path, passes=[lambda graph: False])
    assert report(plan)["reason"].startswith("no key: passes: expected")
    plan = export(tmp_path, trace=tmp_path / "t.json")
    assert report(plan)["reason"].startswith("no key: trace: expected")
    assert PlanCache(tmp_path).entries() == []


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPER_CACHE_DIR", str(tmp_path))
    assert not report(export(None))["hit"]
    assert report(export(None))["hit"]
    assert "cache" not in export(False).metadata


@pytest.mark.parametrize("cache", [True, 3, "", b""])
def test_wrong_folders(cache):
    with pytest.raises(ExportError, match="cache: expected a folder"):
        export(cache)


def test_an_archive_is_known_by_its_bytes(tmp_path):
    path = tmp_path / "model.pt2"
    folder = tmp_path / "cache"
    torch.export.save(torch.export.export(Small().eval(), (X,)), path)
    first = taper_frontend.export(path, cache=folder)
    assert set(PlanCache(folder).entries()[0].parts) >= {"file", "options", "code"}
    second = taper_frontend.export(str(path), cache=folder)
    assert report(second)["hit"]
    assert second.fingerprint() == first.fingerprint()
    torch.export.save(torch.export.export(changed_weight().eval(), (X,)), path)
    third = taper_frontend.export(path, cache=folder)
    assert "file: other than" in report(third)["reason"]
    assert third.fingerprint() != first.fingerprint()


def test_a_program_is_known_by_the_bytes_of_its_archive(tmp_path, monkeypatch):
    def program(module=None):
        return torch.export.export((module or Small()).eval(), (X,))

    first = taper_frontend.export(program(), cache=tmp_path)
    assert set(PlanCache(tmp_path).entries()[0].parts) >= {"file", "options", "code"}
    with monkeypatch.context() as patch:
        patch.setattr("taper_frontend.exporter._export", pytest.fail)  # nothing is captured
        second = taper_frontend.export(program(), cache=tmp_path)
    assert report(second)["hit"]
    assert second.fingerprint() == first.fingerprint()
    third = taper_frontend.export(program(changed_weight()), cache=tmp_path)
    assert "file: other than" in report(third)["reason"]
    other = taper_frontend.export(program(Other()), cache=tmp_path)
    assert not report(other)["hit"]

    def broken(program, file):
        raise RuntimeError("a program that cannot be saved")

    monkeypatch.setattr(torch.export, "save", broken)
    again = taper_frontend.export(program(), cache=tmp_path)
    assert "graph" in report(again)["reason"] or report(again)["hit"]


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TAPER_CACHE_DIR", str(tmp_path))
    keys = [report(export(None, module))["key"] for module in (Small(), changed_weight())]
    assert main(["cache", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {entry["key"] for entry in data["entries"]} == {*keys}
    assert main(["cache", "list"]) == 0
    assert "2 plans" in capsys.readouterr().out
    assert main(["cache", "why", keys[0][:9]]) == 0
    assert f"{keys[1][:12]} differs in weights" in capsys.readouterr().out
    assert main(["cache", "why", "zz"]) != 0
    assert "expected the beginning of one of" in capsys.readouterr().err
    assert main(["cache", "prune", "--bytes", "0"]) == 0
    assert "deleted 2 plans" in capsys.readouterr().out
    monkeypatch.delenv("TAPER_CACHE_DIR")
    assert main(["cache", "list"]) != 0
    assert "TAPER_CACHE_DIR is not set" in capsys.readouterr().err
