"""Judge PyTorch's own samples of every op; `--samples 4` takes at most so many of an op and dtype.

python -m tools.opinfo.report [--samples N] [--dtypes float32 ...] [--ops add ...] [--write PAGE]
                        [--keep FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.testing._internal.common_methods_invocations import op_db

from taper_runtime.base.progress import progress
from tools.opinfo.judge import (
    DTYPES,
    EXPORT,
    OUTSIDE,
    REFUSED,
    RIGHT,
    RUN,
    TOGETHER,
    VERDICTS,
    WRONG,
    Verdict,
    cases_of,
    judge,
)
from tools.opinfo.page import page

#: OpInfo name -> dtype name -> a verdict per sample.
Results = dict[str, dict[str, list[Verdict]]]


def name(dtype: torch.dtype) -> str:
    """Return the name of a dtype."""
    return str(dtype).removeprefix("torch.")


def work(indices: list[int], dtype: torch.dtype, most: int | None) -> dict[str, list[Verdict]]:
    """Judge some ops in one dtype."""
    torch.set_num_threads(1)
    ops = [op_db[i] for i in indices]
    cases = [case for op in ops for case in cases_of(op, dtype, most)]
    verdicts: dict[str, list[Verdict]] = {op.full_name: [] for op in ops}
    for case, verdict in zip(cases, judge(cases, dtype), strict=True):
        verdicts[case.op.full_name].append(verdict)
    return verdicts


def judge_all(
    names: list[str] | None, dtypes: list[torch.dtype], most: int | None, kept: Path
) -> Results:
    """Judge ops on all cores, saying on stderr how far it is.

    Verdicts are added to the file ``kept`` as they come; what is in it already is not judged again.
    """
    results: Results = defaultdict(dict)
    for line in kept.read_text().splitlines() if kept.exists() else ():
        op, dtype_name, verdicts = json.loads(line)
        results[op][dtype_name] = [Verdict(*verdict) for verdict in verdicts]
    together = max(1, TOGETHER // most) if most else 1
    workers = len(os.sched_getaffinity(0))
    gc.freeze()  # torch's own objects, which the workers need not look through
    with ProcessPoolExecutor(workers, get_context("fork")) as pool, kept.open("a") as file:
        futures = {}
        for dtype in dtypes:
            todo = [
                i
                for i, op in enumerate(op_db)
                if dtype in op.dtypes
                and (names is None or op.name in names)
                and name(dtype) not in results.get(op.full_name, ())
            ]
            for first in range(0, len(todo), together):
                task = (todo[first : first + together], dtype, most)
                futures[pool.submit(work, *task)] = name(dtype)
        with progress("ops", len(futures)) as advance:
            for future in as_completed(futures):
                for op, judged in future.result().items():
                    results[op][futures[future]] = judged
                    file.write(json.dumps([op, futures[future], judged]) + "\n")
                file.flush()
                advance()
    return dict(sorted(results.items()))


def summary(results: Results) -> list[list[str]]:
    """Return a row of counts per dtype."""
    rows = []
    for dtype in map(name, DTYPES):
        count = Counter(v.verdict for by in results.values() for v in by.get(dtype, ()))
        if not count:
            continue
        served = sum(count[v] for v in (RIGHT, WRONG, RUN, EXPORT))
        exported = served - count[EXPORT]
        share = f"{100 * count[RIGHT] / served:.2f} %" if served else ""
        numbers = (
            count.total(),
            count[REFUSED],
            count[OUTSIDE],
            served,
            exported,
            exported - count[RUN],
            count[RIGHT],
        )
        rows.append([dtype, *map(str, numbers), share])
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="most samples per op and dtype; else all")
    names = sorted({op.name for op in op_db})
    every = {"choices": names, "metavar": "OP", "help": "names of OpInfos; else all"}
    parser.add_argument("--ops", nargs="*", **every)
    parser.add_argument("--dtypes", nargs="*", choices=[name(d) for d in DTYPES])
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--keep", type=Path, help="file of verdicts, to go on where a run ended")
    options = parser.parse_args()
    dtypes = [d for d in DTYPES if options.dtypes is None or name(d) in options.dtypes]
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        kept = options.keep or Path(folder) / "verdicts"
        results = judge_all(options.ops, dtypes, options.samples, kept)
    for op, by_dtype in results.items():
        for dtype, verdicts in by_dtype.items():
            count = Counter(v.verdict for v in verdicts)
            counts = ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
            print(f"{op:48} {dtype:9} {counts}")
    rows = summary(results)
    print(f"\n{'':9} samples, refused by torch, not served | served, exported, run, right")
    for row in rows:
        print(" ".join(f"{cell:>9}" for cell in row))
    print(f"{time.monotonic() - start:.0f} s")
    if options.write:
        options.write.write_text(page(results, rows, options.samples))


if __name__ == "__main__":
    main()
