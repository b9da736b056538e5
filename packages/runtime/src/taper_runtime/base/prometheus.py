"""Write metrics in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Sample(NamedTuple):
    """A value of a metric.

    Attributes
    ----------
    labels : mapping of str to str
    value : float
    suffix : str
        Behind the metric's name, such as ``"_sum"``.
    """

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Metric(NamedTuple):
    """A metric and its values.

    Attributes
    ----------
    name : str
        Without the prefix ``taper_``.
    kind : str
        ``"counter"``, ``"gauge"`` or ``"histogram"``.
    text : str
        Its meaning.
    samples : sequence of Sample
    """

    name: str
    kind: str
    text: str
    samples: Sequence[Sample]


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Return the text of metrics; samples of one name, as of several models, are grouped."""
    found: dict[str, Metric] = {}
    for each in metrics:
        samples = [*found[each.name].samples, *each.samples] if each.name in found else each.samples
        found[each.name] = each._replace(samples=samples)
    lines = []
    for name, kind, text, samples in found.values():
        lines.append(f"# HELP taper_{name} {text}\n# TYPE taper_{name} {kind}\n")
        lines += [f"taper_{name}{suffix}{_braces(at)} {value}\n" for at, value, suffix in samples]
    return "".join(lines)


def _braces(labels: Mapping[str, str]) -> str:
    """Return labels in braces, with their values escaped."""
    if not labels:
        return ""
    values = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"
