"""Add ``taper sim``: run a program step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.run import read_inputs
from taper_runtime.cli.shared_options import positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import numpy as np

    from taper_openinfer.simulator.events import TraceEvent
    from taper_openinfer.simulator.executor import Executor
    from taper_openinfer.simulator.simulator import Simulator


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "run a program of OpenInfer's on a model file, step by step"
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="the program's text or JSON")
    parser.add_argument("model", type=Path, metavar="MODEL.oinf")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy|random",
        help="a dynamic variable: the same array in every step, one array for each, or random ones",
    )
    parser.add_argument(
        "--steps", type=positive, default=1, metavar="N", help="number of steps (default 1)"
    )
    parser.add_argument(
        "--device", default="Cpu", help="Cpu, CpuAvx, CpuAvx2, CpuAvx512 or Neon (default Cpu)"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse variables that begin as zeros and are read first",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write the events to this file"
    )
    parser.add_argument(
        "--perfetto", type=Path, metavar="FILE.json", help="write a trace for Perfetto"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write a page to step through"
    )
    parser.set_defaults(command=_sim)


def _sim(args: argparse.Namespace) -> Result:
    from taper_openinfer import Simulator, load_program, open_model

    with open_model(args.model) as model:
        link = "strict" if args.strict else "lenient"
        simulator = Simulator(model, load_program(args.program), args.device, link=link)
        return _run(simulator.with_trace().with_timer(), args)


def _run(simulator: Simulator, args: argparse.Namespace) -> Result:
    """Run the steps, printing each node's line, and write the files."""
    from taper_openinfer.simulator import events, page
    from taper_openinfer.simulator.recording import Recorder

    executor = simulator.make_executor()
    recorder = Recorder(simulator.program, executor)
    given = _inputs(simulator, args)
    for step in range(args.steps):
        for name, arrays in given.items():
            executor.insert_dynamic(name, arrays[step])
        for event in recorder.step() if args.html else executor.iterate():
            print(event.line())
    trace = executor.trace()
    if args.trace:
        args.trace.write_text(events.to_json(trace), encoding="utf-8")
    if args.perfetto:
        args.perfetto.write_text(events.to_perfetto(trace), encoding="utf-8")
    if args.html:
        facts = [
            ("program", str(args.program)),
            ("model", str(args.model)),
            ("device", simulator.device),
            ("bytes read", str(simulator.program.model.bytes_read)),
        ]
        text = page.run_page(f"{args.program.name} step by step", facts, recorder, trace)
        args.html.write_text(text, encoding="utf-8")
    return _result(simulator, executor, trace, args.steps)


def _inputs(
    simulator: Simulator, args: argparse.Namespace
) -> dict[str, Sequence[np.ndarray] | np.ndarray]:
    """Return, for every dynamic variable, one array per step.

    Raises
    ------
    InputError
        If a variable's value is missing, a name is unknown, or an array has the wrong shape.
    """
    slots = {slot.name: slot for slot in simulator.slots if slot.kind == "dynamic"}
    drawn = [text.removesuffix("=random") for text in args.input if text.endswith("=random")]
    given: dict[str, Any] = read_inputs([t for t in args.input if not t.endswith("=random")])
    for name in (*drawn, *given):
        if name not in slots:
            known = ", ".join(slots) or "none"
            raise InputError(f"--input: expected a dynamic variable ({known}), got {name!r}")
    missing = [name for name in slots if name not in given and name not in drawn]
    if missing:
        options = " ".join(f"--input {name}=FILE.npy" for name in missing)
        raise InputError(f"expected a value of each dynamic variable: {options}")
    for name, array in given.items():
        shape = slots[name].shape
        if array.shape == (args.steps, *shape):
            continue
        if array.shape != shape:
            raise InputError(
                f"--input {name}: expected shape {shape}, or {(args.steps, *shape)} with one for "
                f"each step, got {array.shape}"
            )
        given[name] = [array] * args.steps
    return given | {name: _drawn(slots[name], at, args.steps) for at, name in enumerate(drawn)}


def _drawn(slot: Any, place: int, steps: int) -> list[np.ndarray]:
    """Return random arrays; equal options give equal arrays."""
    import math

    from taper_openinfer import Random
    from taper_openinfer.dtypes import DTYPES

    bounds = (-1.0, 1.0) if DTYPES[slot.dtype].kind == "float" else (0, 9)
    return [
        Random.generate_with_seed(step + steps * place, bounds, math.prod(slot.shape), slot.dtype)
        .reshape(slot.shape)
        for step in range(steps)
    ]  # fmt: skip


def _result(
    simulator: Simulator, executor: Executor, trace: Sequence[TraceEvent], steps: int
) -> Result:
    """Return the final values of the variables, without weights."""
    from taper_openinfer import format_truncated

    variables = simulator.program.variables
    data: dict[str, Any] = {}
    zeros = list(simulator.program.zeros)
    lines = [f"began as zeros, because the model has no such tensors: {', '.join(zeros)}"] * bool(
        zeros
    )
    for name, array in executor.loaded().items():
        variable = variables[name]
        kind = variable.declaration.kind
        if kind in ("constant", "temporary") or variable.tensor is not None:
            continue
        shape = list(array.shape)
        text = format_truncated(array, variable.dtype)
        lines.append(printable(f"{name}: {variable.dtype}{shape} = {text}"))
        data[name] = {"dtype": variable.dtype, "shape": shape, "values": text}
    result = {"steps": steps, "nodes": len(trace), "zeros": zeros, "variables": data}
    return Result(result, "\n".join(lines))
