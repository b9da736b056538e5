"""Share what the commands that export have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import taper_frontend
from taper_frontend.errors import ExportError
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.plan.spelling import size_text
from taper_runtime.reports.report import describe_plan, plan_data

if TYPE_CHECKING:
    from pathlib import Path

    from taper_runtime.plan.plan import Plan


def public(name: str) -> Any:
    """Return a function of the package; an error says what to install."""
    try:
        return getattr(taper_frontend, name)
    except ImportError as error:
        raise ExportError(str(error)) from error


def saved(plan: Plan, path: Path) -> Result:
    """Save a plan and describe it."""
    plan.save(path)
    size = path.stat().st_size
    data = {"output": str(path), "bytes": size, "plan": plan_data(plan, nodes=False, kernels=True)}
    place = printable(f"{path}: {size_text(size)}")
    return Result(data, f"{describe_plan(plan, nodes=False, kernels=True)}\n\n{place}")
