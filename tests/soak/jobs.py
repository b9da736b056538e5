"""Jobs that threads do at the same time; a run alone gives each expected answer."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fault_plans import bits, counting, cumulative, drawn, layers, opened
from plan_files import towers
from random_graphs import random_graph
from sized_plans import sized_arrays, sized_plan
from stateful_plans import accumulating_plan
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.partition import Partition, register_backend, unregister_backend
from taper_frontend.compiler.planning import make_plan
from taper_runtime import Delegate, InferenceSession, InputError, RunOptions, SessionOptions
from taper_runtime.base.errors import RunTimeoutError, StoppedError
from taper_runtime.base.random_state import new_state
from taper_runtime.plan.replaceable import WeightSpec
from weighted_plans import K, Q, weight, weighted_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taper_runtime import Plan

Feed = dict[str, np.ndarray]

#: Options of a session whose nodes run at the same time.
_TOGETHER = {"execution_mode": "parallel", "inter_op_num_threads": 2}

#: Inputs of a job whose answers are known; runs of a state from its first value on.
_VARIANTS, _STEPS = 16, 8


class WrongError(Exception):
    """A run gave another answer than the one alone."""


class Job(NamedTuple):
    """One kind of work.

    Attributes
    ----------
    name : str
    begin : callable
        Called once by each thread; returns what it does then, again and again, with a generator.
    """

    name: str
    begin: Callable[[], Callable[[np.random.Generator], None]]


def jobs(folder: Path) -> list[Job]:
    """All kinds, over sessions that the threads share; files are in ``folder``."""
    rng = np.random.default_rng(0)
    loop = [
        {"i0": np.array(0), "x0": np.ones(2, np.float32), "top": np.array(top)} for top in range(10)
    ]
    row = {"h0": np.ones(6000, np.float32), "t0": np.zeros(1500, np.float32)}
    rows = [
        {**row, "xs": rng.standard_normal((count, 6000)).astype(np.float32)} for count in range(12)
    ]
    sizes = [sized_arrays(*rng.integers((1, 2), (9, 33))) for _ in range(2 * _VARIANTS)]
    found = [
        _shared("layers", layers(), [drawn(layers(), seed) for seed in range(_VARIANTS)]),
        _shared("sizes", sized_plan(), sizes),
        _shared("loop", counting(), loop, fails={**loop[0], "top": np.array(99)}),
        _shared("scan", cumulative(), rows),
        Job("state", _stateful),
        _folded(),
        _delegated(),
        _drawing(),
        _opening(folder / "m.taper"),
    ]
    wide = towers(4, ["SIN", "EXP"], 20000)
    feeds = [drawn(wide, seed) for seed in range(_VARIANTS)]
    found.append(_shared("towers, parallel", wide, feeds, **_TOGETHER))
    for seed in (1, 4):
        graph = random_graph(seed)
        compile_graph(graph)
        plan = make_plan(graph)
        feeds = [drawn(plan, number) for number in range(_VARIANTS)]
        found.append(_shared(f"graph {seed}", plan, feeds))
        found.append(_shared(f"graph {seed}, parallel", plan, feeds, **_TOGETHER))
    return found


def _shared(
    name: str, plan: Plan, feeds: list[Feed], fails: Feed | None = None, **options: object
) -> Job:
    """One session for all threads, whose inputs are sometimes unfit."""
    alone = opened(plan, threads=1)
    wants = [bits(alone.run(None, feed)) for feed in feeds]
    session = opened(plan, max_concurrent_runs=4, frame_cleanup_interval_s=0.05, **options)
    unfit = [_unfit(feeds[0], kind) for kind in range(3)]
    unfit += [] if fails is None else [fails]
    ended = RunOptions()  # by any thread, at any time

    def work(rng: np.random.Generator) -> None:
        if rng.random() < 0.1:
            _refused(session, unfit[rng.integers(len(unfit))])
            return
        index = int(rng.integers(len(feeds)))
        if rng.random() < 0.1:
            _hurried(session, feeds[index], float(10 ** rng.uniform(-7, -3)))
        if rng.random() < 0.1:
            ended.terminate = bool(rng.random() < 0.5)
            with suppress(StoppedError):
                session.run(None, feeds[index], ended)
        outputs = session.run(None, feeds[index])
        if bits(outputs) != wants[index]:
            raise WrongError(f"{name}, inputs {index}")
        if rng.random() < 0.2:
            out = dict(zip(plan.outputs, map(np.empty_like, outputs), strict=True))
            session.run(None, feeds[index], out=out)
            if bits(out.values()) != wants[index]:
                raise WrongError(f"{name}, inputs {index}, into arrays of the caller")

    return Job(name, lambda: work)


def _unfit(feed: Feed, kind: int) -> Feed:
    """Inputs that no run takes: one missing, of another dtype, of another rank."""
    name = next(iter(feed))
    if kind == 0:
        return {key: array for key, array in feed.items() if key != name}
    bad = feed[name].astype(np.complex64) if kind == 1 else feed[name][None]
    return {**feed, name: bad}


def _refused(session: InferenceSession, feed: Feed) -> None:
    try:
        session.run(None, feed)
    except InputError:
        return
    raise WrongError("inputs that do not fit were taken")


def _hurried(session: InferenceSession, feed: Feed, timeout_s: float) -> None:
    """Run with so little time that many such runs end early."""
    options = RunOptions()
    options.timeout_s = timeout_s
    with suppress(RunTimeoutError):
        session.run(None, feed, options)


def _stateful() -> Callable[[np.random.Generator], None]:
    """A session of the thread's own; its states go through the same values again and again."""
    plan, rng = accumulating_plan(8, 16), np.random.default_rng(0)
    feeds = [
        {"x": rng.standard_normal((2, 16)).astype(np.float32), "at": rng.integers(0, 8, 2)}
        for _ in range(_STEPS)
    ]
    alone, session = opened(plan, threads=1), opened(plan)
    wants = [bits(alone.run(None, feed)) for feed in feeds]
    outside = {**feeds[0], "at": np.array([0, 99])}

    def work(rng: np.random.Generator) -> None:
        session.reset_state()
        for feed, want in zip(feeds, wants, strict=True):
            if rng.random() < 0.2:
                _refused(session, outside)  # which leaves the states as they were
            if bits(session.run(None, feed)) != want:
                raise WrongError("state")

    return work


def _swapping(
    name: str, plan: Plan, versions: list[dict[str, np.ndarray]], **options: object
) -> Job:
    """A session whose weights any thread swaps: no run sees some of one set, some of another."""
    feeds = [drawn(plan, seed) for seed in range(_VARIANTS)]
    wants = []
    for weights in versions:
        alone = opened(plan, threads=1, **options)
        alone.weights.update_many(weights)
        wants.append([bits(alone.run(None, feed)) for feed in feeds])
    session = opened(plan, **options)
    session.weights.update_many(versions[0])

    def work(rng: np.random.Generator) -> None:
        if rng.random() < 0.1:
            session.weights.update_many(versions[rng.integers(len(versions))])
        index = int(rng.integers(len(feeds)))
        if bits(session.run(None, feeds[index])) not in [want[index] for want in wants]:
            raise WrongError(f"{name}: no set of weights gives this")

    return Job(name, lambda: work)


def _folded() -> Job:
    versions = [
        {"q": Q + number, "k": K - number, "b": np.full(8, number, np.float32)}
        for number in range(4)
    ]
    return _swapping("swaps", weighted_plan(), versions)


class _Product(Delegate):
    """Multiplies by its weight."""

    def run(self, inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> None:
        np.multiply(*inputs, out=outputs[0])


def _delegated() -> Job:
    """Two subgraphs of a delegate beside nodes of ours; the weights of both are swapped."""
    versions = [
        {name: np.full(500, number + at, np.float32) for at, name in enumerate(("low", "high"))}
        for number in range(4)
    ]
    graph = Graph()
    x = graph.add_input("x", "float32", (500,))
    products = [
        graph.add_node("MUL", [graph.add_node(op, [x]), graph.add_constant(name, weight)])
        for op, (name, weight) in zip(("SIN", "EXP"), versions[0].items(), strict=True)
    ]
    graph.set_outputs([graph.add_node("SUB", products)])
    register_backend("product", lambda subgraph: b"", _Product)
    try:
        subgraphs = [[name] for name in products]
        compile_graph(graph, partition=Partition(lambda graph: subgraphs, "product"))
    finally:
        unregister_backend("product")
    plan = make_plan(graph)._replace(
        weights={n: WeightSpec(n, "parameter", "float32", (500,)) for n in versions[0]},
        derived={name: (weight(name),) for name in versions[0]},
    )
    return _swapping("delegates", plan, versions, delegates={"product": _Product}, **_TOGETHER)


def _drawing() -> Job:
    """Towers that draw, in runs of known seeds; the generators are the runs' own."""
    graph = Graph()
    x = graph.add_input("x", "float32", (64,))
    state = graph.add_state("generator", new_state(0))
    law, towers = {"law": "normal", "limit": 0}, []
    for op in ("SIN", "COS", "TANH"):
        noise = graph.add_node("RANDOM", [state], {**law, "shape": (64,), "dtype": "float32"})
        state = graph.add_node("RANDOM_NEXT", [state, noise], law)
        towers.append(graph.add_node("MUL", [graph.add_node(op, [x]), noise]))
    graph.set_next("generator", state)
    graph.set_outputs(towers)
    plan = make_plan(graph)
    feed = {"x": np.linspace(-1, 1, 64, dtype=np.float32)}
    seeds = [RunOptions() for _ in range(_VARIANTS)]
    for number, options in enumerate(seeds):
        options.seed = number
    alone, session = opened(plan, threads=1), opened(plan, **_TOGETHER)
    wants = [bits(alone.run(None, feed, options)) for options in seeds]

    def work(rng: np.random.Generator) -> None:
        seed = int(rng.integers(_VARIANTS))
        if bits(session.run(None, feed, seeds[seed])) != wants[seed]:
            raise WrongError(f"draws of seed {seed}")

    return Job("draws, parallel", lambda: work)


def _opening(path: Path) -> Job:
    """Sessions that are opened from a file, mapped or copied, run once and are dropped."""
    plan = layers()
    plan.save(path)
    feed = drawn(plan)
    want = bits(opened(plan, threads=1).run(None, feed))

    def work(rng: np.random.Generator) -> None:
        options = SessionOptions()
        options.load_mode = str(rng.choice(["map", "copy"]))
        options.intra_op_num_threads = int(rng.integers(1, 3))
        if bits(InferenceSession(path, options).run(None, feed)) != want:
            raise WrongError("a session just opened")

    return Job("open", lambda: work)
