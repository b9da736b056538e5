"""Count what a server does, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING

from taper_runtime.base.prometheus import Metric, Sample, metrics_text
from taper_runtime.session.stats import session_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taper_runtime.serving.served_model import ServedModel

#: Upper ends of the histograms' buckets, in seconds.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_COUNTERS = {
    "server_requests_total": "Answered requests, by path and status.",
    "server_refused_total": "Requests refused because too many were there.",
    "server_prompt_tokens_total": "Tokens of prompts.",
    "server_generated_tokens_total": "Tokens of texts.",
    "server_cancelled_texts_total": "Texts whose client went away, or that took too long.",
}

_HISTOGRAMS = {
    "server_request_seconds": "Seconds from a request to the end of its answer.",
    "server_first_token_seconds": "Seconds from a text's request to its first token.",
    "server_token_seconds": "Seconds from one token of a text to the next.",
}


class Histogram:
    """Counts of durations in seconds, by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        """Yield the values of the metric."""
        total = 0
        for end, count in zip((*map(str, _BUCKETS), "+Inf"), self._counts, strict=True):
            total += count
            yield Sample({**labels, "le": end}, total, "_bucket")
        yield Sample(labels, self._sum, "_sum")
        yield Sample(labels, total, "_count")


class ServerMetrics:
    """Counters and histograms of a server; several threads may add to them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, Counter[tuple[tuple[str, str], ...]]] = {
            name: Counter() for name in _COUNTERS
        }
        self._times: dict[str, dict[tuple[tuple[str, str], ...], Histogram]] = {
            name: {} for name in _HISTOGRAMS
        }

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name][(*labels.items(),)] += amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Add to a histogram."""
        with self._lock:
            self._times[name].setdefault((*labels.items(),), Histogram()).add(seconds)

    def text(self, models: Sequence[ServedModel]) -> str:
        """Return all metrics, with those of the models' sessions, in Prometheus' text format."""
        with self._lock:
            own = [*self._own()]
        gauges = [metric for model in models for metric in _model_metrics(model)]
        return metrics_text([*own, *gauges])

    def _own(self) -> Iterator[Metric]:
        for name, meaning in _COUNTERS.items():
            counts = [Sample(dict(at), value) for at, value in self._counts[name].items()]
            yield Metric(name, "counter", meaning, counts)
        for name, meaning in _HISTOGRAMS.items():
            times = [s for at, each in self._times[name].items() for s in each.samples(dict(at))]
            yield Metric(name, "histogram", meaning, times)


def _model_metrics(model: ServedModel) -> Iterator[Metric]:
    """Yield the metrics of a model that need no counters here."""
    labels = {"model": model.name}
    if model.writer is not None:
        generator = model.writer.generator
        for name, meaning, value in (
            ("server_active_texts", "Texts that are being written.", len(generator.active)),
            ("server_waiting_texts", "Texts that wait for a place.", len(generator.waiting)),
        ):
            yield Metric(name, "gauge", meaning, [Sample(labels, value)])
    yield from session_metrics(model.session.stats(), labels)
