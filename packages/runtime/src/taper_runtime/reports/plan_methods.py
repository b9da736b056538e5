"""Attach methods to plans that need packages above them: files, text and notebooks.

A plan is data and imports nothing above it. With these methods users can write ``plan.save(path)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.plan.plan import Plan

if TYPE_CHECKING:
    from taper_runtime.base.loading import FilePath


def describe(self: Plan) -> str:
    """Describe inputs, outputs, memory, the export's report and every node, as text."""
    from taper_runtime.reports.report import describe_plan

    return describe_plan(self)


def summarize(self: Plan) -> str:
    """Describe the plan in at most ten lines."""
    from taper_runtime.reports.report import summarize_plan

    return summarize_plan(self)


def show(self: Plan) -> str:
    """Return the plan as HTML, for notebooks."""
    from taper_runtime.reports.notebook import plan_html

    return plan_html(self)


def fingerprint(self: Plan) -> str:
    """Return a SHA-256, in hexadecimal, that equal computations share.

    It covers nodes, attrs, placements, names, and the bytes of all weights and assets, which are
    read for it.
    Metadata, samples and source lines are left out.
    """
    from taper_runtime.file.fingerprint import fingerprint

    return fingerprint(self)


def save(
    self: Plan,
    path: FilePath,
    *,
    name: str = "model",
    append: bool = False,
    folded: bool | None = None,
) -> None:
    """Write the plan to ``path`` as a ``.taper`` file, atomically.

    An existing file keeps its permissions. If the path is a symbolic link, its target is replaced.

    Parameters
    ----------
    path : path
    name : str
        The name of the plan in the file, an identifier.
    append : bool
        Whether to keep the plans in an existing file. The whole file is rewritten; equal tensors of
        several plans, such as a shared embedding, are stored once.
    folded : bool, optional
        Whether to store the constants that recipes compute from weights. Without them the file is
        smaller, and each session computes them when it is opened. By default they are stored if the
        plan has them.

    Raises
    ------
    InputError
        If ``append`` is True and the file already has a plan of this name.
    PlanFormatError
        If the plan is not valid, or ``append`` is True and the file is not valid.
    FileExistsError
        If ``path`` is a directory, a device or anything else that is not a regular file.
    OSError
        If the file cannot be written. An existing file at ``path`` is then unchanged.
    """
    from taper_runtime.file.writer import save as write

    plan = self
    if self.weights and folded is not None:
        from taper_runtime.plan.replaceable import completed, unfolded

        plan = completed(self) if folded else unfolded(self)
    write(plan, path, name=name, append=append)


def attach() -> None:
    """Add these methods to :class:`Plan`, once, when the package is imported."""
    methods = {
        "__repr__": summarize,
        "__str__": describe,
        "_repr_html_": show,
        "fingerprint": fingerprint,
        "save": save,
    }
    for name, method in methods.items():
        setattr(Plan, name, method)
