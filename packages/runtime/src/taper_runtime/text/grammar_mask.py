"""Make texts follow a JSON schema, regular expression or grammar, by the package llguidance.

The package reads the grammar and says after each token which tokens may follow; tokens that end
texts may follow where the text is complete.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.text.tokenizer_asset import as_input_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: The most steps that the package may take to prepare a grammar, of about 1.5 us each; by itself it
#: takes 1,000,000. A list of 2,000 strings takes less than 100,000.
_MOST_STEPS = 200_000

#: How the package's reasons begin where no token may follow.
_NO_TOKEN = "NoExtension"


class GrammarMask:
    """Computes which tokens may follow in a text: ``allowed_tokens`` of :meth:`.Generator.submit`.

    Parameters
    ----------
    matcher : llguidance.LLMatcher
        At the beginning of a text.
    vocabulary : int
        The number of tokens.
    what : str
        The name of the grammar, for errors.

    Raises
    ------
    InputError
        If the grammar is none, or no text meets it.
    """

    def __init__(self, matcher: Any, vocabulary: int, what: str) -> None:
        self._matcher, self._vocabulary, self._what = matcher, vocabulary, what
        self._read: int | None = None
        self._mask()

    def copy(self) -> GrammarMask:
        """Return a mask of the same grammar for another text; this mask must be unused."""
        return GrammarMask(self._matcher.deep_copy(), self._vocabulary, self._what)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens may follow.

        Parameters
        ----------
        ids : numpy.ndarray
            All tokens so far, int64 ``[n]``. In the first call they are the prompt, which the
            grammar does not read.

        Returns
        -------
        numpy.ndarray
            bool ``[words]``

        Raises
        ------
        InputError
            If no text that begins so meets the grammar, or it takes too much work to tell.
        """
        if self._read is not None:
            for token in ids[self._read :].tolist():
                self._matcher.consume_token(token)
        self._read = len(ids)
        return self._mask()

    def _mask(self) -> np.ndarray:
        matcher = self._matcher
        bits = matcher.compute_bitmask()
        if matcher.is_error() or (matcher.is_stopped() and not matcher.is_accepting()):
            reason = _line(matcher.get_error()) or matcher.stop_reason()
            if reason.startswith(_NO_TOKEN):
                reason = "no text that begins so can meet it"
            raise InputError(f"{self._what}: {reason}")
        found = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        return found[: self._vocabulary].astype(bool)


class GrammarReader:
    """Reads grammars for one tokenizer.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    vocabulary : int
        The number of the model's tokens.
    ends : sequence of int
        Tokens that end a text.

    Raises
    ------
    InputError
        If there is no such token, or the package cannot read the tokenizer.
    TaperError
        If the package llguidance is not installed.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        """Give the package the tokenizer."""
        try:
            import llguidance
        except ImportError as error:
            raise TaperError(
                "a text with a schema or grammar needs the package llguidance; install it with "
                "`pip install 'taper-runtime[text]'`"
            ) from error
        if not ends:
            raise InputError(
                "plan: expected a model with tokens that end texts, for a schema or grammar says "
                "where a text ends, got none"
            )
        self._package, self._vocabulary = llguidance, vocabulary
        with as_input_error("tokenizer: llguidance cannot read it"):
            self._tokenizer = llguidance.LLTokenizer(
                tokenizer.to_str(), n_vocab=vocabulary, eos_token=list(ends)
            )

    def read(
        self,
        json_schema: Mapping[str, Any] | str | None,
        regex: str | None,
        grammar: str | None,
    ) -> GrammarMask:
        """Return the mask of a schema, a regular expression or a grammar.

        Parameters
        ----------
        json_schema : mapping or str, optional
            A schema, or its JSON.
        regex : str, optional
            A regular expression that the whole text matches.
        grammar : str, optional
            A grammar in the form of Lark.

        Raises
        ------
        InputError
            If not one of them is given, it is of another type or invalid, or no text meets it.
        """
        given = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        found = {name: value for name, value in given.items() if value is not None}
        if len(found) != 1:
            raise InputError(f"expected one of {', '.join(given)}, got {', '.join(found)}")
        ((what, source),) = found.items()
        matcher = self._package.LLMatcher
        if what == "json_schema":
            text = matcher.grammar_from_json_schema(_schema(source))
        else:
            if not isinstance(source, str):
                raise InputError(f"{what}: expected a str, got {type(source).__name__}")
            text = (matcher.grammar_from_regex if what == "regex" else matcher.grammar_from_lark)(
                source
            )
        limits = self._package.LLParserLimits(initial_lexer_fuel=_MOST_STEPS, verbose_errors=False)
        made = matcher(self._tokenizer, text, log_level=0, limits=limits)
        if made.is_error():
            raise InputError(f"{what}: {_line(made.get_error())}")
        return GrammarMask(made, self._vocabulary, what)


def _line(message: str) -> str:
    """Return a message of the package as one line, without its mark of short messages."""
    return " ".join(message.replace("<non-verbose/>", "").split())


def _schema(source: Any) -> str:
    """Return a schema as JSON."""
    try:
        made = json.loads(source) if isinstance(source, str) else dict(source)
        text = json.dumps(made, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"json_schema: expected a JSON object: {error}") from error
    if not isinstance(made, dict):
        raise InputError(f"json_schema: expected a JSON object, got {describe(made)}")
    return text
