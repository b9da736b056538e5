"""The measuring scripts: who is timed, what is said of the others, what becomes of the page."""

import os
import signal

import numpy as np
import pytest
import torch
from peers import ablation, compare, memory, scaling, turns
from peers.cases import SETS
from peers.engines import ENGINES
from peers.page import cpu_name, write_section

import taper_frontend
from models import linear
from taper_runtime.machine import Limits, Memory

LIMITS = Limits("any", 1, 100.0, 0.0, (Memory("DRAM", 0, 10.0, 10.0),))


@pytest.fixture
def engines(monkeypatch):
    """Taper and torch eager, a liar and a mule, with one small model."""

    def mule(module, args, plan, threads):
        raise ValueError("not | today")

    for name in set(ENGINES) - {"taper", "torch eager"}:
        monkeypatch.delitem(ENGINES, name)
    monkeypatch.setitem(ENGINES, "liar", lambda m, a, *_: lambda: 1.001 * m(*a).numpy())
    monkeypatch.setitem(ENGINES, "mule", mule)
    monkeypatch.setitem(SETS, "mlp", {"tiny": lambda: linear(2, 4, 3)})


@pytest.mark.usefixtures("engines")
def test_only_who_is_right_is_timed():
    row, notes = compare.compare("mlp", "tiny", LIMITS, 0.0)
    name, taper, eager, liar, mule, ratio, share = row.strip("| ").split(" | ")
    assert (name, liar, mule) == ("tiny", "-", "-")
    ours, theirs = (float(cell.split(" / ")[1]) for cell in (taper, eager))
    half = 5e-4  # of the last digit shown
    assert (theirs - half) / (ours + half) - 0.01 <= float(ratio)
    assert float(ratio) <= (theirs + half) / max(ours - half, 1e-9) + 0.01
    assert share.endswith("%")
    assert notes[0].startswith("tiny: liar is wrong: relative difference 1.0e-03")
    assert notes[1] == "tiny: mule refuses: ValueError: not / today"


@pytest.mark.usefixtures("engines")
def test_a_result_of_another_shape_is_wrong(monkeypatch):
    monkeypatch.setitem(ENGINES, "liar", lambda m, a, *_: lambda: m(*a).numpy()[:0])
    _, notes = compare.compare("mlp", "tiny", LIMITS, 0.0)
    assert notes[0] == "tiny: liar is wrong: relative difference inf"


@pytest.mark.usefixtures("engines")
def test_a_model_that_is_not_exported_is_a_row(monkeypatch):
    class Transform(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fft(x).abs()

    monkeypatch.setitem(SETS["mlp"], "fft", lambda: (Transform(), (torch.ones(2, 4),)))
    row, notes = compare.compare("mlp", "fft", LIMITS, 0.0)
    assert row.startswith("| fft | not exported: ")
    assert row.count("|") == len(ENGINES) + 4
    assert not notes


def test_engine_in_a_process_of_its_own(tmp_path):
    """Stopped between its turns, and gone after the last."""
    runner = turns.Apart("torch eager", "mlp", "MLP 1x512", tmp_path / "unused", 1)
    try:
        pid = runner._process.pid
        want = turns.Here("torch eager", "mlp", "MLP 1x512", tmp_path / "unused", 1).output
        np.testing.assert_allclose(runner.output, want, rtol=1e-5, atol=1e-6)
        assert runner.seconds() > 0
        os.waitid(os.P_PID, pid, os.WSTOPPED)
    finally:
        runner.close()
    assert runner._process.exitcode == -signal.SIGKILL
    with pytest.raises(turns.Refused, match="KeyError"):
        turns.Apart("torch eager", "mlp", "no such model", tmp_path, 1)


def test_every_engine_has_its_turn():
    class Count:
        def __init__(self):
            self.runs = 0

        def seconds(self):
            self.runs += 1
            return self.runs

    runners = {"a": Count(), "b": Count()}
    times = turns.take_turns(runners, 0.0, least=4)
    assert times == {"a": [3, 4, 5, 6], "b": [3, 4, 5, 6]}, "two turns warm up"


def test_page_keeps_what_is_not_between_markers(tmp_path):
    page = tmp_path / "page.md"
    write_section("a", "A", "one", page)
    write_section("b", "B", "two", page)
    page.write_text(page.read_text() + "prose\n")
    write_section("a", "A", "three", page)
    text = page.read_text()
    assert "one" not in text
    assert text.count("<!-- on ") == 2
    assert text.index("### A") < text.index("three") < text.index("### B") < text.index("two")
    assert text.endswith("prose\n")
    page.write_text(text.replace(cpu_name(), "another CPU"))
    write_section("a", "A", "four", page)
    text = page.read_text()
    assert "three" in text
    assert "four" in text
    page.write_text("<!-- begin a -->\n")
    with pytest.raises(ValueError, match="without"):
        write_section("a", "A", "five", page)


def test_ablation_says_where_fusion_loses():
    times = {"torch eager": 1.0, "compiled without fusion": 2.0, "compiled with fusion": 3.0}
    assert "M (50%)" in ablation.verdict({"M": times})
    assert "none" in ablation.verdict({"M": times | {"compiled with fusion": 1.0}})


def test_exponents():
    points = [scaling.Point(1, n, n**1.5, 1.0, n / 64, 10) for n in (16, 32, 64)]
    assert scaling.exponent(*points[:2]) == pytest.approx(1.5)
    assert scaling.summary(points).endswith("from length 64 on.")
    assert "stays below half" in scaling.summary(points[:2])


def test_start_is_measured_in_a_process_without_torch(tmp_path):
    module, args = linear(2, 4, 3)
    taper_frontend.export(module, args).save(tmp_path / "model.taper")
    np.savez(tmp_path / "inputs.npz", input0=args[0].numpy())
    seconds, peak = memory.start("taper", tmp_path / "model.taper", tmp_path / "inputs.npz")
    assert seconds > 0
    assert 1e6 < peak < 150e6  # torch alone takes more
