"""Keep plans in a folder, so that an export which was made before need not be made again.

An entry is a plan file and a JSON object beside it, which holds the parts of its key. A key covers
everything that decides a plan: the lowered graph, its weights and samples, the options, the code of
both packages, and this machine's ISA level. What is read is checked in every byte; a file that was
changed is deleted, and the export is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.graph.fingerprint import constants_digest, structure_digest
from taper_frontend.errors import ExportError
from taper_frontend.lowering import HANDLERS
from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.mapping import check_path
from taper_runtime.file.reader import load
from taper_runtime.file.replacing import replace_file
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import BufferedRandom, BufferedReader

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.lowered_to_plan import LoweredProgram
    from taper_frontend.request.options import Options
    from taper_runtime.plan.plan import Plan

#: The environment variable with the folder of the cache.
VARIABLE = "TAPER_CACHE_DIR"

#: The most bytes of plans in a folder: the entries used longest ago are deleted.
LIMIT_BYTES = 2 * 10**9

#: The version of entries; others are left alone.
_VERSION = 1

#: The most characters of a reason that an error gives.
_REASON = 200


class CacheEntry(NamedTuple):
    """Plan in a cache.

    Attributes
    ----------
    key : str
        The SHA-256 of the parts, in hexadecimal.
    parts : mapping of str to str
        What the plan depends on, each as a SHA-256 or a text.
    sha256 : str
        Of the plan file.
    nbytes : int
        Its size.
    seconds : float
        How long the export took that made it.
    used : float
        When it was last written or read, in seconds since 1970.
    """

    key: str
    parts: Mapping[str, str]
    sha256: str
    nbytes: int
    seconds: float
    used: float


class PlanCache:
    """Cache of plans in a folder, which several processes may use at once.

    Parameters
    ----------
    folder : path
        It is made when the first plan is stored.
    limit : int
        The most bytes of all plans together.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = LIMIT_BYTES) -> None:
        self.folder, self.limit = Path(folder), limit

    def export(
        self,
        parts: Mapping[str, str],
        make: Callable[[], Plan],
        check: Callable[[Plan], object] = lambda plan: None,
    ) -> Plan:
        """Return the plan with this key, or make and store it.

        Parameters
        ----------
        parts : mapping of str to str
            What the plan depends on; see :func:`graph_parts` and :func:`file_parts`.
        make : callable
            Makes the plan.
        check : callable
            Raises a TaperError if a stored plan is not the right one, which is then made anew.

        Returns
        -------
        Plan
            Its metadata have ``cache``: ``hit``, ``key``, ``saved_s`` (the seconds that a hit has
            saved), and for a miss its ``reason``, and why the plan was not stored, if so.
        """
        begin = time.perf_counter()
        key = key_of(parts)
        entry, reason = self.find(key), ""
        if entry is not None:
            plan, reason = self._read(entry, check)
            if plan is not None:
                saved = entry.seconds - (time.perf_counter() - begin)
                return _told(plan, hit=True, key=key, saved_s=round(saved, 3))
        report: dict[str, Any] = {"hit": False, "key": key, "reason": reason or self.why(parts)}
        plan = make()
        if problem := self._store(key, parts, plan, time.perf_counter() - begin):
            report["not_stored"] = problem
        return _told(plan, **report)

    def _read(self, entry: CacheEntry, check: Callable[[Plan], object]) -> tuple[Plan | None, str]:
        """Return the plan of an entry; if that fails, delete the entry and return None and why."""
        path = self._path(entry.key)
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != entry.sha256:
                raise ExportError("a byte of the file has changed")
            plan = load(path, check_fingerprint=True)
            check(plan)
            os.utime(path)
        except (OSError, TaperError) as error:
            self.remove(entry.key)
            return None, f"the entry was not usable: {_first_line(error)}"
        return plan, ""

    def _store(self, key: str, parts: Mapping[str, str], plan: Plan, seconds: float) -> str | None:
        """Store a plan; return why it was not possible, if so."""
        path = self._path(key)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            plan.save(path)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            nbytes = path.stat().st_size
            if nbytes > self.limit:
                self.remove(key)
                return f"its {nbytes} bytes are more than the limit of {self.limit}"
            data = {
                "version": _VERSION,
                "parts": dict(parts),
                "sha256": digest,
                "bytes": nbytes,
                "seconds": round(seconds, 3),
            }
            replace_file(os.fspath(path.with_suffix(".json")), [json.dumps(data).encode()])
            self.prune(keep=key)
        except (OSError, TaperError) as error:
            self.remove(key)
            return _first_line(error)
        return None

    def entries(self) -> list[CacheEntry]:
        """Return all entries, the one used last first; what is no entry is left out."""
        try:
            keys = [path.stem for path in self.folder.glob("*.json")]
        except OSError:
            return []
        found = [entry for key in keys if (entry := self.find(key)) is not None]
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def find(self, key: str) -> CacheEntry | None:
        """Return the entry with a key; None if there is none, or it is damaged."""
        path = self._path(key)
        try:
            data = json.loads(path.with_suffix(".json").read_bytes())
            status = path.stat()
        except (OSError, ValueError, RecursionError):
            return None
        if not _is_entry(data) or key_of(data["parts"]) != key:
            return None
        return CacheEntry(
            key, data["parts"], data["sha256"], status.st_size, data["seconds"], status.st_mtime
        )

    def why(self, parts: Mapping[str, str]) -> str:
        """Return why there is no entry for a key: how it differs from the nearest entry."""
        nearest, differing = None, list(parts)
        for entry in self.entries():
            others = [name for name in parts if entry.parts.get(name) != parts[name]]
            if nearest is None or len(others) < len(differing):
                nearest, differing = entry, others
        if nearest is None:
            return "the cache is empty"
        return f"{', '.join(differing)}: other than in entry {nearest.key[:12]}, the nearest one"

    def prune(self, limit: int | None = None, keep: str = "") -> list[str]:
        """Delete the entries used longest ago until the rest has at most ``limit`` bytes.

        Returns
        -------
        list of str
            The keys of the deleted entries.
        """
        left = self.limit if limit is None else limit
        deleted = []
        for entry in sorted(self.entries(), key=lambda entry: entry.key != keep):
            left -= entry.nbytes
            if left < 0 and entry.key != keep:
                self.remove(entry.key)
                deleted.append(entry.key)
        return deleted

    def remove(self, key: str) -> None:
        """Delete an entry if it is there; sessions that have it mapped keep it."""
        for suffix in (".json", ".taper"):
            try:
                self._path(key).with_suffix(suffix).unlink(missing_ok=True)
            except OSError:  # another process uses it, or may alone delete it
                continue

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.taper"


def open_cache(cache: object) -> PlanCache | None:
    """Return the cache of ``export(cache=)``; None for none.

    Raises
    ------
    ExportError
        If it is neither None, False nor a path that a folder can have.
    """
    if cache is None:
        cache = os.environ.get(VARIABLE) or False
    if cache is False:
        return None
    if not isinstance(cache, (str, os.PathLike)) or not os.fspath(cache):
        raise ExportError(f"cache: expected a folder, None or False, got {cache!r}")
    try:
        check_path(cache)
    except InputError as error:
        raise ExportError(f"cache: {error}") from None
    return PlanCache(os.fspath(cache))


def graph_parts(program: LoweredProgram, options: Options) -> dict[str, str]:
    """Return what the plan of a lowered program depends on.

    Raises
    ------
    ExportError
        If an option has no fingerprint, such as a pass that is a function.
    """
    lowered = program.lowered
    samples = hashlib.sha256()
    for array in program.samples:
        samples.update(repr((array.dtype.str, array.shape)).encode())
        samples.update(np.ascontiguousarray(array).reshape(-1).view("u1").data)
    ends = (
        *(lowered.input_tree, lowered.output_tree, program.output_structure, lowered.written),
        *(sorted(lowered.complex_reads), sorted(lowered.complex_outputs)),
        [(weight.names, weight.kind) for weight in lowered.weights],
        program.notes(),
    )
    return {
        "options": options.fingerprint(),
        "graph": structure_digest(lowered.graph),
        "weights": constants_digest(lowered.graph),
        "lines": _digest(list(_lines(lowered.graph))),
        "ends": _digest(ends),
        "samples": samples.hexdigest(),
        "captured by": program.captured_by,
        **environment_parts(),
    }


def file_parts(file: BufferedReader | BufferedRandom, options: Options) -> dict[str, str]:
    """Return what the plan of a PT2 archive depends on; ``file`` is the archive.

    Raises
    ------
    ExportError
        If an option has no fingerprint, or the user has handlers of ops, whose code is not known.
    """
    modules = {str(handler.__module__) for handler in HANDLERS.values()}
    if users := sorted(name for name in modules if not name.startswith("taper_frontend.")):
        raise ExportError(f"handlers: expected only those of Taper, got some of {users[0]}")
    return {
        "options": options.fingerprint(),
        "model": repr(options.model),
        "file": hashlib.file_digest(file, "sha256").hexdigest(),
        **environment_parts(),
    }


def cached_file(
    module: object,
    options: Options,
    export: Callable[[Options], Plan],
    save: Callable[[IO[bytes]], object] | None = None,
) -> Plan:
    """Return a model's plan from the cache, if the model is a PT2 archive or can be saved as one.

    For other models, and archives without a key, the cache is asked later for the lowered graph.

    Parameters
    ----------
    module : object
    options : Options
    export : callable
        Makes the plan with the options that it gets.
    save : callable, optional
        Writes an exported program as an archive, whose bytes are the same for equal programs.
    """
    cache = open_cache(options.cache)
    if cache is None:
        return export(options._replace(cache=False))
    if save is None and not isinstance(module, (str, os.PathLike)):
        return export(options)
    try:
        with _open_archive(module, save) as file:
            parts = file_parts(file, options)
    except (ExportError, OSError):
        return export(options)
    return cache.export(parts, lambda: export(options._replace(cache=False)))


@contextmanager
def _open_archive(
    module: object, save: Callable[[IO[bytes]], object] | None
) -> Iterator[BufferedReader | BufferedRandom]:
    """Open an archive: the given file, or a temporary one to which a program is saved."""
    if isinstance(module, (str, os.PathLike)):
        with open(module, "rb") as given:
            yield given
        return
    assert save is not None
    with TemporaryFile() as made:
        try:
            save(made)
        except Exception as error:  # of any kind: torch cannot save every program
            raise ExportError(f"program: expected one that torch can save: {error}") from error
        made.seek(0)
        yield made


def cached_graph(
    program: LoweredProgram,
    options: Options,
    make: Callable[[], Plan],
    check: Callable[[Plan], None],
) -> Plan:
    """Return the plan of a lowered program by the cache of the options, or make it."""
    cache = open_cache(options.cache)
    if cache is None:
        return make()
    try:
        parts = graph_parts(program, options)
    except ExportError as error:
        return _told(make(), hit=False, reason=f"no key: {_first_line(error)}")
    return cache.export(parts, make, check)


def key_of(parts: Mapping[str, str]) -> str:
    """Return the SHA-256 of what a plan depends on, in hexadecimal."""
    return _digest(sorted(parts.items()))


def _told(plan: Plan, **report: object) -> Plan:
    return plan._replace(metadata={**plan.metadata, "cache": report}).read_only()


def _lines(graph: Graph) -> Iterator[tuple[object, ...]]:
    """Yield the source lines of the nodes of a graph and of its blocks, in order."""
    for node in graph.order():
        yield tuple(node.source)
        for block in node.blocks:
            yield from _lines(block)


def environment_parts() -> dict[str, str]:
    """Return what every plan depends on: the code of both packages, numpy, the ISA level."""
    return {
        "code": _code(),
        "numpy": np.__version__,
        "machine": str(_kernels.active_isa()),
    }


@lru_cache
def _code() -> str:
    """Return a SHA-256 of both packages' files."""
    import taper_runtime

    digest = hashlib.sha256()
    roots = [Path(__file__).parent, Path(taper_runtime.__file__).parent]
    files = [path for root in roots for path in sorted(root.rglob("*.py"))]
    for path in (*files, Path(_kernels.__file__)):
        digest.update(f"{path.name}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _is_entry(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and data.get("version") == _VERSION
        and isinstance(data.get("parts"), dict)
        and all(isinstance(text, str) for pair in data["parts"].items() for text in pair)
        and isinstance(data.get("sha256"), str)
        and isinstance(data.get("seconds"), (int, float))
    )


def _first_line(error: BaseException) -> str:
    text = str(error).splitlines() or [type(error).__name__]
    return text[0][:_REASON]
