"""PyC's modules: nine kinds, verification, options, statuses, statistics."""

import hashlib
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.module import (
    BREAKS,
    KINDS,
    CompileOptions,
    Module,
    ModuleError,
    ModuleOp,
    Status,
    compile_module,
    status_name,
)
from taper_frontend.compiler.module.pyc_statistics import memory_statistics, peak_live_values
from taper_runtime import InputError, KernelError, Plan, RuntimeRails, TaperError
from taper_runtime.executor.memory_layout import MemoryLayout, Piece

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 4), np.float32)
B = RNG.standard_normal((4,), np.float32)
X = RNG.standard_normal((3, 8), np.float32)


def every_kind():
    """All nine kinds: layernorm(gelu(relu(x @ w + b))), summed over its rows."""
    return Module(
        [
            ModuleOp("input", "x", shape=(3, 8)),
            ModuleOp("const", "w", shape=(8, 4), value=W),
            ModuleOp("const", "b", shape=(4,), value=B),
            ModuleOp("matmul", "", (0, 1)),
            ModuleOp("add", "", (3, 2), (3, 4)),
            ModuleOp("relu", "r", (4,)),
            ModuleOp("gelu", "", (5,)),
            ModuleOp("layernorm", "", (6,)),
            ModuleOp("reduce_sum", "", (7,), axes=(0,)),
            ModuleOp("output", "y", (8,)),
            ModuleOp("output", "z", (5,)),
        ]
    )


def expected():
    r = np.maximum(X.astype(np.float64) @ W + B, 0)
    g = r * (1 + np.vectorize(math.erf)(r / math.sqrt(2))) / 2
    n = (g - g.mean(1, keepdims=True)) / np.sqrt(g.var(1, keepdims=True) + 1e-5)
    return n.sum(0), r


@pytest.fixture(scope="module")
def model():
    return compile_module(every_kind())


def test_every_kind_runs(model):
    assert {op.kind for op in every_kind().ops} == set(KINDS)
    y, z = model.run([X])
    np.testing.assert_allclose(y, expected()[0], atol=1e-5)
    np.testing.assert_allclose(z, expected()[1], atol=1e-5)
    outputs = [np.empty_like(y), np.empty_like(z)]
    again = model.run({"x": X}, outputs)
    assert again[0] is outputs[0]
    assert again[0].tobytes() == y.tobytes()
    assert model.status == Status.OK


def test_fusion_changes_no_result(model):
    plain = compile_module(every_kind(), CompileOptions(enable_fusion=False))
    assert len(plain.plan.nodes) > len(model.plan.nodes)
    assert model.report["fused_patterns"] > 0 == plain.report["fused_patterns"]
    for one, other in zip(model.run([X]), plain.run([X]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def with_op(place, **changes):
    ops = list(every_kind().ops)
    ops[place] = ops[place]._replace(**changes)
    return Module(ops)


def test_a_valid_module_is_ok():
    assert every_kind().verify() == (0, "ok")


@pytest.mark.parametrize(
    ("module", "code", "words"),
    [
        (Module([]), 2, "expected ops, got none"),
        (with_op(3, inputs=(0,) * 9), 3, r"op 3 \(op_3\): expected at most 8 inputs, got 9"),
        (with_op(0, shape=(1,) * 9), 4, r"op 0 \(x\): expected at most 8 dims"),
        (with_op(0, shape=(3, 0)), 4, "at least 1"),
        (with_op(0, shape=(3, -1)), 4, "at least 1"),
        (with_op(3, inputs=(0, 3)), 5, "expected inputs among the 3 earlier ops, got 3"),
        (with_op(3, inputs=(-1, 1)), 5, "got -1"),
        (with_op(5, kind="tanh"), 6, "got 'tanh'"),
        (with_op(5, dtype="f64"), 6, "'f64'"),
        (with_op(5, inputs=()), 6, "expected 1 to 1 inputs of relu, got 0"),
        (with_op(0, shape=None), 7, "expected a shape of input"),
        (with_op(1, value=None), 7, "expected a value of"),
        (with_op(1, value=W.astype("f8")), 7, "float64"),
        (with_op(1, value=W.T), 7, "expected a value of"),
    ],
)
def test_the_first_breach_has_a_code_and_names_the_op(module, code, words):
    assert module.verify()[0] == code
    with pytest.raises(ModuleError, match=words) as raised:
        compile_module(module)
    assert (raised.value.status, raised.value.code) == (Status.VERIFY_FAILED, code)


def test_an_op_may_have_as_many_inputs_and_dims_as_the_limits():
    assert with_op(3, inputs=(0,) * 8).verify()[0] == 6  # past the limit of inputs
    assert with_op(0, shape=(1,) * 8).verify()[0] == 0


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (with_op(1, shape=(4, 8), value=W.T.copy()), r"op 3 \(op_3\): MATMUL: expected as many"),
        (with_op(4, shape=(3, 5)), r"op 4 \(op_4\): expected .*3, 5.*, inferred float32, \(3, 4\)"),
        (with_op(0, shape=(1, 3, 8)), "expected 2 dims"),
        (with_op(10, name="y"), "expected outputs of different names"),
        (Module(every_kind().ops[:9]), "expected an output, got none"),
    ],
)
def test_what_does_not_fit_fails_to_compile(module, words):
    with pytest.raises(ModuleError, match=words) as raised:
        compile_module(module)
    assert raised.value.status == Status.COMPILE_FAILED


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((None,), Status.VERIFY_FAILED, "got None"),
        (("text",), Status.INVALID_ARGUMENT, "got str"),
        ((every_kind(), None, "cuda"), Status.INVALID_ARGUMENT, "got 'cuda'"),
        ((every_kind(), {}), Status.INVALID_ARGUMENT, "options: expected CompileOptions, got dict"),
        *(
            ((every_kind(), CompileOptions(**{name: value})), Status.INVALID_ARGUMENT, name)
            for name, value in (
                ("memory_budget_bytes", "much"),
                ("memory_budget_bytes", True),
                ("compile_budget_ms", None),
                ("compile_budget_ms", math.nan),
                ("rails", {}),
            )
        ),
        (
            (every_kind(), CompileOptions(enable_autotune=True, autotune_db_path="nowhere")),
            Status.COMPILE_FAILED,
            "nowhere",
        ),
    ],
)
def test_wrong_arguments_have_a_status(arguments, status, words):
    with pytest.raises((TaperError, OSError), match=words) as raised:
        compile_module(*arguments)
    assert raised.value.status == status


@pytest.mark.parametrize("inputs", [None, [], [X, X], [X[:2]], {"q": X}])
def test_inputs_that_do_not_fit_are_invalid_arguments(model, inputs):
    with pytest.raises(InputError) as raised:
        model.run(inputs)
    assert raised.value.status == model.status == Status.INVALID_ARGUMENT
    with pytest.raises(InputError, match="outputs: expected 2 arrays, got 1"):
        model.run([X], [X])
    model.run([X])
    assert model.status == Status.OK


def test_a_run_that_fails_has_a_status(model, monkeypatch):
    def fail(*arguments, **options):
        raise KernelError("broken")

    monkeypatch.setattr(model.session, "run", fail, raising=False)
    with pytest.raises(KernelError) as raised:
        model.run([X])
    assert raised.value.status == model.status == Status.RUNTIME_FAILED


def test_statuses_have_pycs_numbers():
    assert [status_name(i) for i in range(-1, 6)] == [
        "UNKNOWN",
        "OK",
        "INVALID_ARGUMENT",
        "VERIFY_FAILED",
        "COMPILE_FAILED",
        "RUNTIME_FAILED",
        "UNKNOWN",
    ]


def test_options_have_pycs_defaults():
    assert CompileOptions()._asdict() == {
        "enable_fusion": True,
        "enable_memory_reuse": True,
        "enable_autotune": False,
        "objective_mode": "balanced",
        "memory_budget_bytes": 0,
        "target_utilization_floor": 0.7,
        "deterministic_strict": True,
        "compile_budget_ms": 0.0,
        "cache_mode": "in_memory",
        "autotune_db_path": None,
        "rails": RuntimeRails(),
    }


def test_options_normalise_and_read_back():
    given = CompileOptions(
        objective_mode="fastest",
        memory_budget_bytes=-1,
        compile_budget_ms=-3.0,
        cache_mode="tape",
        rails=RuntimeRails(dwell_steps=0, cooldown_steps=7),
    )
    used = compile_module(every_kind(), given).options
    assert (used.objective_mode, used.cache_mode) == ("balanced", "in_memory")
    assert (used.memory_budget_bytes, used.compile_budget_ms) == (0, 0.0)
    assert (used.rails.dwell_steps, used.rails.cooldown_steps) == (4, 7)
    assert used.rails.enable_auto_switch is used.rails.enable_hard_rollback is False
    free = given._replace(deterministic_strict=False, objective_mode="memory_first").effective()
    assert free.rails.enable_auto_switch
    assert free.objective_mode == "memory_first"


def test_the_text_is_pycs():
    lines = every_kind().text().splitlines()
    assert lines[0] == "0:input:x:dtype=1:shape=3x8:inputs="
    digest = hashlib.sha256(W.tobytes()).hexdigest()
    assert lines[1] == f"1:const:w:dtype=1:shape=8x4:inputs=:value={digest}"
    assert lines[3] == "3:matmul::dtype=1:shape=:inputs=0,1"
    assert lines[8] == "8:reduce_sum::dtype=1:shape=:inputs=7:axes=0"


def test_the_fingerprint_is_fnv():
    text = b"0:input:x:dtype=1:shape=3x8:inputs=\n"
    found = 1469598103934665603
    for byte in text:
        found = ((found ^ byte) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    assert Module([ModuleOp("input", "x", shape=(3, 8))]).fingerprint() == found


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (0, {"name": "q"}),
        (0, {"shape": (2, 8)}),
        (0, {"dtype": "f16"}),
        (1, {"value": W + 1}),
        (4, {"inputs": (2, 3)}),
        (5, {"kind": "gelu"}),
        (7, {"eps": 1e-3}),
        (8, {"axes": (1,)}),
    ],
)
def test_each_part_of_a_module_changes_its_text(place, changes):
    assert with_op(place, **changes).fingerprint() != every_kind().fingerprint()


def test_processes_agree(model):
    """Text, plan and log are those of a process with another hash seed, where torch is not."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from test_module import every_kind, compile_module, told\n"
        "print(told(compile_module(every_kind())))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.path.dirname(__file__)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{told(model)}\n"


def told(model):
    numbers = f"{every_kind().fingerprint()} {model.plan.fingerprint()}"
    return "\n".join([numbers, log_without_times(model), *model.session.decision_log()])


def log_without_times(model):
    log = model.last_decision_log()
    return " ".join(part for part in log.split() if not part.startswith("compile_ms="))


def test_the_log_has_pycs_fields_in_their_order(model):
    fields = [part.split("=")[0] for part in model.last_decision_log().split(" ")]
    order = (
        "mode budget pressure kernel score util det cache_hit compile_ms budget_ms budget_exceeded "
        "graph_breaks break_first break_counts compilability autotune_loaded"
    )
    assert " ".join(fields) == order
    assert "break_first=none@-1 break_counts=0,0,0,0,0 compilability=1.000" in (
        model.last_decision_log()
    )


STATISTICS = """
compile_ms run_ms dispatch_ms graph_exec_ms controller_ms kernel_select_ms peak_bytes
total_requested_bytes reused_allocations rematerialized_tensors pressure_events pressure_score
selected_kernel_count selected_kernel_symbol selected_kernel_score estimated_utilization active_mode
rollback_reason rollback_count deterministic_contract_enforced deterministic_contract_ok
deterministic_contract_reason model_fingerprint compile_cache_hit compile_budget_exceeded
guard_miss_count fallback_count graph_break_count first_graph_break_op_id first_graph_break_op_name
graph_break_summary compilability_score autotune_loaded autotune_saved
"""


def test_every_statistic_is_readable(model):
    model.run([X])
    stats = model.stats
    assert {*STATISTICS.split(), *(f"graph_break_{kind}_count" for kind in BREAKS)} <= stats.keys()
    assert stats["run_ms"] > 0
    assert stats["compile_ms"] > 0
    assert 0 < stats["estimated_utilization"] <= 1
    assert stats["selected_kernel_count"] == len(model.plan.nodes)
    assert stats["active_mode"] == "balanced"
    assert not stats["compile_budget_exceeded"]
    late = compile_module(every_kind(), CompileOptions(compile_budget_ms=1e-6))
    assert late.stats["compile_budget_exceeded"]
    assert late.run([X])[0].shape == (4,)


def test_the_page_says_where_each_statistic_and_promise_is():
    page = (Path(__file__).parents[2] / "docs" / "from-pyc.md").read_text()
    for name in STATISTICS.split():
        assert f"`{name}`" in page, name
    rows = re.findall(r"^\| ((?:[B-S]\d+(?:, )?)+) \| .* \| (.*) \| .* \|$", page, re.MULTILINE)
    found = [each for ids, _ in rows for each in ids.split(", ")]
    expected = {"B": (13, 15), "D": (18, 24), "E": (16, 20), "L": (1, 23), "M": (1, 8), "N": (1, 6)}
    ids = [f"{k}{n}" for k, (first, last) in expected.items() for n in range(first, last + 1)]
    benchmarks = ["R2", "R3", "R4", "R5", "R7", "R8"]
    others = ["C26", "E10", "F11", "F12", "I7", "S15", "S16", "S17", *benchmarks]
    assert sorted(found) == sorted([*ids, *others])
    states = ("DONE", "REPLACED", "N/A")
    assert all(state.startswith(states) for _, state in rows)


def test_memory_above_the_budget_is_pressure():
    unmet = CompileOptions(enable_fusion=False, objective_mode="utilization_first")
    plain = compile_module(every_kind(), unmet)
    peak = plain.stats["peak_bytes"]
    assert peak > 0
    tight = unmet._replace(memory_budget_bytes=peak // 2)
    stats = compile_module(every_kind(), tight).stats
    assert stats["pressure_events"] == 1
    assert stats["pressure_score"] == (peak - peak // 2) / (peak // 2)
    met = compile_module(every_kind(), tight._replace(memory_budget_bytes=peak)).stats
    assert (met["pressure_events"], met["pressure_score"]) == (0, 0.0)


def test_a_memory_budget_is_met_by_computing_a_tensor_again(tmp_path):
    rng, wide = np.random.default_rng(0), 2048
    shapes = [(wide, 8), (8, 8), (8, wide), (wide, 8), (8, wide)]
    weights = [
        ModuleOp("const", f"w{i}", shape=s, value=rng.standard_normal(s, np.float32))
        for i, s in enumerate(shapes)
    ]
    ops = [ModuleOp("input", "x", shape=(1, wide)), *weights, ModuleOp("gelu", "", (0,))]
    for place in range(1, 6):
        ops.append(ModuleOp("matmul", "", (len(ops) - 1, place)))
    ops += [ModuleOp("add", "", (11, 6)), ModuleOp("output", "y", (12,))]
    x = [rng.standard_normal((1, wide), np.float32)]
    options = CompileOptions(enable_fusion=False)
    natural = compile_module(Module(ops), options, cache=tmp_path)
    peak = natural.stats["peak_bytes"]
    budget = int(0.6 * peak)
    model = compile_module(
        Module(ops), options._replace(memory_budget_bytes=budget), cache=tmp_path
    )
    (want,), (got,) = natural.run(x), model.run(x)
    assert want.tobytes() == got.tobytes()
    stats = model.stats
    assert stats["peak_bytes"] == model.session.stats().layout.arena_bytes <= budget
    assert (stats["rematerialized_tensors"], stats["pressure_events"]) == (1, 0)
    assert natural.stats["rematerialized_tensors"] == 0
    assert not stats["compile_cache_hit"]


def test_without_reuse_tensors_share_nothing():
    square = ModuleOp("const", "w", shape=(8, 8), value=np.eye(8, dtype=np.float32))
    products = [ModuleOp("matmul", "", (place, 1)) for place in (0, 2, 3, 4)]
    module = Module(
        [ModuleOp("input", "x", shape=(30, 8)), square, *products, ModuleOp("output", "y", (5,))]
    )
    alone = compile_module(module, CompileOptions(enable_memory_reuse=False)).stats
    shared = compile_module(module).stats
    assert alone["reused_allocations"] == 0 < shared["reused_allocations"]
    assert alone["peak_bytes"] > shared["peak_bytes"]


def test_allocations_are_counted_by_hand():
    pieces = [
        Piece(0, 64, 0, 1, "a", "tensor"),
        Piece(64, 64, 1, 2, "b", "tensor"),
        Piece(0, 32, 2, 3, "c", "tensor"),
        Piece(32, 32, 3, 3, "d", "tensor"),
    ]
    counted = memory_statistics(compile_module(every_kind()).plan, MemoryLayout(128, pieces, {}))
    assert counted == {
        "peak_bytes": 128,
        "total_requested_bytes": 192,
        "allocation_events": 4,
        "reused_allocations": 2,
        "overlap_pairs_observed": 3,
        "largest_allocation_bytes": 64,
        "rematerialized_tensors": 0,
    }


def test_live_values_are_those_of_a_simulation(model):
    plan = compile_module(every_kind(), CompileOptions(enable_fusion=False)).plan
    nodes = [node for node in plan.nodes if plan.is_executed(node)]
    peak = 0
    for at, node in enumerate(nodes):
        made = {name for each in nodes[: at + 1] for name in each.outputs}
        later = {name for each in nodes[at:] for name in each.reads} | set(plan.outputs)
        peak = max(peak, len((made & later) | set(node.outputs)))
    assert peak_live_values(plan) == peak
    assert model.report["peak_live_values"] <= peak


def test_a_changed_plan_is_a_guard_miss():
    strict = compile_module(every_kind())
    strict.check()
    changed = dict(strict.plan.constants)
    name = max(changed, key=lambda name: changed[name].size)
    changed[name] = changed[name] + 1
    strict.session.plan = strict.plan._replace(constants=changed)
    with pytest.raises(ModuleError, match="fingerprint_mismatch") as raised:
        strict.check()
    assert raised.value.status == strict.status == Status.RUNTIME_FAILED
    stats = strict.stats
    assert stats["guard_miss_count"] == 1
    assert not stats["deterministic_contract_ok"]
    assert stats["deterministic_contract_reason"] == "fingerprint_mismatch"


def test_a_hit_has_the_same_bits(tmp_path):
    first = compile_module(every_kind(), cache=tmp_path)
    second = compile_module(every_kind(), cache=tmp_path)
    assert (first.stats["compile_cache_hit"], second.stats["compile_cache_hit"]) == (False, True)
    assert first.run([X])[0].tobytes() == second.run([X])[0].tobytes()
    for other in (
        compile_module(every_kind(), CompileOptions(enable_fusion=False), cache=tmp_path),
        compile_module(with_op(1, value=W + 1), cache=tmp_path),
        compile_module(every_kind(), CompileOptions(cache_mode="disabled"), cache=tmp_path),
        compile_module(every_kind(), cache=False),
    ):
        assert not other.stats["compile_cache_hit"]


def test_graphs_and_plans_compile_too(model, tmp_path):
    graph = Graph()
    graph.set_outputs([graph.add_node("RELU", [graph.add_input("x", "float32", (3, 8))])])
    made = compile_module(graph, cache=tmp_path)
    assert made.run([X])[0].tobytes() == np.maximum(X, 0).tobytes()
    again = compile_module(model.plan)
    assert isinstance(again.plan, Plan)
    assert again.run([X])[0].tobytes() == model.run([X])[0].tobytes()
    assert again.stats["model_fingerprint"] == model.stats["model_fingerprint"]


def test_modules_compile_at_the_same_time():
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(compile_module(every_kind()).run([X])[0]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.tobytes() for result in results}) == 1


def test_the_rails_of_the_options_advise(model):
    loose = compile_module(every_kind(), CompileOptions(deterministic_strict=False))
    for _ in range(4):
        loose.controller.observe(loose.session.stats(), pressure_score=0.5)
    assert loose.stats["rollback_reason"] == "pressure"
    assert loose.stats["rollback_count"] == 2
    for _ in range(4):
        model.controller.observe(model.session.stats(), pressure_score=0.5)
    assert (model.stats["active_mode"], model.stats["rollback_count"]) == ("balanced", 0)
