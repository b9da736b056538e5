"""Compute fingerprints, which tell whether two plans compute the same."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from taper_runtime.file.container import dump_json
from taper_runtime.file.fields import write_arrays
from taper_runtime.file.writer import to_document

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: The fields that do not change what a plan computes.
_SAID = ("metadata", "source", "targets", "arguments")


def fingerprint(plan: Plan) -> str:
    """Return a SHA-256 of all that a run depends on: nodes, attrs, placements, weights, assets.

    Metadata, samples and source lines are left out. All weights are read, but nothing is computed:
    a plan without its derived constants has another fingerprint than the plan with them.

    Raises
    ------
    PlanFormatError
        If attrs or trees are not plain data.
    """
    digest = sha256(dump_json(_computed(to_document(plan))).encode())
    arrays = {name: array for name, array, _ in write_arrays(plan)}
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(dump_json([name, str(array.dtype), list(array.shape)]).encode())
        digest.update(array.reshape(-1).view("u1").data)
    return digest.hexdigest()


def _computed(value: Any) -> Any:
    """Return JSON without the fields that do not change what a plan computes."""
    if isinstance(value, dict):
        keys = value.keys() - _SAID if "nodes" in value or "op" in value else value.keys()
        return {key: _computed(value[key]) for key in sorted(keys)}
    return [_computed(item) for item in value] if isinstance(value, (list, tuple)) else value
