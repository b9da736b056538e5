"""Add the command ``taper cache``, which needs no torch."""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING

from taper_frontend.errors import ExportError
from taper_runtime.base.text import counted, printable_lines
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import is_number
from taper_runtime.plan.spelling import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.plan_cache import CacheEntry, PlanCache

#: How many characters of a key are shown.
_SHOWN = 12


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options; the runtime's command calls this through its entry point."""
    parser.description = "show and delete plans of earlier exports"
    parser.add_argument(
        "--folder",
        metavar="FOLDER",
        help="the folder of the cache (default: TAPER_CACHE_DIR)",
    )
    parser.add_argument(
        "action",
        choices=("list", "why", "prune"),
        help="list the plans, the one used last first; show what a plan depends on, and how others "
        "differ; or delete the plans used longest ago",
    )
    parser.add_argument("key", nargs="?", help="for why: the key of a plan, or its beginning")
    parser.add_argument(
        "--bytes",
        type=_bytes,
        metavar="N",
        help="for prune: keep at most N bytes; 0 deletes all (default: 2 GB)",
    )
    parser.set_defaults(command=_cache)


def _bytes(text: str) -> int:
    if not is_number(text):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, got {text!r}")
    return int(text)


def _cache(args: argparse.Namespace) -> Result:
    """Do what the command line says with the cache in a folder."""
    from taper_frontend.plan_cache import VARIABLE, PlanCache

    folder = args.folder or os.environ.get(VARIABLE)
    if not folder:
        raise ExportError(f"--folder: expected a folder, for {VARIABLE} is not set")
    if (args.key is None) == (args.action == "why"):
        expected = "a key for why" if args.key is None else f"no key for {args.action}"
        raise ExportError(f"key: expected {expected}, got {args.key!r}")
    cache = PlanCache(folder)
    if args.action == "list":
        return _list(cache)
    return _why(cache, args.key) if args.action == "why" else _prune(cache, args.bytes)


def _list(cache: PlanCache) -> Result:
    """List the plans in the cache."""
    entries = cache.entries()
    total = sum(entry.nbytes for entry in entries)
    lines = [
        f"{entry.key[:_SHOWN]}  {size_text(entry.nbytes):>10}  made in {entry.seconds:.2f} s, used "
        f"{_date(entry.used)}"
        for entry in entries
    ]
    lines.append(f"{counted(len(entries), 'plan')}, {size_text(total)} in {cache.folder}")
    data = {
        "folder": str(cache.folder),
        "bytes": total,
        "entries": [entry._asdict() for entry in entries],
    }
    return Result(data, printable_lines("\n".join(lines)))


def _why(cache: PlanCache, key: str) -> Result:
    """Describe what an entry depends on, and the parts in which others differ from it."""
    entries = cache.entries()
    entry = _chosen(entries, key)
    others = {
        other.key: sorted(
            name
            for name in {*entry.parts, *other.parts}
            if entry.parts.get(name) != other.parts.get(name)
        )
        for other in entries
        if other.key != entry.key
    }
    lines = [f"{name}: {value}" for name, value in entry.parts.items()]
    lines += [
        "",
        *(f"{key[:_SHOWN]} differs in {', '.join(names)}" for key, names in others.items()),
    ]
    return Result(
        {"key": entry.key, "parts": dict(entry.parts), "others": others},
        printable_lines("\n".join(lines).rstrip()),
    )


def _chosen(entries: Sequence[CacheEntry], key: str) -> CacheEntry:
    """Return the only entry whose key begins with these characters."""
    found = [entry for entry in entries if entry.key.startswith(key)]
    if len(found) != 1:
        names = ", ".join(entry.key[:_SHOWN] for entry in (found or entries)) or "none"
        raise ExportError(f"key: expected the beginning of one of {names}, got {key!r}")
    return found[0]


def _prune(cache: PlanCache, limit: int | None) -> Result:
    deleted = cache.prune(limit)
    left = sum(entry.nbytes for entry in cache.entries())
    text = f"deleted {counted(len(deleted), 'plan')}; {size_text(left)} left in {cache.folder}"
    return Result({"deleted": deleted, "bytes": left}, printable_lines(text))


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
