"""Tell a listener how a graph changes, and which rule changed it."""

from __future__ import annotations


class Listener:
    """Hears of every change of a graph, and does nothing: the one that a graph has by default."""

    def touch(self, *names: str) -> None:
        """Hear that these tensors, or the nodes that make them, are added, changed or removed."""

    def replaced(self, old: str, new: str) -> None:
        """Hear that what read the tensor ``old`` reads ``new`` from now on."""

    def enter(self, stage: str, pass_: str) -> None:
        """Hear that a pass begins; ``stage`` is empty where it is part of none."""

    def leave(self) -> None:
        """Hear that the pass has ended."""

    def fired(self, rule: str, node: str) -> None:
        """Hear that ``rule`` made all changes since the last call.

        Parameters
        ----------
        rule : str
        node : str
            The output, before the changes, of the node that it was applied at.
        """
