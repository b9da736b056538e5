"""Advise which of several sessions of a model to use: ``RuntimeController``.

The rules and their defaults are those of PyC's runtime controller, so that its users find the same
modes and reasons. A controller changes nothing by itself and reads no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import is_one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.session.stats import Stats

#: What a controller can advise.
MODES = ("balanced", "memory_first", "utilization_first")

#: Why a controller has gone back to ``balanced``, or would.
REASONS = ("none", "latency", "throughput", "pressure", "runtime_error")

#: The least and the most that each limit may be. Those of shares are without 0.
_RANGES: Mapping[str, tuple[float, float]] = {
    "dwell_steps": (1, 100_000),
    "cooldown_steps": (0, 100_000),
    "consecutive_breach_windows": (1, 1000),
    "latency_regression_threshold": (0, 1),
    "throughput_regression_threshold": (0, 1),
    "pressure_score_threshold": (0, 10),
    "pressure_events_threshold": (1, 100_000),
    "rematerialized_tensors_threshold": (1, 100_000),
}
_FLAGS = ("enable_auto_switch", "enable_hard_rollback")


class RuntimeRails(NamedTuple):
    """Limits within which a session is as good as at first, and how to react outside of them.

    :meth:`checked` makes rails of numbers that may be wrong.

    Attributes
    ----------
    dwell_steps : int
        Observations for which a mode is kept before another one is advised; 1 to 100,000.
    cooldown_steps : int
        Observations after a change for which no other change is advised; 0 to 100,000.
    consecutive_breach_windows : int
        Observations in a row outside of the limits that lead back to ``"balanced"``; 1 to 1000.
    latency_regression_threshold : float
        By what share the 95th percentile may exceed the baseline's; above 0 and at most 1.
    throughput_regression_threshold : float
        By what share the runs per second may stay below the baseline's; above 0 and at most 1.
    pressure_score_threshold : float
        By what share the memory may exceed the budget; above 0 and at most 10.
    enable_auto_switch : bool
        Whether ``"memory_first"`` may be advised under pressure, and ``"balanced"`` after it.
    enable_hard_rollback : bool
        Whether breaches lead back to ``"balanced"``.
    pressure_events_threshold : int
        From how many times on that the memory exceeds the budget it is a breach; 1 to 100,000.
    rematerialized_tensors_threshold : int
        From how many tensors on that are computed again to save memory it is a breach; 1 to
        100,000.
    """

    dwell_steps: int = 4
    cooldown_steps: int = 2
    consecutive_breach_windows: int = 2
    latency_regression_threshold: float = 0.08
    throughput_regression_threshold: float = 0.05
    pressure_score_threshold: float = 0.20
    enable_auto_switch: bool = True
    enable_hard_rollback: bool = True
    pressure_events_threshold: int = 1
    rematerialized_tensors_threshold: int = 4

    @staticmethod
    def checked(**values: Any) -> RuntimeRails:
        """Return rails with these values.

        Raises
        ------
        InputError
            If there is no such limit, or a value is outside of its range.
        """
        rails, problems = RuntimeRails.normalized(values)
        if problems:
            raise InputError("; ".join(problems))
        return rails

    @staticmethod
    def normalized(values: Mapping[str, Any]) -> tuple[RuntimeRails, list[str]]:
        """Return rails with the default for each value outside of its range, and the reasons."""
        problems, kept = [], {}
        for name, value in values.items():
            if problem := _problem(name, value):
                problems.append(f"RuntimeRails.{name}: {problem}, got {value!r}")
            else:
                kept[name] = value
        return RuntimeRails(**kept), problems


def _problem(name: str, value: object) -> str | None:
    """Return what a value of rails should be, if it is something else."""
    if name in _FLAGS:
        return None if value in (0, 1) else "expected True or False"
    if name not in _RANGES:
        return f"expected one of {', '.join(RuntimeRails._fields)}"
    least, most = _RANGES[name]
    takes_float = isinstance(RuntimeRails._field_defaults[name], float)
    if isinstance(value, bool) or not isinstance(value, (int, float) if takes_float else int):
        right = False
    else:  # NaN is in no range
        right = least < value <= most if takes_float else least <= value <= most
    if takes_float:
        return None if right else f"expected a number above {least} and at most {most}"
    return None if right else f"expected {least} to {most}"


class Observation(NamedTuple):
    """Figures of a window of runs, for a controller.

    Attributes
    ----------
    p95_s, runs_per_s : float
        The 95th percentile of the runs' seconds, and runs per second.
    baseline_p95_s, baseline_runs_per_s : float or None
        The same of the session's first runs; None: not known yet, so that nothing is compared.
    failed : bool
        Whether a run raised an error.
    pressure_score : float
        By what share the memory exceeds the budget; 0 without a budget.
    pressure_events, rematerialized_tensors : int
        How many times it does, and how many tensors are computed again to save memory.
    """

    p95_s: float = 0.0
    runs_per_s: float = 0.0
    baseline_p95_s: float | None = None
    baseline_runs_per_s: float | None = None
    failed: bool = False
    pressure_score: float = 0.0
    pressure_events: int = 0
    rematerialized_tensors: int = 0


class RuntimeController:
    """Advise a mode, observation by observation.

    Attributes
    ----------
    rails : RuntimeRails
    mode : str
        ``"balanced"``, ``"memory_first"`` or ``"utilization_first"``: the mode to use now.
    breach : str
        Which limit the last observation exceeds: ``"none"``, ``"latency"``, ``"throughput"``,
        ``"pressure"`` or ``"runtime_error"``.
    rollback_reason : str
        The breach that last led back to ``"balanced"``; ``"none"`` before the first time.
    rollback_count : int
    steps_in_mode, cooldown, consecutive_breaches : int
        Observations since the last change of the mode, those for which none is advised any more,
        and the breaches in a row.

    Parameters
    ----------
    rails : RuntimeRails, optional
    mode : str
        The mode at first.

    Raises
    ------
    InputError
        If the mode is none of these, or the rails are outside of their ranges.
    """

    def __init__(self, rails: RuntimeRails | None = None, mode: str = "balanced") -> None:
        if not is_one_of(mode, MODES):
            raise InputError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        given = RuntimeRails() if rails is None else rails
        if not isinstance(given, RuntimeRails):
            raise InputError(f"rails: expected RuntimeRails, got {type(rails).__name__}")
        self.rails = RuntimeRails.checked(**given._asdict())
        self.mode, self.breach = mode, "none"
        self.rollback_reason, self.rollback_count = "none", 0
        self.steps_in_mode = self.cooldown = self.consecutive_breaches = 0
        self._errors = 0

    def observe(
        self,
        stats: Stats,
        *,
        pressure_score: float = 0.0,
        pressure_events: int = 0,
        rematerialized_tensors: int = 0,
    ) -> str:
        """Return the mode to use after a window of runs of a session.

        Parameters
        ----------
        stats : Stats
            ``session.stats()``: its latest 20 runs are compared with its baseline. A run counts as
            failed if the session has more errors than at the last call.
        pressure_score : float
        pressure_events, rematerialized_tensors : int
            See :class:`Observation`.
        """
        window, baseline = stats.window, stats.baseline
        failed, self._errors = stats.errors > self._errors, stats.errors
        return self.step(
            Observation(
                window.p95_s,
                window.runs_per_s,
                None if baseline is None else baseline.p95_s,
                None if baseline is None else baseline.runs_per_s,
                failed,
                pressure_score,
                pressure_events,
                rematerialized_tensors,
            )
        )

    def step(self, seen: Observation) -> str:
        """Return the mode to use after an observation."""
        rails = self.rails
        self.steps_in_mode += 1
        self.cooldown = max(self.cooldown - 1, 0)
        self.breach = _breach(rails, seen)
        breached = self.breach != "none"
        self.consecutive_breaches = self.consecutive_breaches + 1 if breached else 0
        is_long = self.consecutive_breaches >= rails.consecutive_breach_windows
        if rails.enable_hard_rollback and breached and is_long:
            self.rollback_reason = self.breach
            self.rollback_count += 1
            self.consecutive_breaches = 0
            self._enter("balanced")
        elif rails.enable_auto_switch:
            self._switch()
        return self.mode

    def _switch(self) -> None:
        """Enter the mode that the last breach asks for, if the present one is old enough."""
        if self.cooldown or self.steps_in_mode < self.rails.dwell_steps:
            return
        if self.breach == "pressure" and self.mode != "memory_first":
            self._enter("memory_first")
        elif self.breach == "none" and self.mode != "balanced":
            self._enter("balanced")

    def _enter(self, mode: str) -> None:
        self.mode, self.steps_in_mode, self.cooldown = mode, 0, self.rails.cooldown_steps


def _breach(rails: RuntimeRails, seen: Observation) -> str:
    """Return the first limit that an observation exceeds, or ``"none"``."""
    if seen.failed:
        return "runtime_error"
    slowest = seen.baseline_p95_s
    if slowest and seen.p95_s > slowest * (1 + rails.latency_regression_threshold):
        return "latency"
    fewest = seen.baseline_runs_per_s
    if fewest and seen.runs_per_s < fewest * (1 - rails.throughput_regression_threshold):
        return "throughput"
    if (
        seen.pressure_score > rails.pressure_score_threshold
        or seen.pressure_events >= rails.pressure_events_threshold
        or seen.rematerialized_tensors >= rails.rematerialized_tensors_threshold
    ):
        return "pressure"
    return "none"
