"""Scripted observations of the controller that advises modes."""

import dataclasses

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime import InferenceSession, InputError, RuntimeController, RuntimeRails
from taper_runtime.session.rails import MODES, Observation

FINE = Observation(1.0, 10.0, 1.0, 10.0)
SLOW = FINE._replace(p95_s=1.09)
FEW = FINE._replace(runs_per_s=9.4)
PRESSED = FINE._replace(pressure_events=1)
FAILED = FINE._replace(failed=True)


@dataclasses.dataclass
class Written:
    """The rules as PyC's documents write them, for comparison with long random sequences."""

    rails: RuntimeRails
    mode: str = "balanced"
    steps: int = 0
    cooldown: int = 0
    consecutive: int = 0
    rollbacks: int = 0
    reason: str = "none"

    def see(self, breach):
        self.steps += 1
        if self.cooldown > 0:
            self.cooldown -= 1
        self.consecutive = 0 if breach == "none" else self.consecutive + 1
        windows = self.rails.consecutive_breach_windows
        if self.rails.enable_hard_rollback and self.consecutive >= windows:
            self.reason, self.rollbacks, self.mode = breach, self.rollbacks + 1, "balanced"
            self.steps, self.cooldown, self.consecutive = 0, self.rails.cooldown_steps, 0
            return
        if (
            not self.rails.enable_auto_switch
            or self.cooldown
            or self.steps < self.rails.dwell_steps
        ):
            return
        wanted = self.mode
        if breach == "pressure" and self.mode != "memory_first":
            wanted = "memory_first"
        elif breach == "none" and self.mode in ("memory_first", "utilization_first"):
            wanted = "balanced"
        if wanted != self.mode:
            self.mode, self.steps, self.cooldown = wanted, 0, self.rails.cooldown_steps


def test_the_defaults_are_those_of_pyc():
    assert RuntimeRails() == (4, 2, 2, 0.08, 0.05, 0.20, True, True, 1, 4)
    assert RuntimeController().mode == "balanced"


@pytest.mark.parametrize(
    ("seen", "breach"),
    [
        (FINE, "none"),
        (FINE._replace(p95_s=1.08), "none"),
        (SLOW, "latency"),
        (SLOW._replace(baseline_p95_s=None), "none"),
        (FINE._replace(runs_per_s=9.5), "none"),
        (FEW, "throughput"),
        (FEW._replace(baseline_runs_per_s=None), "none"),
        (FINE._replace(pressure_score=0.2), "none"),
        (FINE._replace(pressure_score=0.201), "pressure"),
        (PRESSED, "pressure"),
        (FINE._replace(rematerialized_tensors=3), "none"),
        (FINE._replace(rematerialized_tensors=4), "pressure"),
        (FAILED, "runtime_error"),
        (FAILED._replace(p95_s=9.0, runs_per_s=0.0, pressure_score=9.0), "runtime_error"),
        (SLOW._replace(runs_per_s=0.0, pressure_score=9.0), "latency"),
        (FEW._replace(pressure_score=9.0), "throughput"),
    ],
)
def test_the_first_limit_that_is_exceeded_is_the_breach(seen, breach):
    controller = RuntimeController()
    controller.step(seen)
    assert controller.breach == breach


@pytest.mark.parametrize("seen", [SLOW, FEW, PRESSED, FAILED])
def test_two_breaches_in_a_row_lead_back(seen):
    controller = RuntimeController(mode="utilization_first")
    assert [controller.step(each) for each in (seen, FINE, seen)] == ["utilization_first"] * 3
    assert controller.rollback_count == 0
    assert controller.step(seen) == "balanced"
    assert controller.rollback_reason == controller.breach != "none"
    assert (controller.rollback_count, controller.cooldown) == (1, 2)
    controller.step(FINE)
    assert controller.rollback_reason != "none"


def test_pressure_switches_after_the_dwell_and_calm_switches_back():
    controller = RuntimeController(RuntimeRails(enable_hard_rollback=False))
    assert [controller.step(PRESSED) for _ in range(4)] == ["balanced"] * 3 + ["memory_first"]
    assert [controller.step(FINE) for _ in range(4)] == ["memory_first"] * 3 + ["balanced"]


def test_nothing_changes_where_neither_is_enabled():
    rails = RuntimeRails(enable_auto_switch=False, enable_hard_rollback=False)
    for mode in MODES:
        controller = RuntimeController(rails, mode)
        assert {controller.step(seen) for seen in [SLOW, PRESSED, FINE, FAILED] * 9} == {mode}


@pytest.mark.parametrize("seed", range(20))
def test_random_sequences_follow_the_written_rules(seed):
    draw = np.random.default_rng(seed)
    rails = RuntimeRails(
        dwell_steps=int(draw.integers(1, 5)),
        cooldown_steps=int(draw.integers(0, 4)),
        consecutive_breach_windows=int(draw.integers(1, 4)),
        enable_auto_switch=bool(draw.integers(2)),
        enable_hard_rollback=bool(draw.integers(2)),
    )
    mode = MODES[draw.integers(3)]
    controller, written = RuntimeController(rails, mode), Written(rails, mode)
    seen = {"none": FINE, "latency": SLOW, "throughput": FEW, "pressure": PRESSED}
    for breach in draw.choice([*seen, "none", "none"], 300):
        controller.step(seen[breach])
        written.see(breach)
        assert controller.mode == written.mode
        assert controller.rollback_reason == written.reason
        assert controller.rollback_count == written.rollbacks


WRONG = {
    "dwell_steps": [0, 100_001, 1.5, True, None, "4"],
    "cooldown_steps": [-1, 100_001],
    "consecutive_breach_windows": [0, 1001],
    "latency_regression_threshold": [0, -0.1, 1.01, float("nan"), float("inf"), "1"],
    "throughput_regression_threshold": [0.0, 2],
    "pressure_score_threshold": [0, 10.5],
    "pressure_events_threshold": [0],
    "rematerialized_tensors_threshold": [0],
    "enable_auto_switch": [2, "yes"],
    "enable_hard_rollback": [None, -1],
    "dwell": [4],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in WRONG for value in WRONG[name]],
)
def test_values_out_of_range_are_refused_or_normalized_with_a_reason(name, value):
    with pytest.raises(InputError, match=f"RuntimeRails.{name}: expected"):
        RuntimeRails.checked(**{name: value})
    rails, problems = RuntimeRails.normalized({name: value, "cooldown_steps": 7} | {name: value})
    assert rails == RuntimeRails(cooldown_steps=2 if name == "cooldown_steps" else 7)
    assert len(problems) == 1
    if name in RuntimeRails._fields:
        with pytest.raises(InputError, match=name):
            RuntimeController(RuntimeRails(**{name: value}))


@pytest.mark.parametrize("arguments", [{"mode": "fast"}, {"mode": None}, {"rails": (4, 2)}])
def test_wrong_controllers(arguments):
    with pytest.raises(InputError, match="expected"):
        RuntimeController(**arguments)


def test_a_session_that_fails_leads_back():
    session = InferenceSession(small_plan())
    controller = RuntimeController(
        RuntimeRails(consecutive_breach_windows=1), mode="utilization_first"
    )
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    assert controller.observe(session.stats()) == "utilization_first"
    with pytest.raises(InputError):
        session.run(None, {})
    assert controller.observe(session.stats()) == "balanced"
    assert controller.rollback_reason == "runtime_error"
    assert controller.observe(session.stats()) == "balanced"
    assert controller.rollback_count == 1
