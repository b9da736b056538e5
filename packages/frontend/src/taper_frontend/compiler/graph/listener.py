"""Tell a listener how a graph changes, and which rule changed it."""

from __future__ import annotations


class Listener:
    """The interface of objects notified of a graph's changes; this default ignores them."""

    def touch(self, *names: str) -> None:
        """Called when these tensors, or the nodes that make them, are added, changed or removed."""

    def replaced(self, old: str, new: str) -> None:
        """Called when all readers of ``old`` were changed to read ``new``."""

    def enter(self, stage: str, pass_: str) -> None:
        """Called when a pass begins; ``stage`` is empty if it belongs to none."""

    def leave(self) -> None:
        """Called when the pass has ended."""

    def fired(self, rule: str, node: str) -> None:
        """Called after ``rule`` has made all changes since the last call.

        Parameters
        ----------
        rule : str
        node : str
            The output, before the changes, of the node that it was applied at.
        """
