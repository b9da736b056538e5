"""Turn tokens into text while they are written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from taper_runtime.generation.generation_request import GenerationRequest
    from taper_runtime.generation.generator import TokenStream
    from taper_runtime.text.piece_decoder import PieceDecoder


class TextStream:
    """Iterates over the pieces of a text as they are written.

    A piece has whole characters only, and none of a stop string that may have begun. Where a stop
    string is complete, the text ends in front of it.

    Parameters
    ----------
    tokens : TokenStream
    request : GenerationRequest
        The one that the tokens come from.
    pieces : PieceDecoder
    """

    def __init__(
        self, tokens: TokenStream, request: GenerationRequest, pieces: PieceDecoder
    ) -> None:
        self._tokens, self._request, self._pieces = tokens, request, pieces
        self._count = 0
        self._is_over = False
        self._began = time.monotonic()
        self._first = self._last = self._began

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """Return the next piece of the text, after writing as many tokens as it needs."""
        while not self._is_over:
            try:
                token = next(self._tokens)
            except StopIteration:
                self._is_over = True
                break
            self._last = time.monotonic()
            self._count += 1
            if self._count == 1:
                self._first = self._last
            if self._request.ends_at(self._count - 1):
                continue
            piece = self._pieces.push(token)
            if self._pieces.is_stopped:
                self._is_over = True
                self._tokens.close()
            if piece:
                return piece
        piece = self._pieces.finish()
        if not piece:
            raise StopIteration
        return piece

    @property
    def tokens(self) -> int:
        """Return how many tokens have been written."""
        return self._count

    @property
    def finish_reason(self) -> str | None:
        """Return why the text ended, also ``"stop"`` for a stop string; None before its end."""
        return "stop" if self._pieces.is_stopped else self._request.finish_reason

    @property
    def first_token_s(self) -> float:
        """Return the time to the first token, in seconds."""
        return self._first - self._began

    @property
    def tokens_per_second(self) -> float:
        """Return the rate of tokens after the first one; 0 if there are none."""
        seconds = self._last - self._first
        return (self._count - 1) / seconds if seconds > 0 else 0.0
