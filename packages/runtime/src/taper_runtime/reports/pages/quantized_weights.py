"""Show what quantization did to the layers of a plan, on the page of ``taper report``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.recipes import parameter_names
from taper_runtime.reports.pages.histogram import histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_runtime.plan.plan import Plan, PlanNode


class WeightRecord(NamedTuple):
    """Record of a weight, as the plan's metadata have it.

    Attributes
    ----------
    name, op, scheme, arithmetic : str
    before, after : int
        Bytes.
    error : float
        The relative error of its numbers.
    """

    name: str
    op: str
    scheme: str
    arithmetic: str
    before: int
    after: int
    error: float

    @property
    def text(self) -> str:
        """Return a line about it."""
        return (
            f"{self.name}: {self.scheme}, relative error {self.error:.3g}, {self.before:,} bytes "
            f"before, {self.after:,} after; {self.arithmetic}"
        )


_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "op", "scheme", "arithmetic"), str),
    **dict.fromkeys(("before", "after"), int),
    "error": (int, float),
}


def _report(plan: Plan) -> Mapping[str, Any]:
    """Return the export's report on quantization; metadata are not trusted."""
    found = plan.metadata.get("quantized")
    return found if isinstance(found, dict) else {}


def quantized_layers(plan: Plan) -> dict[str, WeightRecord]:
    """Return the weights that were quantized, by their names."""
    rows = _report(plan).get("layers")
    valid = [
        WeightRecord(**{key: row[key] for key in _TYPES})
        for row in (rows if isinstance(rows, list | tuple) else ())
        if isinstance(row, dict) and all(isinstance(row.get(k), t) for k, t in _TYPES.items())
    ]
    return {layer.name: layer for layer in valid}


def distances(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield how far each output is from that of the float model."""
    apart = _report(plan).get("distance")
    for name, row in apart.items() if isinstance(apart, dict) else ():
        values = (
            [row.get(key) for key in ("relative_error", "cosine")] if isinstance(row, dict) else []
        )
        if values and all(isinstance(value, float) for value in values):
            yield name, f"relative error {values[0]:.3g}, cosine {values[1]:.6f}"


def layer_of(plan: Plan, node: PlanNode, layers: Mapping[str, WeightRecord]) -> WeightRecord | None:
    """Return the quantized weight that a node reads."""
    for name in node.reads:
        for parameter in parameter_names(plan.recipes.get(name, ())):
            layer = layers.get(parameter.rpartition(".")[0])
            if layer is not None:
                return layer
    return None


def quantized_table(
    plan: Plan, layers: Mapping[str, WeightRecord], before: Plan | None
) -> list[dict[str, Any]]:
    """Return the section with a row for each quantized weight; none without any.

    Parameters
    ----------
    plan : Plan
    layers : mapping of str to WeightRecord
    before : Plan, optional
        The plan with float weights, for their histograms.
    """
    if not layers:
        return []
    kinds = {"name": "text", "op": "text", "scheme": "text", "bytes before": "bytes"}
    kinds |= {"bytes after": "bytes", "error, %": "number", "error": "bar"}
    if before is not None:
        kinds["values before"] = "histogram"
    kinds["values after"] = "histogram"
    was = {} if before is None else _by_parameters(before)
    now: dict[str, str] = {}
    for parameters, constant in _by_parameters(plan).items():
        now.setdefault(min(parameters).rpartition(".")[0], constant)
    rows = []
    for layer in layers.values():
        row: list[Any] = [layer.name, layer.op, layer.scheme, layer.before, layer.after]
        row += [round(100 * layer.error, 3), [layer.error]]
        if before is not None:
            row.append(_values(before, was.get(frozenset(layer.name.split(" + ")))))
        rows.append([*row, _values(plan, now.get(layer.name))])
    return [
        {
            "kind": "table",
            "title": "Quantized weights",
            "note": "The error is that of a weight's numbers, |w - decoded| / |w|.",
            "columns": [{"name": name, "kind": kind} for name, kind in kinds.items()],
            "rows": rows,
        }
    ]


def predicted_table(plan: Plan) -> list[dict[str, Any]]:
    """Return the section with the predicted times of layers; none without predictions.

    Parameters
    ----------
    plan : Plan
        Of a module that :func:`taper_frontend.quantize` made.
    """
    rows = _report(plan).get("predictions")
    valid = [
        [row["name"], row["computes"], *times, round(times[1] / times[0], 2), [*times]]
        for row in (rows if isinstance(rows, list | tuple) else ())
        if isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("name", "computes"))
        and all(isinstance(row.get(key), float) for key in ("int8_us", "float32_us"))
        and min(times := (row["int8_us"], row["float32_us"])) > 0
        and max(times) < math.inf
    ]
    if not valid:
        return []
    kinds = {"layer": "text", "computed in": "text", "int8, us": "number"}
    kinds |= {"float32, us": "number", "float32 / int8": "number", "int8, and float32": "bar"}
    return [
        {
            "kind": "table",
            "title": "Predicted times of quantized layers",
            "note": "On one thread of the machine that quantized the module. A layer that bytes "
            "make slower by a quarter stays float32.",
            "columns": [{"name": name, "kind": kind} for name, kind in kinds.items()],
            "rows": valid,
        }
    ]


def _by_parameters(plan: Plan) -> dict[frozenset[str], str]:
    """Return the largest constant that is made of the same parameters."""
    found: dict[frozenset[str], str] = {}
    for name in sorted(plan.constants, key=lambda name: -plan.constants[name].nbytes):
        parameters = frozenset(parameter_names(plan.recipes.get(name, ())))
        if parameters:
            found.setdefault(parameters, name)
    return found


def _values(plan: Plan, constant: str | None) -> list[int]:
    """Return the counts of a histogram; none if the plan lacks the constant."""
    counts: list[int] = [] if constant is None else histogram(plan, constant)[2]
    return counts
