"""Guess the next tokens of texts with a smaller decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.generation.decoder_session import DecoderSession
from taper_runtime.generation.encoder_convention import read_encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.inference_session import InferenceSession

_NAME = "assistant_model"


class DraftModel:
    """A decoder that guesses what another one writes.

    Parameters
    ----------
    session : InferenceSession
        Of the smaller decoder.
    target : DecoderSession
        The other one.

    Attributes
    ----------
    cost : float
        The cost of one of its runs as a share of one of the other decoder: that of their weights'
        bytes, which a run of one token reads.

    Raises
    ------
    InputError
        If it is no decoder of as many tokens, or stands behind an encoder.
    """

    def __init__(self, session: InferenceSession, target: DecoderSession) -> None:
        self._decoder = DecoderSession(session, _NAME)
        words, expected = self._decoder.convention.vocabulary, target.convention.vocabulary
        if words != expected:
            raise InputError(
                f"{_NAME}: expected a decoder of {expected} tokens, those of the model, got {words}"
            )
        if read_encoder(session.plan, words) is not None:
            raise InputError(f"{_NAME}: expected a decoder alone, got one behind an encoder")
        self.cost = _weight_bytes(session.plan) / _weight_bytes(target.session.plan)

    def begin(self) -> DraftText:
        """Return a text of which nothing has been read."""
        return DraftText(self._decoder)


class DraftText:
    """One text, as far as a draft model has read it."""

    def __init__(self, decoder: DecoderSession) -> None:
        self._decoder = decoder
        self._state = decoder.session.new_state()
        self._read: list[int] = []
        self._right = 0  # how many of its first tokens are right
        # what recurrent states were after so many tokens
        self._kept_at, self._kept = 0, decoder.copy_recurrent(self._state)

    def guess(self, ids: Sequence[int], count: int) -> list[int]:
        """Return tokens that may follow, fewer at the end of the draft model's context.

        Parameters
        ----------
        ids : sequence of int
            The text so far, which begins with that of the last call.
        count : int
            The most tokens.

        Raises
        ------
        TaperError
            If a run fails.
        """
        # the last guess is not read
        count = min(count, self._decoder.convention.context + 1 - len(ids))
        if count < 1:
            return []
        self._go_back(ids)
        if self._kept:
            self._go_on(ids[:-1])
            self._kept_at = len(self._read)
            self._kept = self._decoder.copy_recurrent(self._state)
        guesses: list[int] = []
        for _ in range(count):
            logits = self._go_on([*ids, *guesses])
            guesses.append(int(logits.argmax()))
        return guesses

    def _go_back(self, ids: Sequence[int]) -> None:
        """Forget the guesses that were wrong, and the last token, whose logits are needed."""
        known = min(self._right, len(self._read), len(ids) - 1)
        while known < min(len(self._read), len(ids) - 1) and self._read[known] == ids[known]:
            known += 1
        self._right = known
        if known < len(self._read) and self._kept:
            known = self._kept_at
            for name, array in self._kept.items():
                self._state.set(name, array)
        del self._read[known:]

    def _go_on(self, ids: Sequence[int]) -> np.ndarray:
        """Read the rest of a text; return the logits ``[words]`` of its last token."""
        logits: np.ndarray = np.empty(0)
        while new := [*ids[len(self._read) :][: self._decoder.chunk]]:
            found = self._decoder.feed([self._state], [new], [len(self._read)], [len(new) - 1])
            self._read += new
            logits = found[0, 0]
        return logits


def _weight_bytes(plan: Plan) -> int:
    return max(1, sum(array.nbytes for array in plan.constants.values()))
