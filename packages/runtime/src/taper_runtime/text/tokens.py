"""Split sentences into tokens, and put the tokens of several sentences into arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.text.tokenizer_asset import as_input_error, read_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan

#: Sentences that are cut at once: the package's own objects take kilobytes for each.
_AT_ONCE = 1024


class SentenceTokenizer:
    """Tokenizer of a plan.

    Parameters
    ----------
    plan : Plan
    vocab_size : int
        The most tokens that it may have.

    Raises
    ------
    InputError
        If the plan's asset is no tokenizer, or has more tokens.
    TaperError
        If the package tokenizers is not installed.
    """

    def __init__(self, plan: Plan, vocab_size: int) -> None:
        made = read_tokenizer(plan, vocab_size)
        padding = made.padding or {}
        made.no_padding()  # a batch is padded when it is known
        self._made = made
        self._pad, self._pad_type = padding.get("pad_id", 0), padding.get("pad_type_id", 0)
        self._is_left = padding.get("direction", "right") == "left"

    @property
    def max_length(self) -> int | None:
        """Return the most tokens of a sentence; longer ones are cut."""
        limit: int | None = (self._made.truncation or {}).get("max_length")
        return limit

    def tokens(
        self, sentences: Sequence[str] | Sequence[tuple[str, str]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids and the types of the tokens of each sentence or pair, int32 [length].

        Raises
        ------
        InputError
            If the tokenizer fails.
        """
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for start in range(0, len(sentences), _AT_ONCE):
            with as_input_error():
                cut = self._made.encode_batch_fast(list(sentences[start : start + _AT_ONCE]))
            found += [
                (np.array(each.ids, np.int32), np.array(each.type_ids, np.int32)) for each in cut
            ]
        return found

    def prompt_length(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without special tokens at its end."""
        with as_input_error():
            cut = self._made.encode(prompt)
        count: int = len(cut.ids) - sum(cut.special_tokens_mask[-1:])
        return count

    def arrays(
        self, tokens: Sequence[tuple[np.ndarray, np.ndarray]], prompt_length: int
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a batch by their names, int64 [batch, length].

        Parameters
        ----------
        tokens : sequence of tuple
            As :meth:`tokens` returns them.
        prompt_length : int
            How many tokens in front take no part in pooling.
        """
        length = max(1, *(len(ids) for ids, _ in tokens))
        shape = (len(tokens), length)
        ids, types = np.full(shape, self._pad, "i8"), np.full(shape, self._pad_type, "i8")
        mask, pooled = np.zeros(shape, "i8"), np.zeros(shape, "i8")
        for row, (own, kinds) in enumerate(tokens):
            first = length - len(own) if self._is_left else 0
            own_part = slice(first, first + len(own))
            ids[row, own_part], types[row, own_part] = own, kinds
            mask[row, own_part] = 1
            pooled[row, first + prompt_length : first + len(own)] = 1
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": types,
            "pooling_mask": pooled,
        }
