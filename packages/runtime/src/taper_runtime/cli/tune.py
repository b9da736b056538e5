"""Add the command ``taper tune``."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.progress import progress
from taper_runtime.base.text import counted, printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_plan,
    add_sizes,
    add_threads,
    feed_sizes,
    load_plan,
    make_feed,
)
from taper_runtime.session.opening import thread_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor.node_trials import TrialResult, TunableNode
    from taper_runtime.file.measurements import MachineSetting, Measurements
    from taper_runtime.plan.plan import Plan

_BUDGET = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m)?")

#: How many nodes the text lists.
_LISTED = 20


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "measure which kernels are fastest for a plan's nodes on this machine"
    add_plan(parser)
    parser.add_argument(
        "--db",
        type=Path,
        metavar="FILE",
        help="the database to which measured times are added; SessionOptions.tuned and "
        "export(tuned=) read it (default: FILE.taper.times beside the plan)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.taper",
        help="write the plan with the formats of weights and the splits of chains that won",
    )
    parser.add_argument(
        "--budget",
        type=_budget,
        default=30.0,
        metavar="TIME",
        help="how long to measure, such as 30s or 2m (default 30s)",
    )
    parser.add_argument(
        "--other-bits",
        action="store_true",
        help="measure kernels with other bits too, for sessions with kernel_choice='measured'",
    )
    add_sizes(parser)
    add_threads(parser)
    parser.set_defaults(command=_tune)


def _budget(text: str) -> float:
    found = _BUDGET.fullmatch(text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"expected a time such as 30s or 2m, got {text!r}")
    return float(found[1]) * (60 if found[2] == "m" else 1)


def _tune(args: argparse.Namespace) -> Result:
    """Measure nodes that the database lacks, the most expensive ones first."""
    from taper_runtime.executor.node_trials import formats_left_alone, tunable_nodes
    from taper_runtime.executor.tuned_choice import machine_setting
    from taper_runtime.file.measurements import append_measurements, read_measurements
    from taper_runtime.native import _kernels
    from taper_runtime.plan.replaceable import completed
    from taper_runtime.plan.specialize import specialize

    stored = load_plan(args)
    plan = completed(stored)
    if plan.origins:
        raise InputError("expected a plan whose inputs decide all sizes, got nodes that do")
    sizes = feed_sizes(plan, make_feed(plan, args.size))
    machine = machine_setting(_kernels.active_isa(), thread_count(args.threads))
    database = args.db or args.plan.with_name(f"{args.plan.name}.times")
    append_measurements(database, [])  # fails now rather than after the budget is spent
    known = read_measurements(database, machine)
    chains, splits_left_alone = _chains(plan)
    nodes = tunable_nodes(
        specialize(plan, sizes),
        machine.isa,
        other_bits=args.other_bits,
        threads=machine.threads,
    )
    nodes = sorted([*nodes, *chains], key=lambda node: -node.estimate_ns)
    wanted = [node for node in nodes if not _is_known(node, known)]
    with progress("tune", len(wanted)) as advance:
        results, refused = _measure(database, args.budget, wanted, machine, advance)
    data: dict[str, Any] = {
        "database": str(database),
        "sizes": sizes,
        **machine._asdict(),
        "nodes": sum(len(node.labels) for node in nodes),
        "chains": sum(len(node.labels) for node in chains),
        "distinct": len(nodes),
        "known": len(nodes) - len(wanted),
        "measured": [_record(each) for each in results],
        "left": [node.labels for node in wanted[len(results) + len(refused) :]],
        "refused": refused,
        "skipped": list(known.skipped),
        "formats_left_alone": formats_left_alone(plan),
        "splits_left_alone": splits_left_alone,
        "output": None,
    }
    if args.output is not None:
        feed = make_feed(plan, args.size)
        measured = read_measurements(database, machine)
        tuned = _tuned_plan(stored, measured, feed, other_bits=args.other_bits)
        tuned.save(args.output)
        data["output"] = str(args.output)
    return Result(data, "\n".join(_lines(data)))


def _splits() -> Any:
    """Return the compiler's module that splits chains; None if no compiler is installed."""
    from importlib.metadata import entry_points

    for point in entry_points(group="taper.tuning", name="splits"):
        return point.load()
    return None


def _chains(plan: Plan) -> tuple[list[TunableNode], str]:
    """Return the chains that can be split in several ways, and the reason if none is measured."""
    from taper_runtime.base.errors import TaperError

    splits = _splits()
    if splits is None:
        return [], "taper-frontend is not installed"
    if plan.sizes:
        return [], "sizes vary"
    try:
        return splits.tunable_splits(plan), ""
    except TaperError as error:
        return [], str(error)


def _tuned_plan(
    stored: Plan, measured: Measurements, feed: Mapping[str, np.ndarray], *, other_bits: bool
) -> Plan:
    """Return a plan with the fastest candidates, after comparing its results with the old ones."""
    from taper_runtime.base.errors import TaperError
    from taper_runtime.executor.tuned_choice import TunedChoice
    from taper_runtime.plan.replaceable import completed, is_packed, without_packed
    from taper_runtime.session.tuned_formats import check_tuned, with_tuned_formats

    plan = completed(stored)
    tuned = with_tuned_formats(plan, TunedChoice(measured, other_bits=other_bits))
    splits = _splits()
    if splits is not None and not plan.sizes:
        with suppress(TaperError):  # plans whose chains were not measured either
            tuned = completed(splits.with_tuned_splits(tuned, splits.TunedSplits(measured)))
    check_tuned(plan, tuned, feed, other_bits=other_bits)
    if any(
        name not in stored.constants for name in plan.derived if is_packed(plan.tensors[name].type)
    ):
        tuned = without_packed(tuned)
    return tuned


def _is_known(node: TunableNode, known: Measurements) -> bool:
    """Return whether the database has the times of all candidates of a node."""
    return all(known.find(each.key, [each.name]) for each in node.candidates)


def _measure(
    database: Path,
    budget: float,
    nodes: Sequence[TunableNode],
    machine: MachineSetting,
    advance: Any,
) -> tuple[list[TrialResult], dict[str, str]]:
    """Measure nodes until the budget is spent; return their times, and why some have none."""
    from taper_runtime.base.errors import TaperError
    from taper_runtime.executor.node_trials import measure_node
    from taper_runtime.file.measurements import append_measurements

    end = time.perf_counter_ns() + 1e9 * budget
    # one thread: its own time, which other work on the machine does not change much
    clock = time.thread_time_ns if machine.threads == 1 else time.perf_counter_ns
    results, refused = [], {}
    for node in nodes:
        if time.perf_counter_ns() >= end:
            break
        try:
            results.append(measure_node(node, machine, clock))
        except TaperError as error:
            refused[node.labels[0]] = str(error)
        else:
            append_measurements(database, results[-1].measurements(machine))
        advance()
    return results, refused


def _record(result: TrialResult) -> dict[str, Any]:
    names = list(map(str, result.node.candidates))
    return {
        "labels": result.node.labels,
        "runs": result.node.runs,
        "ns": {name: list(each) for name, each in zip(names, result.times, strict=True)},
        "default": names[0],
        "best": names[result.best],
        "gain": result.gain,
    }


def _lines(data: Mapping[str, Any]) -> list[str]:
    """Return the report in words."""
    measured = data["measured"]
    summary = (
        f"{counted(data['nodes'] - data['chains'], 'node')} and {counted(data['chains'], 'chain')} "
        f"of nodes with several ways, {data['distinct']} of them "
        f"different: {data['known']} in the database before, {len(measured)} measured now, "
        f"{len(data['left'])} left"
    )
    won = sorted(
        (each for each in measured if each["best"] != each["default"]),
        key=lambda each: -each["gain"],
    )
    lines = [
        summary,
        f"another way than the default one won for {len(won)} of those measured",
    ]
    for each in won[:_LISTED]:
        more = f" and {len(each['labels']) - 1} more" if len(each["labels"]) > 1 else ""
        lines.append(
            f"  {printable(each['labels'][0])}{more}: {each['best']}, {each['gain']:.2f} times as "
            f"fast as {each['default']}"
        )
    if len(won) > _LISTED:
        lines.append(f"  and {len(won) - _LISTED} more")
    if data["left"]:
        first = printable(data["left"][0][0])
        lines.append(f"the budget is spent; not measured: {first} and those of less work")
    lines += [f"{printable(name)}: {printable(why)}" for name, why in data["refused"].items()]
    if count := len(data["formats_left_alone"]):
        lines.append(
            f"{counted(count, 'weight')} packed in the file: their formats were not tuned; export "
            "with packing='at_open' for that"
        )
    if data["splits_left_alone"]:
        lines.append(f"splits were not tuned: {printable(data['splits_left_alone'])}")
    if data["output"]:
        lines.append(printable(f"{data['output']}: the plan with what won"))
    lines += [f"{data['database']}: {printable(reason)}" for reason in data["skipped"]]
    return lines
