"""Hold one text while it is written: its tokens, its state, and why it ended."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.decoder_convention import DecoderConvention, as_plain_ids
from taper_runtime.generation.sampling import Sampler, Sampling, log_softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.generation.draft_model import DraftText
    from taper_runtime.generation.guess_count import GuessCount
    from taper_runtime.session.state import State


#: The most tokens that are looked for earlier in a text.
_NGRAM = 3


class TokenLogprobs(NamedTuple):
    """A token's probability, and those of the most likely tokens at its place.

    Attributes
    ----------
    token : int
    logprob : float
        The natural logarithm of its probability by the model's logits alone, before penalties and
        filters.
    top : tuple of tuple of int and float
        The most likely tokens with their logarithms, the most likely one first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class TextLimits(NamedTuple):
    """Conditions that end a text, and options for its log-probabilities and lookups."""

    max_new_tokens: int | None
    stops: frozenset[int]
    logprobs: int | None
    prompt_lookup_num_tokens: int | None
    num_assistant_tokens: int | None


class GenerationRequest:
    """One text that is being written.

    Attributes
    ----------
    ids : tuple of int
        The prompt.
    source : numpy.ndarray or None
        What the encoder has to read before, as the input of one row.
    tokens : list of int
        The tokens so far, with the one that ended it.
    logprobs : list of TokenLogprobs
        One for each token if they were asked for, else empty.
    finish_reason : str or None
        ``"stop"`` after a token that ends texts, ``"length"`` after ``max_new_tokens``,
        ``"cancelled"``, ``"error"``, or None while it is being written.
    error : Exception or None
        What ended it, if ``finish_reason`` is ``"error"``.
    read : int
        How many of the tokens have been read.
    known : int
        How many first tokens of the prompt the prefix cache had.
    draft : DraftText or None
        What a draft model has read of the text; set when it first guesses.
    guesses : GuessCount or None
        How many tokens are guessed; set with the first guess.
    state : State
        Set when the text begins, not while it waits, until it has ended.
    """

    state: State

    def __init__(
        self,
        ids: Sequence[int],
        convention: DecoderConvention,
        sampling: Sampling,
        limits: TextLimits,
        source: np.ndarray | None = None,
    ) -> None:
        self.ids = tuple(ids)
        self.source = source
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.limits = limits
        self.read = self.known = 0
        self.draft: DraftText | None = None
        self.guesses: GuessCount | None = None
        self._context = convention.context
        self._sampler = Sampler(sampling)
        self._all = list(ids)

    @property
    def is_finished(self) -> bool:
        """Return whether no token follows."""
        return self.finish_reason is not None

    def ends_at(self, place: int) -> bool:
        """Return whether the token at this place ended the text."""
        return self.finish_reason == "stop" and place == len(self.tokens) - 1

    @property
    def pending(self) -> list[int]:
        """Return the tokens that the state does not have yet; at least one."""
        return self._all[self.read :]

    @property
    def all_ids(self) -> list[int]:
        """Return the prompt and the tokens so far."""
        return self._all

    def finish(self, reason: str, error: Exception | None = None) -> None:
        """End the text, if it has not ended."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error

    def release(self) -> None:
        """Let go of what was read: a row of a batch holds the memory of all its rows."""
        del self.state
        self.draft = None

    @property
    def room_for_guesses(self) -> int:
        """Return how many guesses pass neither the context nor the text's end."""
        room = self._context - len(self._all)
        if self.limits.max_new_tokens is not None:
            room = min(room, self.limits.max_new_tokens - len(self.tokens) - 1)
        return room

    @property
    def is_masked(self) -> bool:
        """Return whether a mask says which token may follow."""
        return self._sampler.is_masked

    def begin_mask(self) -> None:
        """Ask for the mask of the next token, of which all tokens before are known."""
        self._sampler.begin_mask(self._all)

    def advance(self, ids: Sequence[int], logits: np.ndarray) -> None:
        """Record which tokens a run has read, and choose tokens by its logits.

        Parameters
        ----------
        ids : sequence of int
            The tokens that it read: those that were pending or the first of them, and perhaps
            guesses at those that follow.
        logits : numpy.ndarray
            ``[kept, words]``, of the last token that was pending, and of the guesses.
        """
        known = len(self.pending)
        self.read += min(len(ids), known)
        if len(ids) < known:
            return  # the prompt goes on
        for guess, row in zip_longest(ids[known:], logits):
            self._accept(row)
            if self.is_finished or self._all[-1] != guess:
                break
            self.read += 1

    def _accept(self, logits: np.ndarray) -> None:
        """Choose the next token by logits ``[words]``; an error ends this text alone."""
        logits = np.asarray(logits, np.float32)
        try:
            token = self._sampler.choose(logits, self._all, len(self.ids))
        except Exception as error:  # of a processor or a mask of the caller's own
            self.finish("error", error)
            return
        if self.limits.logprobs is not None:
            self.logprobs.append(_logprobs(logits, token, self.limits.logprobs))
        self.tokens.append(token)
        self._all.append(token)
        if token in self.limits.stops:
            self.finish("stop")
        elif len(self.tokens) == self.limits.max_new_tokens:
            self.finish("length")
        elif len(self._all) > self._context:
            message = (
                f"the context is full: expected at most {self._context} tokens, got a prompt of "
                f"{len(self.ids)} and {len(self.tokens)} new tokens without an end"
            )
            self.finish("error", InputError(message))


def find_continuation(ids: Sequence[int], count: int) -> list[int]:
    """Return up to ``count`` tokens that followed the same last tokens earlier in the text.

    Of all matches, the longest counts (at most :data:`_NGRAM` tokens), then the latest. A. Saxena,
    "Prompt lookup decoding", 2023.
    """
    if count < 1:
        return []
    known = np.array(ids, np.int64)
    ends = np.flatnonzero(known[:-1] == known[-1])  # of the matches
    for size in range(2, _NGRAM + 1):
        longer = ends[ends >= size - 1]
        longer = longer[known[longer - size + 1] == known[-size]] if len(longer) else longer
        if not len(longer):
            break
        ends = longer
    if not len(ends):
        return []
    start = int(ends[-1]) + 1
    return list(ids[start : start + count])


def _logprobs(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    likely = log_softmax(logits)
    top = np.argsort(-likely, kind="stable")[:count]
    return TokenLogprobs(
        token, float(likely[token]), tuple((int(each), float(likely[each])) for each in top)
    )


def make_limits(
    convention: DecoderConvention,
    prompt: int,
    *,
    max_new_tokens: Any,
    eos_token_id: Any,
    stop_token_ids: Any,
    logprobs: Any,
    prompt_lookup_num_tokens: Any,
    num_assistant_tokens: Any,
) -> TextLimits:
    """Check the options that end a text, and return them.

    Raises
    ------
    InputError
        If a value is out of range, or the text would not fit in the context.
    """
    for name, value, least in (
        ("max_new_tokens", max_new_tokens, 1),
        ("logprobs", logprobs, 0),
        ("prompt_lookup_num_tokens", prompt_lookup_num_tokens, 1),
        ("num_assistant_tokens", num_assistant_tokens, 1),
    ):
        if value is not None and (type(value) is not int or value < least):
            raise InputError(
                f"{name}: expected None or an int of at least {least}, got {describe(value)}"
            )
    # the last token is not read
    room = convention.context + 1 - prompt
    if max_new_tokens is not None and max_new_tokens > room:
        raise InputError(
            f"max_new_tokens: expected at most {room} after a prompt of {prompt} tokens in a "
            f"context of {convention.context}, got {max_new_tokens}"
        )
    ends = convention.eos_token_ids if eos_token_id is None else eos_token_id
    ends = (ends,) if isinstance(ends, int) else ends
    stops = [
        *as_plain_ids(ends, convention.vocabulary, "eos_token_id"),
        *as_plain_ids(stop_token_ids, convention.vocabulary, "stop_token_ids"),
    ]
    guesses = prompt_lookup_num_tokens, num_assistant_tokens
    return TextLimits(max_new_tokens, frozenset(stops), logprobs, *guesses)
