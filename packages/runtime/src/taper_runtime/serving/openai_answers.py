"""Write the answers of OpenAI's protocol, whole or in chunks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from taper_runtime.base.records import NamedTuple
from taper_runtime.serving.tool_calls import ToolCallReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_runtime.generation.generation_request import TokenLogprobs
    from taper_runtime.serving.tool_calls import ToolCall
    from taper_runtime.serving.writing_thread import WrittenPart

#: In place of the logarithm of a probability of 0, which JSON lacks.
_LEAST_LOGPROB = -9999.0


class AnswerPiece(NamedTuple):
    """The new part of a text, for a chunk."""

    text: str
    calls: list[dict[str, Any]]
    logprobs: list[TokenLogprobs]
    reason: str | None


class AnswerChoice:
    """One text of an answer.

    Parameters
    ----------
    reads_calls : bool
        Whether calls of functions are taken out of the text.

    Attributes
    ----------
    text : str
    calls : list of dict
    logprobs : list of TokenLogprobs
    reason : str or None
    """

    def __init__(self, reads_calls: bool) -> None:
        self._reader = ToolCallReader() if reads_calls else None
        self.text = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[TokenLogprobs] = []
        self.reason: str | None = None

    def add(self, written: WrittenPart) -> AnswerPiece:
        """Add a newly written part, and return the piece of it for a chunk."""
        text, calls, reason = written.text, list[Any](), written.finish_reason
        if self._reader is not None:
            text, found = self._reader.push(text)
            calls = [_call(each) for each in found]
            if reason is not None:
                text += self._reader.finish()
        self.text += text
        self.calls += calls
        self.logprobs += written.logprobs
        if reason == "stop" and self.calls:
            reason = "tool_calls"
        self.reason = reason
        return AnswerPiece(text, calls, written.logprobs, reason)


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex}", "type": "function", "function": function}


class AnswerForm(Protocol):
    """The JSON form of one kind of answer."""

    def frame(self, model: str, *, is_chunk: bool) -> dict[str, Any]:
        """Return an answer without choices."""

    def first(self) -> dict[str, Any] | None:
        """Return the content of a text's first chunk; None if the form has no special one."""

    def whole(self, choice: AnswerChoice) -> dict[str, Any]:
        """Return a finished text."""

    def chunk(self, choice: AnswerChoice, piece: AnswerPiece) -> dict[str, Any]:
        """Return a new piece of a text; ``choice`` already includes it."""


class ChatForm:
    """The form of chats.

    Parameters
    ----------
    name : callable
        The text of a token.
    has_logprobs : bool
    """

    def __init__(self, name: Callable[[int], str], has_logprobs: bool) -> None:
        self._name, self._has_logprobs = name, has_logprobs

    def frame(self, model: str, *, is_chunk: bool) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        return _frame("chatcmpl", "chat.completion" + ".chunk" * is_chunk, model)

    def first(self) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        delta = {"role": "assistant", "content": ""}
        return {"delta": delta, "logprobs": None, "finish_reason": None}

    def whole(self, choice: AnswerChoice) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": choice.calls}
        return {
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.reason,
        }

    def chunk(self, choice: AnswerChoice, piece: AnswerPiece) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        delta: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.calls:
            first = len(choice.calls) - len(piece.calls)
            delta["tool_calls"] = [
                {"index": first + index, **call} for index, call in enumerate(piece.calls)
            ]
        return {
            "delta": delta,
            "logprobs": self._logprobs(piece.logprobs),
            "finish_reason": piece.reason,
        }

    def _logprobs(self, found: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        content = [
            {
                **self._token(each.token, each.logprob),
                "top_logprobs": [self._token(*pair) for pair in each.top],
            }
            for each in found
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        name = self._name(token)
        whole = "\ufffd" not in name  # a part of a character has no text
        return {
            "token": name,
            "logprob": max(logprob, _LEAST_LOGPROB),
            "bytes": [*name.encode()] if whole else None,
        }


class CompletionForm:
    """The form of completions; see :class:`ChatForm`."""

    def __init__(self, name: Callable[[int], str], has_logprobs: bool) -> None:
        self._name, self._has_logprobs = name, has_logprobs

    def frame(self, model: str, *, is_chunk: bool) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        return _frame("cmpl", "text_completion", model)

    def first(self) -> None:
        """See :class:`AnswerForm`."""

    def whole(self, choice: AnswerChoice) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        return self._choice(choice.text, choice.logprobs, 0, choice.reason)

    def chunk(self, choice: AnswerChoice, piece: AnswerPiece) -> dict[str, Any]:
        """See :class:`AnswerForm`."""
        before = choice.logprobs[: len(choice.logprobs) - len(piece.logprobs)]
        offset = sum(len(self._name(each.token)) for each in before)
        return self._choice(piece.text, piece.logprobs, offset, piece.reason)

    def _choice(
        self, text: str, logprobs: Sequence[TokenLogprobs], offset: int, reason: str | None
    ) -> dict[str, Any]:
        shown = self._logprobs(logprobs, offset) if self._has_logprobs else None
        return {"text": text, "logprobs": shown, "finish_reason": reason}

    def _logprobs(self, found: Sequence[TokenLogprobs], offset: int) -> dict[str, Any]:
        """Return log-probabilities in the form of completions, with places in the text."""
        names = [self._name(each.token) for each in found]
        offsets = []
        for name in names:
            offsets.append(offset)
            offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [max(each.logprob, _LEAST_LOGPROB) for each in found],
            "top_logprobs": [
                {self._name(token): max(value, _LEAST_LOGPROB) for token, value in each.top}
                for each in found
            ],
            "text_offset": offsets,
        }


def _frame(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(prompt: int, written: int = 0) -> dict[str, int]:
    """Return how many tokens a request took."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }
