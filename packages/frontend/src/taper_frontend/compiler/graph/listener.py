"""Report changes of a graph, and the rules that made them, to a listener."""

from __future__ import annotations


class Listener:
    """The interface of objects notified of a graph's changes; this default ignores them."""

    def touch(self, *names: str) -> None:
        """Handle that these tensors, or the nodes that make them, are added, changed or removed."""

    def replaced(self, old: str, new: str) -> None:
        """Handle that all readers of ``old`` were changed to read ``new``."""

    def enter(self, stage: str, pass_: str) -> None:
        """Handle the start of a pass, and the end of the one before it.

        Parameters
        ----------
        stage : str
            Empty if the pass belongs to none.
        pass_ : str
        """

    def leave(self) -> None:
        """Handle the end of the last pass of several."""

    def fired(self, rule: str, node: str) -> None:
        """Handle that ``rule`` has made all changes since the last call.

        Parameters
        ----------
        rule : str
        node : str
            The output, before the changes, of the node that it was applied at.
        """
