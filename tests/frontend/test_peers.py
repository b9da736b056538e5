"""Test the measuring scripts: the engines they time, their notes, the page they write."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch

import taper_frontend
from marks import LARGER
from models import linear
from taper_runtime.machine.limits import MachineLimits, Memory
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType
from tools.peers import ablation, compare, forms, memory, ops, scaling, tuned, turns
from tools.peers.cases import DRAWN, SETS, newcomer
from tools.peers.engines import ENGINES, at_most
from tools.peers.old_forms import old_form, old_forms
from tools.peers.op_cases import cases
from tools.peers.op_cases.case import Case, drawn
from tools.peers.op_cases.reasons import NOT_TIMED, REASONS
from tools.peers.page import cpu_name, write_section
from tools.zoo.architecture import Architecture
from tools.zoo.newcomers import NEWCOMERS

LIMITS = MachineLimits("any", 1, 100.0, 0.0, (Memory("DRAM", 0, 10.0, 10.0),))


@pytest.fixture
def engines(monkeypatch):
    """Taper and torch eager, a liar and a mule, with one small model."""

    def mule(module, args, plan, threads):
        raise ValueError("\x1b[96mnot\x1b[0m | today")

    for name in set(ENGINES) - {"taper", "torch eager"}:
        monkeypatch.delitem(ENGINES, name)
    monkeypatch.setitem(ENGINES, "liar", lambda m, a, *_: lambda: 1.001 * m(*a).numpy())
    monkeypatch.setitem(ENGINES, "mule", mule)
    monkeypatch.setitem(SETS, "mlp", {"tiny": lambda: linear(2, 4, 3)})


@pytest.mark.usefixtures("engines")
def test_only_who_is_right_is_timed():
    row, notes = compare.compare("mlp", "tiny", LIMITS, 0.0)
    name, taper, eager, liar, mule, ratio, paired, share = row.strip("| ").split(" | ")
    assert (name, liar, mule) == ("tiny", "-", "-")
    ours, theirs = (float(cell.split(" / ")[1]) for cell in (taper, eager))
    half = 5e-4  # of the last digit shown
    assert (theirs - half) / (ours + half) - 0.01 <= float(ratio)
    assert float(ratio) <= (theirs + half) / max(ours - half, 1e-9) + 0.01
    middle, low, _, high = paired.replace("(", "").replace(")", "").split()
    assert float(low) <= float(middle) <= float(high)
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
    class Bessel(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    monkeypatch.setitem(SETS["mlp"], "bessel", lambda: (Bessel(), (torch.ones(2, 4),)))
    row, notes = compare.compare("mlp", "bessel", LIMITS, 0.0)
    assert row.startswith("| bessel | not exported: ")
    assert row.count("|") == len(ENGINES) + 5
    assert not notes


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(("slower", "noted"), [(1.0, False), (1.2, True)])
def test_a_model_that_is_behind_gets_a_line(monkeypatch, slower, noted):
    """Also with a noise that both meet, ten times what Taper loses."""
    noise = [1 + 2 * random.Random(i).random() for i in range(40)]
    times = {"torch eager": noise, "taper": [slower * seconds for seconds in noise]}
    monkeypatch.setattr(compare, "take_turns", lambda runners, seconds: times)
    row, notes = compare.compare("mlp", "tiny", LIMITS, 0.0)
    assert f"| {1 / slower:.2f} ({1 / slower:.2f} to {1 / slower:.2f}) |" in row
    behind = [note for note in notes if note.startswith("tiny: torch eager is faster")]
    assert len(behind) == noted


@pytest.mark.usefixtures("engines")
def test_an_engine_that_a_set_leaves_out_has_no_column(monkeypatch):
    monkeypatch.setitem(compare.LEFT_OUT, "mlp", {"liar", "mule"})
    row, notes = compare.compare("mlp", "tiny", LIMITS, 0.0)
    assert row.count("|") == 7  # model, taper, torch eager, ratio, paired, roofline
    assert not notes


def test_interval_covers_the_median():
    """95 of 100 intervals of a known distribution cover its median, within 3 deviations."""
    draw = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        middle, low, high = turns.paired_ratios([1.0] * 50, list(draw.lognormal(0, 0.2, 50)))
        assert low <= middle <= high
        covered += low <= 1.0 <= high
    assert covered / 200 >= 0.95 - 3 * (0.95 * 0.05 / 200) ** 0.5


def test_newcomers_are_drawn_from_their_list():
    assert list(SETS["newcomers"]) == DRAWN == random.Random(13).sample(list(NEWCOMERS), 40)
    assert len(set(DRAWN)) == 40


def test_a_newcomer_is_called_without_names():
    class Named(torch.nn.Module):
        def forward(self, *, a, b):
            return {"sum": a + b, "none": None, "rest": (a - b,)}

    inputs = {"b": torch.ones(2), "a": torch.full((2,), 3.0)}
    module, args = newcomer(Architecture(Named, lambda module: inputs))
    total, rest = module(*args)
    assert total.tolist() == [4, 4]
    assert rest.tolist() == [2, 2]
    assert not module.training
    program = torch.export.export(module, args)
    assert len(program.graph_signature.user_outputs) == 2


def test_the_clock_ends_what_takes_too_long():
    """Also where the block swallows or wraps errors; what the clock did before comes back."""
    before = signal.getsignal(signal.SIGALRM)

    def stubborn():
        try:
            time.sleep(30)
        except Exception:
            time.sleep(30)

    with pytest.raises(TimeoutError, match=r"it takes more than 0\.05 s"), at_most(0.05, "it"):
        stubborn()

    def wrapping():
        try:
            time.sleep(30)
        except BaseException as error:
            raise RuntimeError("of another kind") from error

    with pytest.raises(TimeoutError, match="it takes more"), at_most(0.05, "it"):
        wrapping()
    with pytest.raises(KeyError), at_most(30, "it"):
        raise KeyError
    with at_most(30, "nothing"):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_engine_in_a_process_of_its_own(tmp_path):
    """Stopped between its turns, and gone after the last."""
    runner = turns.Apart(turns.Here, "torch eager", "mlp", "MLP 1x512", tmp_path / "unused", 1)
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
        turns.Apart(turns.Here, "torch eager", "mlp", "no such model", tmp_path, 1)


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


def test_every_op_is_timed_or_has_a_reason_why_not():
    timed = {case.op for case in cases()} - {""}
    assert timed | NOT_TIMED.keys() == REGISTRY.keys()
    assert not timed & NOT_TIMED.keys()


def test_every_reason_is_of_a_case_and_is_stale_where_none_is_slow():
    assert {ops.pattern_for(case) for case in cases()} - {None} == REASONS.keys()
    (case,) = [case for case in cases() if (case.op, case.call) == ("CUMMAX", "float32, dim 1")]
    assert ops.stale_reasons([case], [case]) == []
    assert ops.stale_reasons([], [case]) == [ops.pattern_for(case)]


def test_a_slow_op_shows_unless_a_call_explains_it(monkeypatch):
    monkeypatch.setattr(ops, "REASONS", {})
    case = Case("ADD", "float32", drawn(torch.add, "float32", "float32"), ((8,),))
    assert ops.judge(case, (8,), 0.001).ratio > 0
    assert ops.row_of(case, [ops.Timing(2e-6, 1e-6, False)]).endswith("| 0.50 | a call |")
    assert ops.row_of(case, [ops.Timing(2e-3, 1e-3, True)]).endswith("| 0.50* |  |")
    assert ops.Timing(2e-3, 1e-3, True).is_slow
    with pytest.raises(ValueError, match="expected the op, got"):
        ops.judge(case._replace(op="MUL"), (8,), 0.001)


@pytest.mark.parametrize(
    ("ours", "ratio"), [([2e-3, 1e-3, 4e-3], 0.5), ([2e-3, 1e-3, 1e-3], 1), ([1e-3], 1)]
)
def test_the_median_of_three_times_judges_a_slow_op(monkeypatch, ours, ratio):
    timings = iter(ours)
    monkeypatch.setattr(ops, "measure", lambda *_: ops.Timing(next(timings), 1e-3, False))
    case = Case("ADD", "float32", drawn(torch.add, "float32", "float32"), ((8,),))
    assert ops.judge(case, (8,), 0.001).ratio == pytest.approx(ratio)
    assert list(timings) == []


@pytest.mark.parametrize(
    ("channels", "size", "tile"),
    # as measured at a2ddc4c1, whose choice lost against other forms
    [(512, 7, 0), (96, 7, 0), (128, 14, 2), (256, 14, 2), (192, 13, 2), (64, 14, 2)],
)
def test_old_forms_are_those_of_the_old_commit(channels, size, tile):
    x = TensorType("float32", (1, size, size, channels))
    weight = TensorType("float32", (3, 3, channels, channels))
    bias = TensorType("float32", (channels,))
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    conv = REGISTRY["CONV"]
    assert old_form(conv, [x, weight, bias], x, conv.complete(attrs)) == tile


@LARGER
@pytest.mark.parametrize(
    ("channels", "size", "expected"),
    [(128, 14, ("winograd.2", "winograd.4")), (96, 7, ("grouped_panels.1", "winograd.2"))],
)
def test_old_forms_are_counted_where_they_differ(channels, size, expected):
    layers = torch.nn.Sequential(torch.nn.Conv2d(channels, channels, 3, padding=1)).eval()
    image = torch.zeros(1, channels, size, size)
    with old_forms():
        old = taper_frontend.export(layers, (image,), verify=False)
    formats = [tuned.formats_of(each) for each in (old, taper_frontend.export(layers, (image,)))]
    names = formats[0].keys() & formats[1].keys()
    assert names == formats[0].keys() == formats[1].keys()
    different = [tuple(each[name] for each in formats) for name in names]
    assert [each for each in different if len({*each}) > 1] == [expected]


def test_each_way_of_a_convolution_is_timed(monkeypatch):
    """Nodes of equal sizes are joined, and every way of them gets a time and a row."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Conv2d(48, 48, 3, padding=1) for _ in range(2)))
    image = torch.randn(1, 48, 12, 12)
    plan = taper_frontend.export(layers.eval(), (image,), verify=False, packing="at_open")
    monkeypatch.setattr(forms, "TURNS", 1)
    found = forms.trials([plan])
    assert [trial.isa for trial in found] == _kernels.available_isas()
    for trial in found:
        assert (trial.node.rank, trial.node.count) == (0, 2)
        ways = {"F(2x2)", "F(4x4)", "padded", "clipped", "padded packed", "clipped packed"}
        assert set(map(forms.form, trial.node.candidates)) == ways
        assert "12x12, 48 to 48, 3x3" in trial.node.text
    forms.run(found[:1], 60.0)
    first, *others = found
    assert 0 < min(first.ns) <= max(first.ns) < float("inf")
    assert min(first.stored, first.chosen) >= 0
    text = forms.table(first.isa, found)
    assert "| 3x3 convolutions of stride 1 | 2 (1 distinct) |" in text
    assert forms.row(first) in text
    for trial in others:
        assert "2 nodes were left out, because the time was over" in forms.table(trial.isa, found)
