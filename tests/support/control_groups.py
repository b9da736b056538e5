"""Control groups of Linux with a limit on CPU time, where this user may make them."""

import os
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 100_000


class NoControlGroup(Exception):
    """No control group can be made here; the text says why."""


def _parent():
    """Return (version, folder) of this process's group in the hierarchy with the CPU controller."""
    try:
        groups, mounts = (
            Path(f"/proc/self/{name}").read_text().splitlines() for name in ("cgroup", "mountinfo")
        )
    except OSError as error:
        raise NoControlGroup(f"no control groups here: {error}") from None
    paths = dict(line.split(":", 1)[1].split(":", 1) for line in groups)
    for line in mounts:
        mount, kind = (part.split(" ") for part in line.split(" - "))
        if mount[3] != "/" or kind[0] not in ("cgroup", "cgroup2"):
            continue
        names = [n for n in paths if "cpu" in n.split(",")] if kind[0] == "cgroup" else [""]
        for path in (paths[n] for n in names if n in paths):
            folder = Path(mount[4]) / path.lstrip("/")
            controls = folder / "cgroup.subtree_control"
            if (folder / "cpu.cfs_quota_us").exists():
                return 1, folder
            if controls.exists() and "cpu" in controls.read_text().split():
                return 2, folder
    raise NoControlGroup("no mounted hierarchy has the CPU controller")


@contextmanager
def limited_group(cpus):
    """Make a group inside this process's own that may use the time of so many CPUs.

    Yields
    ------
    tuple of (Path, Path)
        The file to which a process writes ``0`` to enter, and the file with the limit.

    Raises
    ------
    NoControlGroup
        If there is no such hierarchy, or this user may not make a group.
    """
    version, parent = _parent()
    folder = parent / f"taper-{os.getpid()}-{cpus:g}"
    file = folder / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
    quota = str(round(cpus * PERIOD_US))
    try:
        folder.mkdir()
    except OSError as error:
        raise NoControlGroup(f"this user may make none: {error}") from None
    try:
        try:
            file.write_text(quota if version == 1 else f"{quota} {PERIOD_US}")
        except OSError as error:
            raise NoControlGroup(f"this user may set no limit: {error}") from None
        yield folder / "cgroup.procs", file
    finally:
        folder.rmdir()
