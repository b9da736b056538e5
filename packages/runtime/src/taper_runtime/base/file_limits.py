"""Define limits on the resources that reading an untrusted file may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import MAX_BLOCK_DEPTH
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.steps import Steps, shortened

if TYPE_CHECKING:
    from collections.abc import Callable


class Limits(NamedTuple):
    """Upper bounds on the contents of a file, far above what any real model needs.

    They apply to plans. PT2 archives have some of these limits, and two of their own. The format
    itself has further limits (docs/format.md), which cannot be raised.

    Attributes
    ----------
    header_bytes : int
        The bytes of everything except weights and samples. Python objects need about 35 times that.
    nodes : int
        The nodes of all entries and blocks; also the steps of all recipes.
    tensors : int
        The tensors of all entries and blocks, of weights and samples in the file, and named
        weights.
    entries : int
        The entries, not counting the default one.
    models : int
        The plans in one file.
    expression_chars : int
        The characters of all different size expressions; 100 000 take about a second.
    proof_steps : int
        The steps of all proofs about size expressions of one plan. This many take at most about a
        second; plans of the zoo with varying sizes take up to 35 000.
    comparisons : int
        The pairs of tensors in one allocation that must be compared because sizes vary; 50 000 take
        about two seconds.
    copied_bytes : int
        The bytes of a file that is copied to memory: ``load_mode="copy"``.
    members : int
        The files in a PT2 archive.
    objects : int
        The objects and arrays in the JSON that describes the weights of a PT2 archive; a million
        take about two seconds.
    """

    header_bytes: int = 1 << 24
    nodes: int = 50_000
    tensors: int = 200_000
    entries: int = 256
    models: int = 256
    expression_chars: int = 100_000
    proof_steps: int = 500_000
    comparisons: int = 50_000
    copied_bytes: int = 1 << 36
    members: int = 100_000
    objects: int = 1_000_000


#: Without limits, for plans that this process made.
UNLIMITED = Limits(*[2**63 - 1] * len(Limits._fields))


def check_limits(limits: object) -> Limits:
    """Return ``limits`` if each is a whole number of at least 0.

    Raises
    ------
    InputError
        If a field is not such a number.
    """
    if not isinstance(limits, Limits):
        raise InputError(f"limits: expected Limits, got {limits!r}")
    for name, value in zip(limits._fields, limits, strict=True):
        if type(value) is not int or value < 0:
            raise InputError(f"limits.{name}: expected an integer of at least 0, got {value!r}")
    return limits


def refuse_beyond(
    field: str,
    what: str,
    got: int,
    most: int,
    error: Callable[[str, str], Exception] = PlanFormatError,
) -> None:
    """Raise an error if a count exceeds its limit.

    Raises
    ------
    PlanFormatError
        If it does; or the error that ``error`` makes of the field and the reason.
    """
    if got > most:
        raise error(field, f"expected at most {most}, got {got}; Limits.{what} sets this limit")


def proofs(limits: Limits) -> Steps:
    """Return the quota of proof steps of a load."""

    def refuse(question: object) -> PlanFormatError:
        expected = f"expected at most {limits.proof_steps} steps to prove facts about sizes"
        got = f"got more at {shortened(question)}; Limits.proof_steps sets this limit"
        return PlanFormatError("plan", f"{expected}, {got}")

    return Steps(limits.proof_steps, refuse)


class Budget:
    """A quota that the checks of one plan share.

    Parameters
    ----------
    field : str
        The field of the plan that uses it.
    what : str
        The field of :class:`Limits`.
    most : int
    """

    def __init__(self, field: str, what: str, most: int) -> None:
        self._field, self._what, self._most = field, what, most
        self._spent = 0

    def spend(self, count: int) -> None:
        """Subtract from the quota.

        Raises
        ------
        PlanFormatError
            If the quota is exceeded.
        """
        self._spent += count
        refuse_beyond(self._field, self._what, self._spent, self._most)


def check_counts(document: Any, limits: Limits) -> None:
    """Check the numbers of nodes, tensors and entries in a plan's JSON before anything else.

    Raises
    ------
    PlanFormatError
        If one exceeds its limit.
    """
    refuse_beyond("plan.models", "models", len(_get(document, "models", dict)), limits.models)
    entries = _get(document, "entries", dict)
    refuse_beyond("plan.entries", "entries", len(entries), limits.entries)
    counts = [_count(item, 0) for item in (document, *entries.values())]
    refuse_beyond("plan.nodes", "nodes", sum(n for n, _ in counts), limits.nodes)
    refuse_beyond("plan.tensors", "tensors", sum(t for _, t in counts), limits.tensors)
    refuse_beyond("plan.weights", "tensors", len(_get(document, "weights", dict)), limits.tensors)
    recipes = _get(document, "derived", dict)
    steps = sum(len(_get(recipes, name, list)) for name in recipes)
    refuse_beyond("plan.derived", "nodes", steps, limits.nodes)


def _count(item: Any, depth: int) -> tuple[int, int]:
    """Return the numbers of nodes and tensors of an entry or a block, including inner blocks."""
    nodes = _get(item, "nodes", list)
    n_nodes, n_tensors = len(nodes), len(_get(item, "tensors", dict))
    inside = [node for node in nodes if type(node) is dict and "blocks" in node]
    for node in inside if depth <= MAX_BLOCK_DEPTH else ():
        for block in _get(node, "blocks", list):
            inner = _count(block, depth + 1)
            n_nodes += inner[0]
            n_tensors += inner[1]
    return n_nodes, n_tensors


def _get(item: Any, key: str, kind: type) -> Any:
    """Return the value of ``key`` in an object, or an empty one if it is not of this type."""
    value = item.get(key) if type(item) is dict else None
    return value if type(value) is kind else kind()
