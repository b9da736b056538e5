"""Define how far back a run may go on, in states that do not keep all positions.

A caller says by an input where each row goes on, and may go back by a smaller position. States
whose positions are taken modulo their length, rings, keep the last ones only; a state of a
recurrence is of all tokens so far. So a plan of such states has one more, which counts the
positions of each row, and records this rule. A run that would read what is no longer there is
refused by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: The key in a plan's metadata.
_KEY = "rewind"


class RewindRule(NamedTuple):
    """The positions at which a row may go on.

    Attributes
    ----------
    position : str
        The input, int64 ``[rows]``. At position 0 a row begins anew, whatever it holds.
    reached : str
        The state, int64 ``[rows]``: the most positions that a row has had since it began. A run
        writes it.
    back : int
        How many positions behind ``reached`` a row may go on.
    whole : int
        Up to so many positions, all of them are kept.
    """

    position: str
    reached: str
    back: int
    whole: int

    def recorded(self, plan: Plan) -> Plan:
        """Return the plan with this rule in its metadata."""
        return plan._replace(metadata={**plan.metadata, _KEY: self._asdict()})

    def allows(self, reached: int, position: int) -> bool:
        """Return whether a row that has had ``reached`` positions may go on at a position."""
        return position == 0 or self._least(reached) <= position <= reached

    def _least(self, reached: int) -> int:
        return 0 if reached <= self.whole else max(reached - self.back, 0)

    def check(self, reached: np.ndarray, positions: object) -> None:
        """Check where the rows of a run go on.

        Parameters
        ----------
        reached : numpy.ndarray
            int64 ``[rows]``.
        positions : object
            The input. One of another type or shape is left to the checks of the run.

        Raises
        ------
        InputError
            If a row cannot go on there.
        """
        given = np.asarray(positions)
        if given.dtype.kind != "i" or given.shape != reached.shape:
            return
        for row, (most, position) in enumerate(zip(reached.tolist(), given.tolist(), strict=True)):
            if self.allows(most, position):
                continue
            least = self._least(most)
            others = f"{least} to {most}" if least < most else most
            raise InputError(
                f"{self.position}[{row}]: expected 0, where a row begins anew, or {others}: its "
                f"states have had {most} positions and can go back by {most - least}, got "
                f"{position}"
            )


def read_rewind_rule(plan: Plan) -> RewindRule | None:
    """Return the rule that a plan records; None if its rows may go on at any position.

    It does not concern an entry that has neither the input nor the state.

    Raises
    ------
    InputError
        If the rule does not fit the plan.
    """
    data = plan.metadata.get(_KEY)
    if data is None:
        return None
    fields = RewindRule._fields
    if not isinstance(data, dict) or data.keys() != {*fields}:
        raise InputError(
            f"metadata.{_KEY}: expected an object with {', '.join(fields)}, got {describe(data)}"
        )
    rule = RewindRule(**data)
    for name in ("position", "reached"):
        if type(data[name]) is not str:
            got = describe(data[name])
            raise InputError(f"metadata.{_KEY}.{name}: expected a name, got {got}")
    for name in ("back", "whole"):
        if type(data[name]) is not int or data[name] < 0:
            got = describe(data[name])
            raise InputError(f"metadata.{_KEY}.{name}: expected an int of at least 0, got {got}")
    if not {*rule[:2]} & {*plan.inputs, *plan.states}:
        return None
    for name, value, known in (
        ("position", rule.position, plan.inputs),
        ("reached", rule.reached, plan.states),
    ):
        spec = plan.tensors[value] if value in known else None
        if spec is None or spec.dtype != "int64" or len(spec.shape) != 1:
            raise InputError(
                f"metadata.{_KEY}.{name}: expected one of {[*known]}, int64 of rank 1, got "
                f"{describe(value)}"
            )
    return rule
