"""Run the decoder of a session's plan: tokens of some rows at positions of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.sizes import bounds
from taper_runtime.generation.decoder_convention import (
    IDS,
    KEPT,
    LOGITS,
    POSITION,
    REACHED,
    is_recurrent,
    read_convention,
    written_parts,
)
from taper_runtime.session.inference_session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.session.state import State

#: The most tokens of a prompt that one run reads; the arena grows with it.
_CHUNK = 256


class DecoderSession:
    """A session of a decoder, and how it is run.

    Parameters
    ----------
    session : InferenceSession
    name : str
        What errors call it.

    Attributes
    ----------
    session : InferenceSession
    convention : DecoderConvention
    recurrent : list of str
        The states that are of all tokens so far, with which no row can go back.
    chunk : int
        The most tokens of a row that one run reads.

    Raises
    ------
    InputError
        If it is no session, or its plan no decoder.
    """

    def __init__(self, session: InferenceSession, name: str) -> None:
        if not isinstance(session, InferenceSession):
            raise InputError(f"{name}: expected an InferenceSession, got {type(session).__name__}")
        self.session = session
        self.convention = read_convention(session.plan)
        self.recurrent = [*filter(is_recurrent, session.plan.states)]
        self._rows: tuple[int, ...] = ()  # of the last run
        # of a plan with recurrences one, of one with rings as many as they have room for
        self.chunk = min(bounds(session.plan.tensors[IDS].shape[1])[1], _CHUNK)

    def feed(
        self,
        states: Sequence[State],
        ids: Sequence[Sequence[int]],
        positions: Sequence[int],
        kept: Sequence[int],
    ) -> np.ndarray:
        """Read as many new tokens of each row, and return the logits of some of them.

        Parameters
        ----------
        states : sequence of State
            One for each row.
        ids : sequence of sequence of int
            The new tokens, ``[rows][count]``.
        positions : sequence of int
            How many tokens each row had before.
        kept : sequence of int
            Which of the new tokens get logits.

        Returns
        -------
        numpy.ndarray
            ``[rows, kept, words]``.
        """
        feed = {
            IDS: np.array(ids, np.int64),
            POSITION: np.array(positions, np.int64),
            KEPT: np.array(kept, np.int64),
        }
        rows = tuple(map(id, states))
        if rows != self._rows:  # else they lie side by side
            for state, position in zip(states, positions, strict=True):
                state.mark_read(written_parts(self.session.plan, position))
            self._rows = rows
        logits: np.ndarray = self.session.run([LOGITS], feed, state=[*states])[0]
        return logits

    def copy_recurrent(self, state: State) -> dict[str, np.ndarray]:
        """Return copies of the states with which a row cannot go back, and of its count."""
        counted = [REACHED] if self.recurrent and REACHED in state.names else []
        return {name: state.get(name) for name in (*self.recurrent, *counted)}
