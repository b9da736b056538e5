"""Define the convention of decoders' plans: inputs, output, states and recorded sizes.

A run reads some new tokens of each row, and gives the logits of some of them:

===================  ======  =========================  =================================
``input_ids``        int64   ``[rows, count]``          the new tokens
``position``         int64   ``[rows]``                 how many tokens each row had before
``logits_to_keep``   int64   ``[kept]``                 which of the new tokens get logits
``logits``           float   ``[rows, kept, words]``    the output
===================  ======  =========================  =================================

Each state is ``[rows, heads, context, width]``: keys or values, written at the positions of the new
tokens. What lies behind them is not read, so a row may go back to any earlier position. A decoder
behind an encoder reads states of :mod:`.encoder_convention`, too.

Keys and values of a sliding window may have fewer positions, ``length`` in place of ``context``:
rings, written at the positions modulo ``length``. States ``conv_*`` and ``recurrent_*``,
``[rows, ...]``, are those of recurrent layers, of all tokens so far. With ``recurrent_*`` a run
reads one token of each row: ``count`` is 1. A plan with rings or recurrent layers has a state
``reached``, int64 ``[rows]``, and a :class:`.RewindRule` that says how far back a row may go. A
recurrent one can go back by a copy of its states alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.rewind_rule import read_rewind_rule

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: Names of the inputs and of the output.
IDS, POSITION, KEPT, LOGITS = "input_ids", "position", "logits_to_keep", "logits"

#: Axis of the states that counts positions.
POSITION_AXIS = 2


#: The state that counts the positions of an encoder's source, and how the names of the states of
#: cross attention begin. They hold what the encoder wrote.
SOURCE_LENGTH, CROSS = "source_length", "cross_"

#: Prefixes of the names of states of short convolutions and of recurrences.
CONV, RECURRENT = "conv_", "recurrent_"

#: The state that counts the positions of each row; see :class:`.RewindRule`.
REACHED = "reached"


def counts_positions(state: str) -> bool:
    """Return whether a state holds keys or values of the decoder's own tokens."""
    others = (SOURCE_LENGTH, REACHED)
    return state not in others and not state.startswith((CROSS, CONV, RECURRENT))


def is_recurrent(state: str) -> bool:
    """Return whether a state depends on all earlier tokens, so that a row cannot go back."""
    return state.startswith((CONV, RECURRENT))


def written_parts(plan: Plan, count: int, first: int = 0) -> dict[str, tuple[slice, ...]]:
    """Return the parts of states that tokens from ``first`` to ``count`` write, if not all."""
    part = (*[slice(None)] * POSITION_AXIS, slice(first, count))
    return dict.fromkeys(filter(counts_positions, plan.states), part)


#: The key in a plan's metadata.
_KEY = "decoder"

_RANKS = {IDS: 2, POSITION: 1, KEPT: 1}


class DecoderConvention(NamedTuple):
    """Sizes and special tokens of a decoder, as its plan records them.

    Attributes
    ----------
    vocabulary : int
        The number of tokens; ids are less than it.
    context : int
        The most tokens of a sequence.
    eos_token_ids : tuple of int
        Tokens that end a text; may be empty.
    """

    vocabulary: int
    context: int
    eos_token_ids: tuple[int, ...] = ()

    def recorded(self, plan: Plan) -> Plan:
        """Return the plan with these sizes in its metadata.

        Raises
        ------
        InputError
            If the plan does not follow the convention.
        """
        data = {**self._asdict(), "eos_token_ids": list(self.eos_token_ids)}
        made = plan._replace(metadata={**plan.metadata, _KEY: data})
        read_convention(made)
        return made


def is_decoder(plan: Plan) -> bool:
    """Return whether a plan's metadata say that it follows the convention."""
    return _KEY in plan.metadata


def read_convention(plan: Plan) -> DecoderConvention:
    """Return the sizes and tokens that a decoder's plan records.

    Raises
    ------
    InputError
        If the plan is no decoder, or its inputs, outputs or states are not as recorded.
    """
    data = plan.metadata.get(_KEY)
    if data is None:
        raise InputError(
            "plan: expected a decoder, which taper_frontend.export_decoder makes, got a plan with "
            f"inputs {[*plan.inputs]} that records no decoder"
        )
    if not isinstance(data, dict) or data.keys() != {*DecoderConvention._fields}:
        expected = ", ".join(DecoderConvention._fields)
        raise InputError(f"metadata.{_KEY}: expected an object with {expected}, got {data!r:.80}")
    vocabulary, context, eos = (data[name] for name in DecoderConvention._fields)
    _check_counts(vocabulary, context)
    if not isinstance(eos, list) or not all(
        type(token) is int and 0 <= token < vocabulary for token in eos
    ):
        raise InputError(
            f"metadata.{_KEY}.eos_token_ids: expected ids from 0 to {vocabulary - 1}, "
            f"got {eos!r:.80}"
        )
    convention = DecoderConvention(vocabulary, context, tuple(eos))
    _check_ends(plan, convention)
    return convention


def _check_counts(vocabulary: object, context: object) -> None:
    for name, value in (("vocabulary", vocabulary), ("context", context)):
        if type(value) is not int or value < 1:
            raise InputError(
                f"metadata.{_KEY}.{name}: expected a positive int, got {describe(value)}"
            )


def _check_ends(plan: Plan, convention: DecoderConvention) -> None:
    """Check the inputs, the output and the states of a plan."""
    if {*plan.inputs} != _RANKS.keys() or plan.outputs != (LOGITS,):
        raise InputError(
            f"plan: expected inputs {[*_RANKS]} and output {LOGITS!r}, "
            f"got {[*plan.inputs]} and {[*plan.outputs]}"
        )
    for name, rank in _RANKS.items():
        spec = plan.tensors[name]
        if spec.dtype != "int64" or len(spec.shape) != rank:
            raise InputError(
                f"input {name!r}: expected int64 of rank {rank}, got {spec.dtype}{[*spec.shape]}"
            )
    logits = plan.tensors[LOGITS]
    if len(logits.shape) != 3 or logits.shape[2] != convention.vocabulary:
        raise InputError(
            f"output {LOGITS!r}: expected [rows, kept, {convention.vocabulary}], "
            f"got {[*logits.shape]}"
        )
    rule = read_rewind_rule(plan)
    for name in filter(counts_positions, plan.states):
        shape = plan.tensors[name].shape
        length = shape[POSITION_AXIS] if len(shape) == 4 else 0
        # the rule refuses runs that would read what a ring has no more
        is_ring = rule is not None and rule.whole <= length < convention.context
        if length != convention.context and not is_ring:
            raise InputError(
                f"state {name!r}: expected [rows, heads, {convention.context}, width], or fewer "
                f"positions with a rule for rings, got {[*shape]}"
            )


def as_plain_ids(ids: Any, vocabulary: int, what: str) -> list[int]:
    """Return token ids as a list of ints.

    Parameters
    ----------
    ids : sequence of int or numpy.ndarray
        One-dimensional.
    vocabulary : int
        The number of tokens.
    what : str
        The name for errors.

    Raises
    ------
    InputError
        If one is no integer, or not in the vocabulary.
    """
    if hasattr(ids, "ndim") and ids.ndim != 1:
        raise InputError(f"{what}: expected one dimension, got an array of shape {ids.shape}")
    try:
        found = [*ids]
    except TypeError:
        got = type(ids).__name__
        raise InputError(f"{what}: expected a sequence of token ids, got {got}") from None
    for place, each in enumerate(found):
        if isinstance(each, bool) or not hasattr(each, "__index__"):
            raise InputError(f"{what}[{place}]: expected an int, got {type(each).__name__}")
        if not 0 <= each < vocabulary:
            raise InputError(
                f"{what}[{place}]: expected an id from 0 to {vocabulary - 1}, got {each}"
            )
    return list(map(int, found))
