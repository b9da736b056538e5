"""Answer the requests of OpenAI's protocol with the models of a server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from taper_runtime.base.random_state import check_seed
from taper_runtime.serving.body_fields import parse_body
from taper_runtime.serving.openai_answers import AnswerChoice, ChatForm, CompletionForm, usage
from taper_runtime.serving.openai_requests import (
    LogitBias,
    read_chat,
    read_completion,
    read_embedding,
)
from taper_runtime.serving.request_error import (
    RequestError,
    as_request_error,
    json_response,
    timed_out,
)
from taper_runtime.serving.server_threads import in_thread
from taper_runtime.serving.writing_thread import AskedText

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from taper_runtime.serving.openai_answers import AnswerForm
    from taper_runtime.serving.openai_requests import WritingRequest
    from taper_runtime.serving.served_model import ServedModel
    from taper_runtime.serving.server_limits import ServerLimits
    from taper_runtime.serving.server_metrics import ServerMetrics
    from taper_runtime.serving.writing_thread import OpenTexts, WritingThread
    from taper_runtime.text import TextGenerator


class OpenAIRoutes:
    """Handlers of requests; each gets the request and its body.

    Parameters
    ----------
    models : mapping of str to ServedModel
    threads : mapping of str to WritingThread
        Those of the models that write.
    limits : ServerLimits
    metrics : ServerMetrics
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        threads: Mapping[str, WritingThread],
        limits: ServerLimits,
        metrics: ServerMetrics,
    ) -> None:
        self._models, self._threads = models, threads
        self._limits, self._metrics = limits, metrics

    async def list_models(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v1/models``."""
        data = [_describe(model) for model in self._models.values()]
        return json_response({"object": "list", "data": data})

    async def get_model(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v1/models/{model}``."""
        return json_response(_describe(self._model(request.path_params["model"])))

    async def chat(self, request: Request, body: bytes) -> Response:
        """Answer ``POST /v1/chat/completions``."""
        asked = read_chat(parse_body(body))
        writer = self._writer(asked.model)
        ids = await in_thread(writer.encode_chat, asked.messages, asked.tools)
        form = ChatForm(_namer(writer), "logprobs" in asked.options)
        return await self._write(asked, writer, [ids], form)

    async def complete(self, request: Request, body: bytes) -> Response:
        """Answer ``POST /v1/completions``."""
        asked = read_completion(parse_body(body))
        writer = self._writer(asked.model)
        prompts = await in_thread(_encode, writer, asked.prompts)
        form = CompletionForm(_namer(writer), "logprobs" in asked.options)
        return await self._write(asked, writer, prompts, form)

    async def embed(self, request: Request, body: bytes) -> Response:
        """Answer ``POST /v1/embeddings``."""
        asked = read_embedding(parse_body(body))
        encoder = self._model(asked.model).encoder
        if encoder is None:
            raise RequestError(400, f"model: {asked.model!r} embeds no sentences", param="model")
        count = await in_thread(encoder.count_tokens, asked.sentences)
        found = await in_thread(encoder.encode, asked.sentences, truncate_dim=asked.dimensions)
        self._metrics.count("server_prompt_tokens_total", count, model=asked.model)
        rows = [
            base64.b64encode(row.astype("<f4").tobytes()).decode()
            if asked.is_base64
            else row.tolist()
            for row in found
        ]
        data = [
            {"object": "embedding", "index": index, "embedding": row}
            for index, row in enumerate(rows)
        ]
        shown = {key: value for key, value in usage(count).items() if key != "completion_tokens"}
        return json_response({"object": "list", "data": data, "model": asked.model, "usage": shown})

    def _model(self, name: str) -> ServedModel:
        if name not in self._models:
            raise RequestError(
                404,
                f"model: expected one of {', '.join(self._models)}, got {name!r}",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    def _writer(self, name: str) -> TextGenerator:
        writer = self._model(name).writer
        if writer is None:
            raise RequestError(
                400, f"model: {name!r} is no decoder with a tokenizer", param="model"
            )
        return writer

    async def _write(
        self,
        asked: WritingRequest,
        writer: TextGenerator,
        prompts: Sequence[Sequence[int]],
        form: AnswerForm,
    ) -> Response:
        """Write the texts of a request."""
        deadline = time.monotonic() + self._limits.timeout_s
        for processor in asked.options.get("logits_processors", ()):
            if isinstance(processor, LogitBias):
                processor.check(writer.generator.vocabulary)
        mask = None
        if asked.json_schema is not None:
            mask = await in_thread(writer.grammar_mask, asked.json_schema)
        texts = await self._threads[asked.model].open(
            [
                AskedText(
                    ids,
                    {
                        **self._options(asked, writer, ids, index),
                        "allowed_tokens": None if mask is None else mask.copy(),
                    },
                    writer.pieces(asked.stop),
                )
                for ids in prompts
                for index in range(asked.choices)
            ]
        )
        prompt_tokens = sum(map(len, prompts))
        self._metrics.count("server_prompt_tokens_total", prompt_tokens, model=asked.model)
        choices = [
            AnswerChoice(asked.tools is not None) for _ in range(len(prompts) * asked.choices)
        ]
        if asked.is_streamed:
            events = _events(asked, texts, choices, form, prompt_tokens, deadline)
            return EventResponse(events, texts.close)
        written = 0
        try:
            async for each in _taken(texts, deadline):
                choices[each.place].add(each)
                written += each.tokens
        finally:
            texts.close()
        shown = [{"index": i, **form.whole(choice)} for i, choice in enumerate(choices)]
        frame = form.frame(asked.model, is_chunk=False)
        return json_response({**frame, "choices": shown, "usage": usage(prompt_tokens, written)})

    def _options(
        self, asked: WritingRequest, writer: TextGenerator, ids: Sequence[int], index: int
    ) -> dict[str, Any]:
        """Return the options of one text: the request's, within the limits."""
        context, most = writer.generator.context, self._limits.max_new_tokens
        room = context + 1 - len(ids)  # the last token is not read
        if most is not None and asked.max_tokens is not None and asked.max_tokens > most:
            raise RequestError(
                400,
                f"max_tokens: this server writes at most {most}, got {asked.max_tokens}",
                param="max_tokens",
            )
        count = asked.max_tokens or min(room, most or room)
        if len(ids) > context or count > room:
            raise RequestError(
                400,
                f"expected at most {context} tokens, the context of the model, got a prompt of "
                f"{len(ids)}" + (f" and max_tokens of {count}" if asked.max_tokens else ""),
                code="context_length_exceeded",
            )
        given = writer.with_defaults(asked.choice_options(index))
        if not given.get("do_sample"):
            check_seed(given.pop("seed", None))  # a text without draws is the same for each
        if self._models[asked.model].assistant is None:
            given["prompt_lookup_num_tokens"] = self._limits.prompt_lookup_num_tokens
        return {**given, "max_new_tokens": count}


async def _taken(texts: OpenTexts, deadline: float) -> AsyncIterator[Any]:
    """Yield written parts until all texts have ended; raise an error that ends one."""
    while True:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                written = await texts.take()
        except TimeoutError:
            raise timed_out() from None
        if written is None:
            return
        if written.error is not None:
            raise written.error
        if written.finish_reason == "cancelled":
            raise RequestError(503, "the server is stopping", code="stopping")
        yield written


async def _events(
    asked: WritingRequest,
    texts: OpenTexts,
    choices: Sequence[AnswerChoice],
    form: AnswerForm,
    prompt_tokens: int,
    deadline: float,
) -> AsyncIterator[str]:
    """Yield the events of a stream."""
    frame = form.frame(asked.model, is_chunk=True)
    more = {"usage": None} if asked.has_usage else {}
    first = form.first()
    count = 0
    try:
        if first is not None:
            for index in range(len(choices)):
                yield _event({**frame, "choices": [{"index": index, **first}], **more})
        async for each in _taken(texts, deadline):
            count += each.tokens
            choice = choices[each.place]
            piece = choice.add(each)
            if piece.text or piece.calls or piece.logprobs or piece.reason:
                shown = {"index": each.place, **form.chunk(choice, piece)}
                yield _event({**frame, "choices": [shown], **more})
        if asked.has_usage:
            yield _event({**frame, "choices": [], "usage": usage(prompt_tokens, count)})
    except Exception as error:  # the status has been sent
        yield _event(as_request_error(error).body())
        return
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, allow_nan=False)}\n\n"


class EventResponse:
    """Sends events, and calls a function when the stream ends for any reason."""

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None]) -> None:
        self._stream = StreamingResponse(
            events, headers={"Cache-Control": "no-store"}, media_type="text/event-stream"
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client disconnects."""
        try:
            await self._stream(scope, receive, send)
        finally:
            self._close()


def _describe(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.opened, "owned_by": "taper"}


def _encode(writer: TextGenerator, prompts: Sequence[Any]) -> list[list[int]]:
    """Return the tokens of prompts; a prompt is a text or a list of tokens."""
    return [writer.encode(each) if isinstance(each, str) else each for each in prompts]


def _namer(writer: TextGenerator) -> Callable[[int], str]:
    def name(token: int) -> str:
        found: str = writer.tokenizer.decode([token], skip_special_tokens=False)
        return found

    return name
