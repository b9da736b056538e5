"""Tell what a session and its export chose: the lines of ``session.decision_log()``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from taper_runtime.base.decisions import Decision, read_decisions
from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted, nearest
from taper_runtime.executor.offers import find_offers
from taper_runtime.executor.packing import formats_of_weights
from taper_runtime.executor.tuned_choice import TunedChoice, Way, offer_name, ways_of
from taper_runtime.machine.choices import WORTH, estimate_ns
from taper_runtime.machine.limits import typical
from taper_runtime.native import _kernels
from taper_runtime.plan.features import with_inner
from taper_runtime.session.opening import make_dispatch, threads_of_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_runtime.executor.offers import NodeOffers
    from taper_runtime.executor.sites import Site
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.native.variants import KernelName
    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.entry import SessionEntry
    from taper_runtime.session.options import SessionOptions

#: How many of the kernels that refused a node are named.
_REFUSED = 3

_LEAST = f"least estimated time, if at most {WORTH} of the default's"


def session_decisions(
    plan: Plan, entry: SessionEntry, options: SessionOptions, providers: tuple[str, ...]
) -> list[Decision]:
    """Return the decisions of an export and a session, in the order in which they were made.

    Nothing is kept while a session is opened or runs: candidates are asked for again.

    Parameters
    ----------
    plan : Plan
        As the session runs it.
    entry : SessionEntry
        The default entry.
    options : SessionOptions
    providers : tuple of str

    Raises
    ------
    PlanFormatError
        If the decisions in the plan's metadata are damaged.
    """
    dispatch = make_dispatch(options, providers)
    found = [*read_decisions(plan.metadata), *_of_cache(plan), *_of_session(options, providers)]
    if options.packing == "at_open":
        found += _of_formats(plan, dispatch, options)
    found += _of_kernels(entry, dispatch, options)
    for use in entry.delegate_uses():
        instead = "an error" if use.reason == "forced_error" else "its graph"
        chosen = use.backend if use.is_used else instead
        among = dict.fromkeys((use.backend, "its graph"))
        why = f"{use.reason} ({use.error})" if use.error else use.reason
        found.append(Decision("delegate", use.node, chosen, among, why))
    tuned = entry.tuned_nodes()
    if tuned is not None:
        used = f"{counted(len(tuned.changed), 'node')} differ from the default kernel"
        text = f"{len(tuned.chosen)} used, {len(tuned.missing)} missing"
        found.append(Decision("tuned", "", text, reason="; ".join([used, *tuned.skipped])))
    return found


def _of_cache(plan: Plan) -> Iterator[Decision]:
    """Yield whether the plan came from the export's cache, and the reason if not."""
    cache = plan.metadata.get("cache")
    if isinstance(cache, dict):
        taken = "taken" if cache.get("hit") is True else "made"
        yield Decision(
            "cache", "", taken, dict.fromkeys(("taken", "made")), str(cache.get("reason", ""))
        )


def decisions_about(plan: Plan, name: str) -> list[Decision]:
    """Return what was chosen about a node and the weights that it reads, with default options.

    Delegates are left out: their subgraphs are described as graphs.

    Parameters
    ----------
    plan : Plan
    name : str
        One of the node's outputs.

    Raises
    ------
    InputError
        If no node has this output.
    """
    from taper_runtime.session.inference_session import InferenceSession
    from taper_runtime.session.options import SessionOptions

    nodes = list(with_inner(plan.entry().nodes))
    outputs = [output for node in nodes for output in node.outputs]
    if name not in outputs:
        near = nearest(name, outputs)
        hint = f"did you mean {near!r}?" if near else "`taper inspect` lists the nodes"
        raise InputError(f"why: unknown node {name!r}; {hint}")
    options = SessionOptions()
    options.delegates = {n.attrs["backend"]: None for n in nodes if n.op == "CALL_DELEGATE"}
    session = InferenceSession(plan, options)
    reads = {read for node in nodes if name in node.outputs for read in node.reads}
    about = {name, *(reads & plan.constants.keys())}
    return [each for each in session.decisions() if each.name in about]


def _of_session(options: SessionOptions, providers: tuple[str, ...]) -> Iterator[Decision]:
    """Yield the decisions about the whole session."""
    why = "TAPER_ISA" if os.environ.get("TAPER_ISA") else "the best of this CPU"
    if options.isa:
        why = "SessionOptions.isa"
    among = dict.fromkeys(_kernels.available_isas())
    yield Decision("isa", "", _kernels.active_isa(options.isa), among, why)
    threads, variable = threads_of_environment()
    why = variable or "the CPUs of this process"
    if options.intra_op_num_threads:
        threads, why = options.intra_op_num_threads, "SessionOptions.intra_op_num_threads"
    yield Decision("threads", "", str(threads), reason=why)
    yield Decision("executor", "", options.executor)
    yield Decision("providers", "", ", ".join(providers))
    checked = "compared when a file is opened" if options.check_fingerprint else "not compared"
    yield Decision("fingerprint", "", checked, reason="SessionOptions.check_fingerprint")
    yield Decision("packing", "", options.packing, reason="SessionOptions.packing")


def _of_formats(plan: Plan, dispatch: Dispatch, options: SessionOptions) -> Iterator[Decision]:
    """Yield the formats of weights that were packed for this machine."""
    tuned = dispatch.choice if isinstance(dispatch.choice, TunedChoice) else None
    other_bits = options.kernel_choice == "cost" if tuned is None else tuned.other_bits
    ways = formats_of_weights(plan, _not_required(dispatch), other_bits=other_bits)
    for name, times in ways.items():
        among = {format: round(ns) for format, ns in sorted(times.items())}
        why = _LEAST if tuned is None else "measured times, else least estimated"
        yield Decision("packed as", name, plan.tensors[name].format, among, why)


def _of_kernels(
    entry: SessionEntry, dispatch: Dispatch, options: SessionOptions
) -> Iterator[Decision]:
    """Yield what computes each node; if sizes vary, for those of the last run."""
    served = [kind for _, kind in entry.executor.served]
    without = [node.output for node, kind in entry.executor.served if kind == "numpy"]
    score = f"{len(served) - len(without)} of {counted(len(served), 'node')}"
    why = f"first without: {without[0]}" if without else ""
    yield Decision("native kernels", "", score, reason=why)
    sized = entry.executor.sized_sites if entry.plan.sizes else None
    for place, ((site, kernel), kind) in enumerate(zip(entry.executor.steps, served, strict=True)):
        if site.runs_blocks or site.node.op == "CALL_DELEGATE":
            continue
        about = "kernel" if kind == "native" else kind
        label = site.node.output
        if kind not in ("native", "numpy") or (entry.plan.sizes and sized is None):
            yield Decision(about, label, str(kernel), reason=site.node.op)
            continue
        yield _of_kernel(site if sized is None else sized[place], kernel, dispatch, options)


def _of_kernel(
    site: Site, kernel: KernelName, dispatch: Dispatch, options: SessionOptions
) -> Decision:
    """Return the decision about the kernel of a node, or why it has none."""
    node = site.node
    asked = _not_required(dispatch)
    heard = find_offers(site.plan, node, asked)
    if not heard.offers:
        why = [f"{name}: {reason}" for name, reason in heard.refused[:_REFUSED]]
        text = "; ".join(why) or f"no kernel of {node.op} at level {dispatch.isa}"
        return Decision("numpy", node.output, "numpy", reason=f"{node.op}: {text}")
    among, why_chosen = _times(heard, dispatch, options)
    fewer = 0
    if heard.taken is not None and isinstance(asked.choice, TunedChoice):
        fewer = asked.choice.threads(heard.node, heard.taken)
    chosen = str(Way(kernel, fewer))
    return Decision("kernel", node.output, chosen, among, f"{node.op}: {why_chosen}")


def _not_required(dispatch: Dispatch) -> Dispatch:
    """Return a dispatch with the same choices, but no error if measured times are missing."""
    if isinstance(dispatch.choice, TunedChoice):
        return dispatch._replace(choice=dispatch.choice.not_required())
    return dispatch


def _times(
    heard: NodeOffers, dispatch: Dispatch, options: SessionOptions
) -> tuple[Mapping[str, int | None], str]:
    """Return the candidates for a node with their times, and why one of them was chosen."""
    names = [str(offer_name(each)) for each in heard.offers]
    ways = list(map(Way, map(offer_name, heard.offers)))
    if isinstance(dispatch.choice, TunedChoice):
        threads = dispatch.choice.measurements.machine.threads
        ways = ways_of(heard.node, heard.offers, threads, other_bits=True)
    if heard.node.op.name in dispatch.kernels:
        return dict.fromkeys(names), "SessionOptions.kernels"
    if len(ways) == 1:
        return {}, "the only one that serves it"
    if isinstance(dispatch.choice, TunedChoice):
        measured = [dispatch.choice.times(heard.node, each) for each in ways]
        known = [None if each is None else round(each.median) for each in measured]
        if any(ns is not None for ns in known):
            return dict(zip(map(str, ways), known, strict=True)), "measured times"
        if len(names) == 1:
            return {}, "the only one that serves it, on all threads; no measured times"
    limits = typical(_kernels.active_isa(dispatch.isa))
    estimates = [round(estimate_ns(heard.node, each, limits)) for each in heard.offers]
    among = dict(zip(names, estimates, strict=True))
    if options.kernel_choice == "cost":
        return among, _LEAST
    if not isinstance(options.kernel_choice, str):
        return among, "SessionOptions.kernel_choice"
    missing = "no measured times; " if options.tuned is not None else ""
    return among, f"{missing}the kernel's own rule"
