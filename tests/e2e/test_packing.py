"""Packed weights, stored in the file or made when a session opens it."""

from __future__ import annotations

import gc
import json
import time
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
from marks import thinned
from taper_frontend.compiler.planning import join_plans
from taper_frontend.errors import ExportError
from taper_runtime import (
    InferenceSession,
    InputError,
    OptionError,
    PlanFormatError,
    SessionOptions,
    load,
)
from taper_runtime.cli import main
from taper_runtime.executor.node_trials import TrialResult, measure_node, tunable_nodes
from taper_runtime.executor.tuned_choice import machine_setting
from taper_runtime.extend.servers import label_of
from taper_runtime.file.measurements import Quartiles, append_measurements
from taper_runtime.formats import decode, find
from taper_runtime.native import _kernels
from taper_runtime.plan import replaceable
from taper_runtime.plan.replaceable import completed
from taper_runtime.plan.validate import check_plan

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")


class Tied(nn.Module):
    """A table that is looked up and multiplied by."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 24)

    def forward(self, x):
        return self.table(x) @ self.table.weight.T


class Shared(nn.Module):
    """A weight that is packed, and read plain as well."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 20))

    def forward(self, x):
        return x @ self.weight + self.weight.sum(0)


class Half(nn.Module):
    """A weight in fewer bits than what it is multiplied by."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 24).half())

    def forward(self, x):
        return nn.functional.linear(x, self.weight.float())


class Branches(nn.Module):
    """Weights in the blocks of control flow."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(24, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


def convolutions():
    layers = []
    for channels, more in ((3, 32), (32, 32), (32, 48)):
        layers += [nn.Conv2d(channels, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU()]
    return nn.Sequential(*layers)


#: A module's maker, its argument's shape or value, and the families of its packed weights.
MODELS = {
    "convolutions": (convolutions, (1, 3, 32, 32), {"winograd", "grouped_panels"}),
    "groups": (lambda: nn.Conv2d(32, 48, 3, groups=2), (1, 32, 8, 8), {"grouped_panels"}),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), (1, 8, 8, 8), set()),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 3, 2), (1, 8, 5, 5), {"grouped_panels"}),
    "sequence": (lambda: nn.Conv1d(8, 20, 3), (1, 8, 15), {"grouped_panels"}),
    "products": (
        lambda: nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 17)),
        (3, 24),
        {"panels"},
    ),
    "half": (Half, (3, 24), {"panels"}),
    "tied": (Tied, torch.tensor([1, 2, 3]), {"panels"}),
    "shared": (Shared, (3, 24), {"panels"}),
    "branches": (Branches, (3, 24), {"panels"}),
    "attention": (Attention, (2, 7, 24), {"panels"}),
    "recurrent": (Recurrent, (2, 7, 24), {"panels"}),
}


def made(name):
    """A module and its argument."""
    make, x, _ = MODELS[name]
    torch.manual_seed(0)
    module = make().eval()
    for norm in (part for part in module.modules() if isinstance(part, nn.BatchNorm2d)):
        norm.running_var.uniform_(0.5, 2)
    return module, x if isinstance(x, torch.Tensor) else torch.randn(x)


def export(module, x, **how):
    return taper_frontend.export(module, (x,), verify=False, **how)


@cache
def exported(name, **how):
    return export(*made(name), **how)


def packed(plan):
    """The constants in formats that kernels alone ask for."""
    return {
        name
        for name, spec in plan.tensors.items()
        if spec.role == "constant" and find(spec.format).is_for_kernels
    }


def options_of(**fields):
    options = SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def run(session, x):
    (name,) = session.plan.inputs
    return [y.tobytes() for y in session.run(None, {name: x.numpy()})]


AT_OPEN = options_of(packing="at_open")


@pytest.mark.parametrize(("name", "weights"), thinned(2, MODELS, ["fixed", "replaceable"]))
def test_the_bits_are_those_of_stored_weights(name, weights, tmp_path):
    module, x = made(name)
    stored = exported(name, weights=weights)
    plan = exported(name, weights=weights, packing="at_open")
    assert {plan.tensors[n].format.split(".")[0] for n in packed(plan)} == MODELS[name][2]
    assert packed(plan) == packed(stored)
    assert not packed(plan) & plan.constants.keys()
    for file, each in (("stored", stored), ("plain", plan)):
        each.save(tmp_path / f"{file}.taper")
    want = InferenceSession(tmp_path / "stored.taper")
    for source in (plan, tmp_path / "plain.taper"):
        for options in (None, AT_OPEN, options_of(packing="at_open", executor="interpreted")):
            session = InferenceSession(source, options)
            assert run(session, x) == run(want, x)
            assert session.stats().packed_bytes >= sum(plan.tensors[n].nbytes for n in packed(plan))
            check_plan(session.plan)
            for each in packed(stored):
                assert session.plan.constants[each].tobytes() == stored.constants[each].tobytes()
    if weights == "replaceable":
        assert run(InferenceSession(stored, AT_OPEN), x) == run(want, x)
    y = np.frombuffer(run(want, x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-4, atol=1e-5)


def test_the_file_has_each_plain_weight_once(tmp_path):
    module, _ = made("convolutions")
    size = sum(p.nbytes for p in module.parameters())
    for weights in ("fixed", "replaceable"):
        for file, how in (("plain", {"packing": "at_open"}), ("stored", {})):
            exported("convolutions", weights=weights, **how).save(tmp_path / f"{file}.taper")
        sizes = [(tmp_path / f"{n}.taper").stat().st_size for n in ("plain", "stored")]
        assert size < sizes[0] < 0.75 * sizes[1]
    plan = exported("shared", weights="fixed", packing="at_open")
    assert sum(a.nbytes for a in (*plan.constants.values(), *plan.originals.values())) == 4 * (
        480 + 20
    )


def test_two_nodes_share_one_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x).relu())

    torch.manual_seed(0)
    module, x = Twice().eval(), torch.randn(1, 32, 32, 32)
    plan = export(module, x, packing="at_open")
    assert len(plan.weights) == len(plan.originals) == 1
    assert run(InferenceSession(plan, AT_OPEN), x) == run(InferenceSession(export(module, x)), x)


@pytest.mark.parametrize("how", ["stored", "at_open"])
@pytest.mark.parametrize("name", ["convolutions", "products", "tied", "attention", "recurrent"])
def test_weights_are_swapped_in_either_way(name, how):
    _, x = made(name)
    at_open = {"packing": how} if how == "at_open" else {}
    plan = exported(name, weights="replaceable", **at_open)
    other, _ = made(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
    want = run(InferenceSession(export(other, x, weights="replaceable")), x)
    for packing in ("stored", "at_open"):
        session = InferenceSession(plan, options_of(packing=packing))
        first = run(session, x)
        session.weights.load({n: v.numpy() for n, v in other.state_dict().items()}, strict=False)
        session.weights.commit()
        swapped = run(session, x)
        assert swapped == want != first
        assert run(InferenceSession(plan), x) == first  # another session's are its own


def test_a_plain_weight_is_no_weight_to_replace():
    plan = exported("convolutions", weights="fixed", packing="at_open")
    session = InferenceSession(plan)
    assert {spec.kind for spec in session.plan.weights.values()} == {"constant"}
    name = min(session.plan.weights)
    with pytest.raises(InputError, match="the plan's weights are fixed"):
        session.weights.update(name, session.weights.get(name))


def test_sessions_of_one_plan_have_one_packed_weight():
    plan = export(*made("convolutions"), packing="at_open")
    before = len(replaceable._shared)
    sessions = [InferenceSession(plan, options) for options in (None, AT_OPEN, None)]
    for name in packed(plan):
        assert len({id(session.plan.constants[name]) for session in sessions}) == 1
    other = InferenceSession(export(*made("convolutions"), packing="at_open"))
    assert all(other.plan.constants[n] is not sessions[0].plan.constants[n] for n in packed(plan))
    del sessions, other
    gc.collect()
    assert len(replaceable._shared) == before


def test_entries_have_the_packed_weights_of_the_whole():
    module, x = made("products")
    long = torch.randn(9, 24)
    stored, plain = (
        join_plans({"short": export(module, x, **how), "long": export(module, long, **how)})
        for how in ({}, {"packing": "at_open"})
    )
    want = InferenceSession(stored)
    for packing in ("stored", "at_open"):
        session = InferenceSession(plain, options_of(packing=packing))
        for entry, array in (("short", x), ("long", long)):
            feed = {"input": array.numpy()}
            (got,) = session.run(None, feed, entry=entry)
            assert got.tobytes() == want.run(None, feed, entry=entry)[0].tobytes()
        other = session._entry("long").plan
        assert all(other.constants[name] is session.plan.constants[name] for name in packed(other))
        nbytes = sum(other.constants[name].nbytes for name in packed(other))
        assert session.stats().packed_bytes == nbytes


def test_sizes_may_vary():
    module, x = made("convolutions")
    shapes = ({0: "batch", 2: "height", 3: "width"},)
    stored = InferenceSession(export(module, x, dynamic_shapes=shapes))
    plan = export(module, x, dynamic_shapes=shapes, packing="at_open")
    for options in (None, AT_OPEN):
        session = InferenceSession(plan, options)
        for size in (5, 32):
            y = torch.randn(2, 3, size, size)
            assert run(session, y) == run(stored, y)


# -- other formats ---------------------------------------------------------------------------------

LEVELS = _kernels.available_isas()


def test_a_format_of_other_bits_is_taken_only_where_these_are_allowed():
    """Arithmetic is slow at the lowest level, so that larger tiles pay sooner."""
    torch.manual_seed(0)
    module, x = nn.Conv2d(96, 96, 3, padding=1).eval(), torch.randn(1, 96, 10, 10)
    level = LEVELS[-1]
    plan = export(module, x, packing="at_open")
    (name,) = packed(plan)
    kept = InferenceSession(plan, options_of(packing="at_open", isa=level))
    assert kept.plan.tensors[name].format == plan.tensors[name].format == "winograd.2"
    free = InferenceSession(plan, options_of(packing="at_open", isa=level, kernel_choice="cost"))
    assert free.plan.tensors[name].format == "winograd.4"
    stored = InferenceSession(plan, options_of(isa=level, kernel_choice="cost"))
    assert stored.plan.tensors[name].format == "winograd.2"
    assert run(free, x) != run(kept, x) == run(stored, x)
    y = np.frombuffer(run(free, x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-3, atol=1e-4)
    check_plan(free.plan)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", ["fixed", "replaceable"])
def test_where_other_bits_are_allowed_the_results_are_right(name, weights, tmp_path):
    module, x = made(name)
    plan = exported(name, weights=weights, packing="at_open")
    options = options_of(packing="at_open", kernel_choice="cost", isa=LEVELS[-1])
    session = InferenceSession(plan, options)
    check_plan(session.plan)
    want = module(x).detach().numpy()
    y = np.frombuffer(run(session, x)[0], np.float32).reshape(want.shape)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-4)
    session.plan.save(tmp_path / "again.taper")
    assert run(InferenceSession(tmp_path / "again.taper", options), x) == run(session, x)
    if weights == "replaceable":
        session.weights.update_many({n: v.detach().numpy() for n, v in module.named_parameters()})
        assert np.frombuffer(run(session, x)[0], np.float32).tobytes() == y.tobytes()


@pytest.mark.parametrize("weights", ["fixed", "replaceable"])
def test_a_forced_kernel_is_given_its_format(weights):
    """Of a plan that names Winograd's tiles, direct sums are asked for."""
    module, x = made("convolutions")
    plan = exported("convolutions", weights=weights, packing="at_open")
    options = options_of(packing="at_open", kernels={"CONV": "f32_conv"}, kernel_choice="cost")
    session = InferenceSession(plan, options)
    formats = {session.plan.tensors[name].format for name in packed(plan)}
    assert not any(format.startswith("winograd") for format in formats)
    y = np.frombuffer(run(session, x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-4, atol=1e-5)


def test_a_plan_of_packed_weights_alone_is_refused():
    module, x = made("products")
    with pytest.raises(InputError, match=r"expected 'stored', because .* only in format panels.1"):
        InferenceSession(export(module, x), AT_OPEN)
    no_weights = export(nn.ReLU(), x)
    assert run(InferenceSession(no_weights, AT_OPEN), x) == run(InferenceSession(no_weights), x)


def test_what_a_delegate_reads_keeps_its_format():
    module, x = made("convolutions")
    how = {"partition": lambda graph: [list(graph.nodes)], "delegate": "c"}
    plan = export(module, x, packing="at_open", **how)
    options = options_of(packing="at_open", kernel_choice="cost", isa=LEVELS[-1])
    options.delegates = {"c": None}
    session = InferenceSession(plan, options)
    y = np.frombuffer(run(session, x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-3, atol=1e-4)


# -- quantized weights -----------------------------------------------------------------------------


class Quantized(nn.Module):
    """int4 levels in groups of 64."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        levels = torch.randint(0, 16, (512, 96), generator=generator, dtype=torch.uint8)
        self.register_buffer("levels", levels)
        self.register_buffer("scales", torch.rand(8, 1, 96, generator=generator) + 0.5)
        self.head = nn.Linear(96, 20)

    def forward(self, x):
        weight = (self.levels.float().view(8, 64, 96) - 8) * self.scales
        return self.head(x @ weight.view(512, 96))


def test_quantized_weights_stay_as_they_are():
    torch.manual_seed(0)
    module, x = Quantized().eval(), torch.randn(3, 512)
    stored, plan = (export(module, x, packing=how) for how in ("stored", "at_open"))
    (name,) = (n for n, spec in plan.tensors.items() if spec.format.startswith("blocks"))
    assert plan.constants[name].tobytes() == stored.constants[name].tobytes()
    assert name not in plan.derived
    want = run(InferenceSession(stored), x)
    for options in (None, AT_OPEN):
        session = InferenceSession(plan, options)
        assert session.plan.tensors[name].format == "blocks.4.64.float32.symmetric"
        assert session.plan.constants[name] is plan.constants[name]
        assert run(session, x) == want


# -- measured times --------------------------------------------------------------------------------


def planted(plan, file, winner):
    """Write times of all nodes; ``winner`` tells which of a node's candidates is the fastest.

    Return the nodes with the winners.
    """
    isa, found = _kernels.active_isa(), []
    for node in tunable_nodes(completed(plan), isa, other_bits=True):
        best = winner(node)
        slow, fast = Quartiles(100.0, 110.0, 120.0), Quartiles(10.0, 11.0, 12.0)
        times = [fast if place == best else slow for place in range(len(node.candidates))]
        measured = TrialResult(node, times, best).measurements(machine_setting(isa, 1))
        append_measurements(file, measured)
        found.append((node, node.candidates[best]))
    return found


def test_bytes_are_measured_with_the_values_of_the_weight():
    """Kernels of bytes take the less time the smaller the numbers are."""
    layers = taper_frontend.quantize(nn.Sequential(nn.Linear(40, 24)).eval(), "int8_dynamic")
    plan = taper_frontend.export(layers, (torch.ones(3, 40),), packing="at_open")
    (node,) = tunable_nodes(completed(plan), _kernels.active_isa(), other_bits=True)
    changed = [(each, candidate) for candidate in node.candidates for each in candidate.recoded]
    assert changed
    for each, candidate in changed:
        other = candidate.plan.tensors[each.name].type
        assert {other.dtype, each.type.dtype} == {"int8"}
        assert other.format != each.type.format
        weight = decode(each.values(other), other)
        assert weight.any()
        assert np.array_equal(weight, decode(each.stored, each.type))
    measured = measure_node(node, machine_setting(_kernels.active_isa(), 1), time.thread_time_ns)
    assert all(times.low > 0 for times in measured.times)


@pytest.mark.parametrize("name", MODELS)
def test_the_winners_of_planted_times_compute(name, tmp_path):
    """The nodes that tuning measures are those that sessions look up, whatever their strides."""
    module, x = made(name)
    plan, file = exported(name, packing="at_open"), tmp_path / "times"
    append_measurements(file, [])
    winners = planted(plan, file, lambda node: len(node.candidates) - 1)
    measured = {"tuned": file, "require_tuned": True, "kernel_choice": "measured"}
    session = InferenceSession(plan, options_of(packing="at_open", **measured))
    used = session.stats().tuned
    assert used.missing == used.skipped == ()
    kernels = {label_of(site.node): kernel for site, kernel in session._default.executor.steps}
    for node, winner in winners:
        for label in node.labels:
            assert kernels[label] == winner.way.kernel, label
        formats = {
            spec.name: spec.format
            for spec in winner.plan.tensors.values()
            if spec.role == "constant"
        }
        if len(node.labels) == 1:
            assert {n: session.plan.tensors[n].format for n in formats} == formats
    if name == "convolutions":
        assert {session.plan.tensors[n].format for n in packed(session.plan)} != {
            plan.tensors[n].format for n in packed(plan)
        }
    y = np.frombuffer(run(session, x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-3, atol=1e-4)
    stored = InferenceSession(plan, options_of(**measured))
    assert stored.stats().tuned.missing == ()
    same_bits = InferenceSession(plan, options_of(packing="at_open", tuned=file))
    assert run(same_bits, x) == run(InferenceSession(plan), x)


@pytest.mark.parametrize("packing", ["stored", "at_open"])
@pytest.mark.parametrize("name", ["convolutions", "products", "tied"])
def test_an_export_takes_the_winners(name, packing, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "1")
    plan, file = exported(name, packing="at_open"), tmp_path / "times"
    append_measurements(file, [])
    planted(plan, file, lambda node: len(node.candidates) - 1)
    module, x = made(name)
    measured = {"tuned": file, "require_tuned": True}
    tuned = export(module, x, packing=packing, other_bits=True, **measured)
    choices = {"kernel_choice": "measured", "packing": "at_open"}
    session = InferenceSession(plan, options_of(**measured, **choices))
    for weight in packed(session.plan):
        assert tuned.tensors[weight].format == session.plan.tensors[weight].format
    assert bool(tuned.derived) == (packing == "at_open")
    y = np.frombuffer(run(InferenceSession(tuned), x)[0], np.float32)
    np.testing.assert_allclose(y, module(x).detach().numpy().ravel(), rtol=1e-3, atol=1e-4)
    same_bits = export(module, x, packing=packing, tuned=file)
    assert run(InferenceSession(same_bits), x) == run(InferenceSession(plan), x)
    assert same_bits.metadata["tuned"]["skipped"] == []
    if name == "convolutions":
        lines = [d for d in tuned.metadata["decisions"] if d["reason"] == "measured times"]
        assert lines
        same_bits.save(tmp_path / "m.taper")
        assert load(tmp_path / "m.taper").fingerprint() == same_bits.fingerprint()


def test_a_trace_tells_the_ways_of_each_node_with_their_times(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "1")
    plan, file = exported("convolutions", packing="at_open"), tmp_path / "times"
    append_measurements(file, [])
    winners = planted(plan, file, lambda node: len(node.candidates) - 1)
    traces = {}
    for name, options in {"without": {}, "tuned": {"tuned": file}}.items():
        export(*made("convolutions"), trace=tmp_path / f"{name}.json", **options)
        traces[name] = json.loads((tmp_path / f"{name}.json").read_text())["nodes"]
    ways = {label: each["ways"] for each in traces["tuned"] for label in each["nodes"]}
    assert ways.keys() == {label for node, _ in winners for label in node.labels}
    for node, winner in winners:
        found = ways[node.labels[0]]
        assert [each["estimated_ns"] for each in found] == [round(c.ns) for c in node.candidates]
        assert [each["measured_ns"] for each in found] == [110] * (len(found) - 1) + [11]
        assert found[-1]["name"] == str(winner)
    untold = [way["measured_ns"] for each in traces["without"] for way in each["ways"]]
    assert set(untold) == {None}
    export(*made("convolutions"), trace=tmp_path / "t.html", tuned=file)
    page = (tmp_path / "t.html").read_text()
    assert "Ways to compute nodes" in page
    assert f"{winners[0][1]}" in page


def test_an_export_that_requires_times_is_refused_without_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "1")
    file = tmp_path / "times"
    append_measurements(file, [])
    with pytest.raises(
        ExportError, match=r"require_tuned: node .*: expected measured times with w"
    ):
        export(*made("convolutions"), tuned=file, require_tuned=True, other_bits=True)
    file.write_text("no times\n")
    with pytest.raises(ExportError, match=r"tuned: .*expected a database of `taper tune`"):
        export(*made("products"), tuned=file)
    with pytest.raises(ExportError, match=r"tuned: .*No such file"):
        export(*made("products"), tuned=tmp_path / "none")


def test_a_weight_without_measured_times_has_the_format_of_the_estimate(tmp_path):
    plan, file = exported("convolutions", packing="at_open"), tmp_path / "times"
    append_measurements(file, [])
    measured = {"tuned": file, "kernel_choice": "measured", "packing": "at_open"}
    session, default = (
        InferenceSession(plan, options_of(**measured)),
        InferenceSession(plan, AT_OPEN),
    )
    assert [session.plan.tensors[n].format for n in sorted(packed(plan))] == [
        default.plan.tensors[n].format for n in sorted(packed(plan))
    ]
    with pytest.raises(
        OptionError, match=r"require_tuned: node .*: expected measured times with w"
    ):
        InferenceSession(plan, options_of(require_tuned=True, **measured))


# -- damage ----------------------------------------------------------------------------------------


def edited(path, change):
    """Write the file again with another document."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["plan"])
    change(document)
    header["__metadata__"]["plan"] = json.dumps(document)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


DAMAGE = {
    "format": lambda steps: steps[-1][2].update(format="winograd.2"),
    "no format": lambda steps: steps[-1][2].clear(),
    "unknown format": lambda steps: steps[-1][2].update(format="panels.7"),
    "no PACK": lambda steps: steps.pop(),
    "another op": lambda steps: steps[-1].__setitem__(0, "RELU"),
    "no input": lambda steps: steps[-1].__setitem__(1, []),
    "a later input": lambda steps: steps[-1].__setitem__(1, [5]),
    "another weight": lambda steps: steps[0][2].update(name="nobody"),
    "twice packed": lambda steps: steps.append(["PACK", [1], {"format": "panels.1"}]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_recipe_is_refused(damage, tmp_path):
    path = tmp_path / "m.taper"
    exported("convolutions", weights="fixed", packing="at_open").save(path)
    edited(path, lambda document: None)
    load(path)

    def change(document):
        steps = document["derived"]
        DAMAGE[damage](next(each for name, each in steps.items() if name.endswith("tiles4")))

    edited(path, change)
    with pytest.raises(PlanFormatError, match=r"plan\.(derived|weights|tensors)"):
        load(path)


def test_a_file_that_lacks_a_weight_or_a_recipe_is_refused(tmp_path):
    path = tmp_path / "m.taper"
    for member in ("derived", "weights"):
        exported("products", weights="fixed", packing="at_open").save(path)
        edited(path, lambda document, member=member: document[member].popitem())
        with pytest.raises(PlanFormatError):
            load(path)


# -- options and commands --------------------------------------------------------------------------


def test_what_it_may_be():
    module, x = made("products")
    with pytest.raises(taper_frontend.ExportError, match="packing: expected one of stored, at_op"):
        export(module, x, packing="never")
    with pytest.raises(InputError, match="packing: expected one of 'stored', 'at_open', got 'nev"):
        options_of(packing="never")


def test_the_command_line(tmp_path, capsys):
    module, x = made("convolutions")
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    files = [tmp_path / f"{name}.taper" for name in ("stored", "at_open")]
    for file in files:
        options = ["-o", str(file), "--packing", file.stem, "--no-verify"]
        assert main(["export", str(tmp_path / "m.pt2"), *options]) == 0
    capsys.readouterr()
    texts = []
    for file, packing in ((files[0], "stored"), (files[1], "stored"), (files[1], "at_open")):
        assert main(["run", str(file), "--packing", packing]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    assert main(["run", str(files[0]), "--packing", "at_open"]) != 0
    assert "packing: expected 'stored'" in capsys.readouterr().err
    assert main(["bench", str(files[1]), "--packing", "at_open", "--runs", "1"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(files[1])]) == 0
    text = capsys.readouterr().out
    assert " kB packed when opened, arena" in text
    assert "that can be replaced" not in text
    assert main(["inspect", str(files[1]), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    plan = load(files[1])
    assert data["packed_bytes"] == sum(plan.tensors[name].nbytes for name in packed(plan))
    assert data["packed_bytes"] == InferenceSession(plan).stats().packed_bytes
