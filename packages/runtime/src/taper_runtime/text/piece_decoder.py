"""Turn tokens into pieces of text: whole characters, without stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.text.tokenizer_asset import as_input_error

if TYPE_CHECKING:
    from collections.abc import Sequence


class PieceDecoder:
    """Decodes the tokens of one text.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    stops : sequence of str
        Strings in front of which the text ends.

    Attributes
    ----------
    is_stopped : bool
        Whether a stop string has ended the text; tokens after it are not decoded.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._held = ""
        self.is_stopped = False

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain. The rest is held back."""
        with as_input_error():
            self._held += self._decoder.step(self._tokenizer, token) or ""
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            self.is_stopped = True
            return self.finish()
        kept = max((begun(self._held, stop) for stop in self._stops), default=0)
        piece = self._held[: len(self._held) - kept]
        self._held = self._held[len(piece) :]
        return piece

    def finish(self) -> str:
        """Return the text that was held back, after the last token."""
        piece, self._held = self._held, ""
        return piece


def begun(text: str, stop: str) -> int:
    """Return how many characters at a text's end may begin a stop string."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
