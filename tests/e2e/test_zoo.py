"""Architectures of the zoo: exported, run, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
from marks import LARGER, NUMPY, some
from tools.opinfo import report as opinfo
from tools.zoo import GROUPS, decompositions, export_time, report
from tools.zoo.architecture import Architecture
from tools.zoo.judge import EXPORT, REFUSED, RIGHT, WRONG, Verdict, judge, largest_error
from tools.zoo.page import page
from zoo_checks import members, run

torch.set_num_threads(1)

#: Architectures whose kind other tests have already.
MORE = {
    "text": ["BertModel", "GPT2LMHeadModel", "LlamaForCausalLM"],
    "audio": ["WhisperForConditionalGeneration", "Wav2Vec2ForCTC"],
    "vision": ["ResNetForImageClassification", "ViTForImageClassification"],
    "signals": ["GFNet block", "S4D", "log-mel classifier", "masking denoiser"],
    "layers": ["nn.GRU, two layers, both directions", "nn.GRU"],
    "control flow": ["while_loop: diffusion sampler", "cond: one of two experts"],
}


def few(names):
    """Return parameters of a test: pairs of group and name, some of them for `references` alone."""
    cases = members(names)
    return some(cases, [case for case in members(MORE) if case in cases])


#: Without a node that numpy computes: one of each kind. test_architectures.py has more.
NATIVE = {
    "text": [
        "BertModel",
        "DebertaV2Model",
        "GPT2LMHeadModel",
        "LlamaForCausalLM",
        "MambaForCausalLM",
    ],
    "audio": ["WhisperForConditionalGeneration"],
    "layers": ["nn.MultiheadAttention", "nn.TransformerEncoder"],
}
#: Right, whatever computes them.
OTHERS = {
    "control flow": [
        "scan, cond: steps that may be skipped",
        "while_loop: diffusion sampler",
    ],
    "layers": ["nn.LSTM, two layers, both directions", "nn.GRU, two layers, both directions"],
}


@LARGER
@pytest.mark.parametrize(("group", "name"), few(NATIVE))
def test_native(group, name):
    assert run(group, name).metadata["fallbacks"] == []


@NUMPY
@pytest.mark.parametrize(("group", "name"), few(OTHERS))
def test_right(group, name):
    run(group, name)


def test_a_nan_of_ours_is_no_small_error():
    right, wrong = np.ones(2, np.float32), np.array([1, np.nan], np.float32)
    assert largest_error([right, wrong], [right, right]) == np.inf
    assert largest_error([wrong, right], [wrong, right]) == 0


class Draws(torch.nn.Module):
    """Right only if its numbers and the session's come from the same seed."""

    def forward(self, x):
        return x + torch.rand_like(x)


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Chooses(torch.nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


class Forgets(torch.nn.Module):
    """Differs from call to call, which no plan can follow."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize(
    ("make", "verdict", "cause"),
    [
        (Draws, RIGHT, ""),
        (Bessel, EXPORT, "bessel_j0"),
        (Chooses, REFUSED, "data-dependent"),
        (Forgets, WRONG, "differs from torch"),
    ],
)
def test_verdicts(make, verdict, cause):
    architecture = Architecture(make, lambda module: {"x": torch.randn(3)})
    given = judge(architecture)
    assert given.verdict == verdict
    assert cause in given.cause


def test_the_page_counts_and_names_what_fails():
    verdicts = {
        "text": {
            "Good": Verdict(RIGHT, nodes=3, fallbacks=("SORT", "SORT"), error=1e-7),
            "Bad": Verdict(WRONG, "differs from torch by 1.0e-02", 5, (), 1e-2),
            "Ugly": Verdict(REFUSED, "it | has a bar"),
        },
        "layers": {"Layer": Verdict(RIGHT, nodes=1)},
    }
    lines = page(verdicts).splitlines()
    assert "| text | 3 | 1 | 2 | 2 | 1 | 50.0% | 0 |" in lines
    assert "| all | 4 | 1 | 3 | 3 | 2 | 66.7% | 1 |" in lines
    assert "| `Good` | 3 | 2 SORT | 1.0e-07 |" in lines
    assert "| `Bad` | wrong | differs from torch by 1.0e-02 |" in lines
    assert "| `Ugly` | refused by torch.export | it / has a bar |" in lines


#: Which part of the nodes that a run computes has values that verification compares, at least.
#: What the rest gives nothing in the captured program is: parts of a function that lowering writes
#: out, such as a recurrent layer, a transform or a mask.
LOOKED_AT = {
    "text": {"DistilBertModel": 0.9, "GPT2LMHeadModel": 0.8},
    "vision": {"ResNetForImageClassification": 0.75, "ViTForImageClassification": 0.9},
    "audio": {"Wav2Vec2ForCTC": 0.8},
    "layers": {"nn.LSTM": 0.5, "nn.GRU": 0.5, "nn.MultiheadAttention": 0.9},
    "signals": {
        "GFNet block": 0.7,
        "S4D": 0.7,
        "log-mel classifier": 0.7,
        "Vocos": 0.4,
        "masking denoiser": 0.35,
    },
    "control flow": {"cond: one of two experts": 0.7, "scan: gated recurrent cell": 0.4},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("group", "name"), few(LOOKED_AT))
def test_verification_looks_inside_and_finds_nothing_wrong(group, name):
    if group not in ("layers", "control flow"):
        pytest.importorskip("transformers")
    module, inputs = GROUPS[group][name].build()
    report = taper_frontend.export(module, (), inputs).metadata["verified"]["inside"]
    assert report["nodes"] >= LOOKED_AT[group][name] * report["of"]
    assert report["relative_error"] <= 1e-4
    assert "uncertain" not in report


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (report, ["--only", "BertModle"]),
        (opinfo, ["--ops", "addd"]),
        (decompositions, ["BertModle"]),
        (export_time, ["BertModle"]),
        (export_time, ["--depth", "BertModel"]),
    ],
)
def test_a_tool_refuses_a_name_that_does_not_exist(tool, arguments, monkeypatch, capsys):
    """It would otherwise count as refused by torch, or as nothing to do: a session that passes."""
    monkeypatch.setattr("sys.argv", ["tool", *arguments])
    with pytest.raises(SystemExit, match="2"):
        tool.main()
    assert arguments[-1] in capsys.readouterr().err
