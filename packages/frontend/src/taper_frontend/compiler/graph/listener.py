"""Report changes of a graph, and the rules that made them, to a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_runtime.base.decisions import Decision


class Listener:
    """The interface of objects notified of a graph's changes; this default keeps decisions alone.

    Attributes
    ----------
    decisions : dict of (str, str) to Decision
        What passes chose, by :attr:`.Decision.about` and :attr:`.Decision.name`; a later decision
        replaces an earlier one.
    """

    def __init__(self) -> None:
        self.decisions: dict[tuple[str, str], Decision] = {}

    def touch(self, *names: str) -> None:
        """Handle that these tensors, or the nodes that make them, are added, changed or removed."""

    def replaced(self, old: str, new: str) -> None:
        """Handle that all readers of ``old`` were changed to read ``new``."""
        for key in [key for key in self.decisions if key[1] == old]:
            self._decide(self.decisions.pop(key)._replace(name=new))

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

    def considered(self, decision: Decision, made_of: str = "") -> None:
        """Handle a choice that a pass has made.

        Parameters
        ----------
        decision : Decision
        made_of : str
            The tensor that the decision's tensor replaces: earlier decisions about it are now about
            the decision's tensor.
        """
        for key in [key for key in self.decisions if made_of and key[1] == made_of]:
            self._decide(self.decisions[key]._replace(name=decision.name))
        self._decide(decision)

    def _decide(self, decision: Decision) -> None:
        self.decisions[decision.about, decision.name] = decision
