"""Write the texts of all requests to a model in one thread, while an event loop awaits them.

A generator takes turns between its callers, and one step of it may take long. So one thread alone
uses it: requests begin and end between two steps, and what a step has written goes to the event
loop at once.
"""

from __future__ import annotations

import asyncio
import time
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.generation.generation_request import GenerationRequest, TokenLogprobs
    from taper_runtime.generation.generator import Generator
    from taper_runtime.serving.server_metrics import ServerMetrics
    from taper_runtime.text.piece_decoder import PieceDecoder


class AskedText(NamedTuple):
    """A text to write: its prompt, options for :meth:`.Generator.submit`, and its decoder."""

    ids: Sequence[int]
    options: Mapping[str, Any]
    pieces: PieceDecoder


class WrittenPart(NamedTuple):
    """Part of a text, written since the last one.

    Attributes
    ----------
    place : int
        Which of the texts of a request it is.
    text : str
    tokens : int
        How many tokens.
    logprobs : list of TokenLogprobs
        Of the tokens that the text has; empty unless they were asked for.
    finish_reason : str or None
        As of :class:`.GenerationRequest`, if the text has ended.
    error : Exception or None
        What ended it, if ``finish_reason`` is ``"error"``.
    """

    place: int
    text: str
    tokens: int
    logprobs: list[TokenLogprobs]
    finish_reason: str | None
    error: Exception | None


class WritingThread:
    """A thread that steps a generator while there are texts.

    Parameters
    ----------
    generator : Generator
        Which nothing else uses.
    metrics : ServerMetrics
    name : str
        The model's, for the metrics.
    """

    def __init__(self, generator: Generator, metrics: ServerMetrics, name: str) -> None:
        self.generator = generator
        self._metrics, self._name = metrics, name
        self._changed = Condition()
        self._commands: list[Callable[[], None]] = []
        self._texts: list[_Text] = []
        self._is_closing = False
        self._thread = Thread(target=self._run, name=f"taper writes {name}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """End all texts, and the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def do(self, command: Callable[[], None]) -> None:
        """Let the thread call a function between two steps."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify()

    async def open(self, asked: Sequence[AskedText]) -> OpenTexts:
        """Begin texts of one request.

        Raises
        ------
        InputError
            If one of them is not possible; then none begins.
        """
        texts = OpenTexts(self, asyncio.get_running_loop(), len(asked))
        self.do(lambda: self._submit(asked, texts))
        try:
            await texts.accepted
        except BaseException:
            texts.close()
            raise
        return texts

    def _submit(self, asked: Sequence[AskedText], group: OpenTexts) -> None:
        """Submit the texts of a request, in this thread."""
        made: list[_Text] = []
        try:
            for place, (ids, options, pieces) in enumerate(asked):
                request = self.generator.submit(ids, **options)
                made.append(_Text(group, place, request, pieces))
        except Exception as error:
            for text in made:
                self.generator.cancel(text.request)
            group.tell(group.refuse, error)
            return
        self._texts += made
        group.tell(group.accept)

    def cancel(self, group: OpenTexts) -> None:
        """End those texts of a request that have not ended, in this thread."""
        for text in self._texts:
            if text.group is group and not text.request.is_finished:
                self.generator.cancel(text.request)
                self._metrics.count("server_cancelled_texts_total", model=self._name)

    def _run(self) -> None:
        """Step until the thread is closed."""
        while True:
            with self._changed:
                while not (self._commands or self._texts or self._is_closing):
                    self._changed.wait()
                commands, self._commands = self._commands, []
                if self._is_closing:
                    break
            for command in commands:
                command()
            self._step()
            self._tell()
        for command in commands:
            command()  # a request that waits for its begin is told
        for text in self._texts:
            self.generator.cancel(text.request)
        self._tell()

    def _step(self) -> None:
        try:
            if self.generator.active:
                self.generator.step()
        except Exception as error:  # a run that failed would fail again
            for request in self.generator.active:
                request.finish("error", error)
                self.generator.cancel(request)

    def _tell(self) -> None:
        """Send the new parts of all texts, and remove texts that have ended."""
        for text in self._texts:
            found = self._new(text)
            if found is not None:
                text.group.tell(text.group.put, found)
        self._texts = [text for text in self._texts if not text.is_over]

    def _new(self, text: _Text) -> WrittenPart | None:
        """Return the new part of a text; None if there is none."""
        request, first = text.request, text.given
        try:
            piece, reason = text.decode()
        except Exception as error:  # of the tokenizer; it ends this text alone
            request.finish("error", error)
            piece, reason = "", "error"
        if text.pieces.is_stopped or reason == "error":
            self.generator.cancel(request)
        text.is_over = reason is not None
        count = text.given - first
        if not count and reason is None:
            return None
        now = time.monotonic()
        if count:
            name = "server_token_seconds" if first else "server_first_token_seconds"
            self._metrics.observe(name, (now - text.latest) / count, model=self._name)
            self._metrics.count("server_generated_tokens_total", count, model=self._name)
            text.latest = now
        logprobs = request.logprobs[first : text.given - text.has_end]
        return WrittenPart(text.place, piece, count, logprobs, reason, request.error)


class _Text:
    """A text that a thread writes, with the number of tokens that it has sent."""

    def __init__(
        self, group: OpenTexts, place: int, request: GenerationRequest, pieces: PieceDecoder
    ) -> None:
        self.group, self.place = group, place
        self.request, self.pieces = request, pieces
        self.given = 0
        self.has_end = self.is_over = False
        self.latest = group.began

    def decode(self) -> tuple[str, str | None]:
        """Return the text of the new tokens, and the reason if the text ended."""
        text = ""
        for token in self.request.tokens[self.given :]:
            self.given += 1
            if self.request.ends_at(self.given - 1):
                self.has_end = True
            else:
                text += self.pieces.push(token)
            if self.pieces.is_stopped:
                return text, "stop"
        reason = self.request.finish_reason
        return text + (self.pieces.finish() if reason else ""), reason


class OpenTexts:
    """Iterates, in an event loop, over the written parts of one request's texts."""

    def __init__(self, thread: WritingThread, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.began = time.monotonic()
        self._thread, self._loop = thread, loop
        self._left = count
        self._queue: asyncio.Queue[WrittenPart] = asyncio.Queue()

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Let the event loop call a function; the thread calls this."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def accept(self) -> None:
        """Report that the texts have begun."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Report why the texts could not begin."""
        self._left = 0
        if not self.accepted.done():
            self.accepted.set_exception(error)

    def put(self, written: WrittenPart) -> None:
        """Add a written part."""
        self._queue.put_nowait(written)

    async def take(self) -> WrittenPart | None:
        """Return the next written part of any text; None when all have ended."""
        if not self._left:
            return None
        written = await self._queue.get()
        if written.finish_reason is not None:
            self._left -= 1
        return written

    def close(self) -> None:
        """End the texts that have not ended."""
        if self._left:
            self._left = 0
            self._thread.do(lambda: self._thread.cancel(self))
