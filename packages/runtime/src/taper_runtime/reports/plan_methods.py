"""Attach to plans the methods that need the rooms above: files, text and notebooks.

A plan is data and reaches nothing above it. Users still write ``plan.save(path)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.plan.plan import Plan

if TYPE_CHECKING:
    from taper_runtime.file.writer import FilePath


def describe(self: Plan) -> str:
    """List inputs, outputs, memory, the export's report and every node."""
    from taper_runtime.reports.report import describe_plan

    return describe_plan(self)


def summarize(self: Plan) -> str:
    """Describe the plan in at most ten lines."""
    from taper_runtime.reports.report import summarize_plan

    return summarize_plan(self)


def show(self: Plan) -> str:
    """Show the plan in a notebook."""
    from taper_runtime.reports.notebook import plan_html

    return plan_html(self)


def fingerprint(self: Plan) -> str:
    """Return a SHA-256, in hexadecimal, that plans share which compute the same alike.

    It covers nodes, attrs, placements and the bytes of all weights, which are read for it; names
    count, metadata, samples and source lines do not.
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

    An existing file keeps its permissions; through a symbolic link its target is replaced.

    Parameters
    ----------
    path : path
    name : str
        What the plan is called in the file: an identifier.
    append : bool
        Whether to keep the plans that the file has. It is written anew; tensors that are equal in
        several plans, such as a tied embedding, stand there once.
    folded : bool, optional
        Whether the file has the constants too that recipes compute from its weights. Without, it is
        smaller, and each session computes them when it opens it. The default is as the plan has
        them.

    Raises
    ------
    InputError
        If the file has a plan of this name already, which is to be kept.
    PlanFormatError
        If the plan is not valid; if the file is no valid one, whose plans are to be kept.
    FileExistsError
        If ``path`` is a directory, a device or anything else that is no regular file.
    OSError
        If the file cannot be written; an existing file at ``path`` is then untouched.
    """
    from taper_runtime.file.writer import save as write

    plan = self
    if self.weights and folded is not None:
        from taper_runtime.plan.replaceable import completed, unfolded

        plan = completed(self) if folded else unfolded(self)
    write(plan, path, name=name, append=append)


def attach() -> None:
    """Give :class:`Plan` these methods, once, when the package is imported."""
    methods = {
        "__repr__": summarize,
        "__str__": describe,
        "_repr_html_": show,
        "fingerprint": fingerprint,
        "save": save,
    }
    for name, method in methods.items():
        setattr(Plan, name, method)
