"""Kernels chosen by measured times: which are taken, what is missing, and how they are measured."""

import json
import pickle

import numpy as np
import pytest

from measured_plans import measured_plan
from node_plans import plan_of
from taper_runtime import InferenceSession, InputError, OptionError, SessionOptions
from taper_runtime.cli import main
from taper_runtime.executor import node_trials
from taper_runtime.executor.node_trials import measure_node, tunable_nodes
from taper_runtime.executor.tuned_choice import fastest, machine_setting
from taper_runtime.file.measurements import (
    Quartiles,
    append_measurements,
    read_measurements,
)
from taper_runtime.native import _kernels

ISA = _kernels.active_isa()
HERE = machine_setting(ISA, 1)


def reduction(size=40):
    """Its two variants have the same bits."""
    return plan_of("AMAX", {"axes": (1, 3), "keepdim": False}, (3, size, 5, 12), dtype="int32")


def product():
    """Its variants have other bits."""
    return plan_of("MATMUL", {"transpose_b": True}, (20, 300), (33, 300))


def options_of(file=None, **fields):
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.tuned = file
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def feed_of(plan):
    rng = np.random.default_rng(3)
    return {
        name: rng.standard_normal(plan.tensors[name].shape).astype(plan.tensors[name].dtype)
        for name in plan.inputs
    }


def chosen(session):
    ((_, kernel),) = session._default.executor.steps
    return str(kernel)


def plant(file, plan, winner, machine=HERE, *, margin=10.0):
    """Write times in which one kernel wins; a negative margin lets the quartiles overlap."""
    (node,) = tunable_nodes(plan, ISA, other_bits=True)
    names = [str(each) for each in node.candidates]
    assert winner in names
    slow = Quartiles(100.0 + margin, 120.0 + margin, 140.0 + margin)
    fast = Quartiles(80.0, 90.0, 100.0)
    times = [fast if name == winner else slow for name in names]
    result = node_trials.TrialResult(node, times, names.index(winner))
    append_measurements(file, result.measurements(machine))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "times.jsonl"


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
@pytest.mark.parametrize("winner", ["i32_amax rows", "i32_amax columns"])
def test_planted_times_choose(file, winner, executor):
    plan = reduction()
    default = InferenceSession(plan, options_of())
    assert default.stats().tuned is None
    plant(file, plan, winner)
    session = InferenceSession(plan, options_of(file, executor=executor))
    assert chosen(session) == winner
    feed = feed_of(plan)
    assert session.run(None, feed)[0].tobytes() == default.run(None, feed)[0].tobytes()
    tuned = session.stats().tuned
    assert {label: str(kernel) for label, kernel in tuned.chosen.items()} == {"y (AMAX)": winner}
    assert tuned.changed == (() if winner == chosen(default) else ("y (AMAX)",))
    assert tuned.missing == tuned.skipped == ()


def test_other_bits_only_where_they_are_allowed(file):
    plan = product()
    default = chosen(InferenceSession(plan))
    other = "f32_matmul dot" if default == "f32_matmul packing" else "f32_matmul packing"
    plant(file, plan, other)
    same_bits = InferenceSession(plan, options_of(file))
    assert chosen(same_bits) == default
    assert same_bits.stats().tuned.chosen == {}  # there was no choice
    assert same_bits.stats().tuned.missing == ()
    any_bits = InferenceSession(plan, options_of(file, kernel_choice="measured"))
    assert chosen(any_bits) == other
    assert any_bits.stats().tuned.changed == ("y (MATMUL)",)


def test_what_wins_by_less_than_times_vary_is_not_taken(file):
    plan = reduction()
    default = chosen(InferenceSession(plan))
    other = next(f"i32_amax {n}" for n in ("rows", "columns") if f"i32_amax {n}" != default)
    plant(file, plan, other, margin=-1.0)
    session = InferenceSession(plan, options_of(file))
    assert chosen(session) == default
    assert session.stats().tuned.changed == ()
    assert session.stats().tuned.chosen.keys() == {"y (AMAX)"}
    plant(file, plan, other)
    assert chosen(InferenceSession(plan, options_of(file))) == other


def test_which_times_are_the_fastest():
    slow, middle, fast = (Quartiles(t, t + 1.0, t + 2.0) for t in (10.0, 9.0, 1.0))
    assert fastest([slow]) == 0
    assert fastest([slow, middle, fast]) == 2
    assert fastest([slow, middle]) == 0
    assert fastest([fast, slow, middle]) == 0


@pytest.mark.parametrize("field", HERE._fields)
def test_missing_times(file, field):
    """Of another machine, and of another node."""
    plan = reduction()
    other = HERE._replace(**{field: "other" if field != "threads" else 3})
    plant(file, plan, "i32_amax rows", other)
    session = InferenceSession(plan, options_of(file))
    assert chosen(session) == chosen(InferenceSession(plan))
    tuned = session.stats().tuned
    assert tuned.missing == ("y (AMAX)",)
    (reason,) = tuned.skipped
    assert reason.startswith(f"1 line: expected {field} ")
    with pytest.raises(OptionError) as info:
        InferenceSession(plan, options_of(file, require_tuned=True))
    text = str(info.value)
    assert text.startswith("require_tuned: node y (AMAX): expected measured times of i32_amax")
    assert reason in text
    plant(file, reduction(41), "i32_amax rows")
    with pytest.raises(OptionError, match="require_tuned: node y"):
        InferenceSession(plan, options_of(file, require_tuned=True))
    plant(file, plan, "i32_amax rows")
    InferenceSession(plan, options_of(file, require_tuned=True))
    # a node with one kernel needs no times
    relu = plan_of("RELU", {}, (3, 4))
    InferenceSession(relu, options_of(file, require_tuned=True))


def test_options_that_contradict(file):
    plan = reduction()
    plant(file, plan, "i32_amax rows")
    with pytest.raises(OptionError, match="tuned: expected kernel_choice 'first' or 'measured'"):
        InferenceSession(plan, options_of(file, kernel_choice="cost"))
    with pytest.raises(OptionError, match="require_tuned: expected the database"):
        InferenceSession(plan, options_of(require_tuned=True))
    with pytest.raises(FileNotFoundError):
        InferenceSession(plan, options_of(file.parent / "none"))
    for wrong in (3, "", b"", True, [file]):
        with pytest.raises(InputError, match="tuned: expected a path or None"):
            options_of(wrong)
    again = pickle.loads(pickle.dumps(options_of(file)))  # noqa: S301
    assert again.tuned == str(file)


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_node_may_be_fastest_on_fewer_threads(file, fewer):
    plan = plan_of("MATMUL", {}, (300, 300), (300, 300))
    machine = machine_setting(ISA, 2)
    (node,) = tunable_nodes(plan, ISA, other_bits=False, threads=2)
    whole, one = node.candidates
    assert (whole.name + " on 1 thread", one.way.threads) == (one.name, 1)
    slow, fast = Quartiles(100.0, 110.0, 120.0), Quartiles(10.0, 11.0, 12.0)
    times = [slow, fast] if fewer else [fast, slow]
    append_measurements(file, node_trials.TrialResult(node, times, fewer).measurements(machine))
    session = InferenceSession(plan, options_of(file, intra_op_num_threads=2, require_tuned=True))
    tuned = session.stats().tuned
    assert tuned.threads == ({"y (MATMUL)": 1} if fewer else {})
    assert tuned.changed == (("y (MATMUL)",) if fewer else ())
    (line,) = [line for line in session.decision_log() if line.startswith("kernel y")]
    chosen = one.name if fewer else whole.name
    assert line.startswith(f"kernel y: {chosen}, among ")
    assert f", {whole.name} ({'110' if fewer else '11'} ns), {one.name} (" in line
    feed = feed_of(plan)
    plain = InferenceSession(plan, options_of())
    assert session.run(None, feed)[0].tobytes() == plain.run(None, feed)[0].tobytes()
    for _ in range(20 if fewer else 0):
        _, (workers,) = session._default.executor.profile(list(feed.values()))
        assert len([begin for begin, *_ in workers if begin]) == 1


# -- measuring -------------------------------------------------------------------------------------


def test_measured_times_are_those_of_the_candidates(monkeypatch):
    (node,) = tunable_nodes(reduction(), ISA, other_bits=False)
    assert len(node.candidates) == 2
    now = 0
    real = node_trials.runner
    taken = iter((1_000_000, 250_000))

    def runner(candidate, machine):
        run, ns = real(candidate, machine), next(taken)

        def timed():
            nonlocal now
            run()
            now += ns

        return timed

    monkeypatch.setattr(node_trials, "runner", runner)
    result = measure_node(node, HERE, lambda: now)
    assert [each.median for each in result.times] == [1_000_000, 250_000]
    assert (result.best, result.gain) == (1, 4.0)
    (measured,) = result.measurements(HERE)
    assert measured.ns.keys() == {"i32_amax rows", "i32_amax columns"}


def test_what_takes_twice_as_long_is_not_run_again_unless_it_is_the_default(monkeypatch):
    (node,) = tunable_nodes(reduction(), ISA, other_bits=False)
    default, other = node.candidates
    ns, now, count = (900_000, 300_000, 700_000), 0, [0, 0, 0]
    taken = iter(range(3))

    def runner(candidate, machine):
        at = next(taken)

        def timed():
            nonlocal now
            now += ns[at]
            count[at] += 1

        return timed

    monkeypatch.setattr(node_trials, "runner", runner)
    node = node._replace(candidates=[default, other, other])
    result = measure_node(node, HERE, lambda: now)
    assert [each.median for each in result.times] == list(ns)
    assert result.best == 1
    assert count[2] == 1 + node_trials.TRIED < count[0] == count[1]


def test_nodes_have_an_estimate_and_only_those_with_a_choice_are_listed():
    small, large = reduction(), reduction(4000)
    for plan in (small, large):
        (node,) = tunable_nodes(plan, ISA, other_bits=False)
        assert (node.labels, node.runs) == (["y (AMAX)"], 1)
    sizes = [tunable_nodes(plan, ISA, other_bits=False)[0].estimate_ns for plan in (small, large)]
    assert sizes[0] < sizes[1]
    assert tunable_nodes(product(), ISA, other_bits=False) == []
    (node,) = tunable_nodes(product(), ISA, other_bits=True)
    assert len(node.candidates) == 2


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(node_trials, "_LEAST_TURNS", 2)
    monkeypatch.setattr(node_trials, "_NODE_NS", 0)
    plan, file = reduction(), tmp_path / "times.jsonl"
    plan.save(tmp_path / "m.taper")
    command = ["tune", str(tmp_path / "m.taper"), "--db", str(file), "--threads", "1"]
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["nodes"], data["distinct"], data["known"], data["left"]) == (1, 1, 0, [])
    (measured,) = data["measured"]
    assert measured["labels"] == ["y (AMAX)"]
    assert measured["ns"].keys() == {"i32_amax rows", "i32_amax columns"}
    InferenceSession(tmp_path / "m.taper", options_of(file, require_tuned=True))
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("1 node and 0 chains of nodes with several ways, 1 of them different:")
    assert ": 1 in the database before, 0 measured now" in text
    assert len(read_measurements(file, HERE).by_node) == 1


def test_the_budget_ends_the_command(tmp_path, capsys):
    reduction().save(tmp_path / "m.taper")
    file = tmp_path / "times.jsonl"
    command = ["tune", str(tmp_path / "m.taper"), "--db", str(file), "--budget", "0.000000001s"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "0 measured now, 1 left" in text
    assert "the budget is spent; not measured: y (AMAX) and those of less work" in text
    assert file.read_bytes() == b""


def test_quartiles_of_two_times_lie_between_them():
    """A database takes no time below 0."""
    assert node_trials._quartiles([10.0, 90010.0]) == (22510.0, 45010.0, 67510.0)
    assert node_trials._quartiles([0.0, 0.0]) == (1.0, 1.0, 1.0)


def test_the_command_writes_what_won(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(node_trials, "_LEAST_TURNS", 2)
    monkeypatch.setattr(node_trials, "_NODE_NS", 0)
    plan, path, output = reduction(), tmp_path / "m.taper", tmp_path / "tuned.taper"
    plan.save(path)
    assert main(["tune", str(path), "-o", str(output), "--threads", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["database"] == f"{path}.times"
    assert data["output"] == str(output)
    assert len(read_measurements(f"{path}.times", HERE).by_node) == 1
    feed = feed_of(plan)
    before, after = (InferenceSession(each).run(None, feed)[0] for each in (path, output))
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize("budget", ["", "0", "-1s", "1h", "s", "1e3", "nan", "0s"])
def test_a_wrong_budget(budget, tmp_path):
    with pytest.raises(SystemExit) as info:
        main(["tune", "m.taper", "--db", "x", f"--budget={budget}"])
    assert info.value.code == 2


def test_a_database_that_is_another_file_or_cannot_be_written(tmp_path, capsys):
    path = tmp_path / "m.taper"
    reduction().save(path)
    content = path.read_bytes()
    assert main(["tune", str(path), "--db", str(path)]) == 1
    assert "expected a database of `taper tune`" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert main(["tune", str(path), "--db", str(tmp_path / "none" / "x")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_plan_whose_nodes_compute_sizes_is_refused(tmp_path, capsys):
    measured_plan().save(tmp_path / "m.taper")
    assert main(["tune", str(tmp_path / "m.taper"), "--db", str(tmp_path / "times")]) == 1
    assert "expected a plan whose inputs decide all sizes" in capsys.readouterr().err
