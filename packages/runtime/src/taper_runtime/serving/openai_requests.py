"""Read the requests of OpenAI's protocol: chats, completions and embeddings.

Fields that would change an answer and that this server lacks are refused; those that only describe
the caller are ignored.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe, parse_object
from taper_runtime.base.records import NamedTuple
from taper_runtime.serving.body_fields import BodyFields
from taper_runtime.serving.request_error import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The most texts of one request, the most likely tokens at each place, and the most stop strings.
MOST_CHOICES, MOST_LOGPROBS, MOST_STOPS = 128, 20, 16

#: The most sentences of one request.
MOST_INPUTS = 2048

#: The tokens of a completion that does not say how many.
_COMPLETION_TOKENS = 16

#: Fields that describe the caller.
_IGNORED = (
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)

#: Fields that have one value here, with it.
_FIXED = {"best_of": 1, "echo": False, "parallel_tool_calls": True}


class WritingRequest(NamedTuple):
    """A request to a language model.

    Attributes
    ----------
    model : str
    prompts : sequence
        Texts, or lists of tokens; empty for a chat.
    messages : list of dict
    tools : list of dict or None
    stop : list of str
    choices : int
        How many texts to write for each prompt.
    max_tokens : int or None
    options : dict
        Those of :meth:`.Generator.submit`, but for ``max_new_tokens``.
    json_schema : dict or None
        What the texts have to meet.
    is_streamed : bool
    has_usage : bool
        Whether a stream ends with the number of tokens.
    """

    model: str
    prompts: Sequence[Any]
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    stop: list[str]
    choices: int
    max_tokens: int | None
    options: dict[str, Any]
    json_schema: dict[str, Any] | None
    is_streamed: bool
    has_usage: bool

    def choice_options(self, index: int) -> dict[str, Any]:
        """Return the options of the text with this index; each text has its own seed."""
        seed = self.options.get("seed")
        return self.options if seed is None else {**self.options, "seed": seed + index}


class EmbeddingRequest(NamedTuple):
    """A request to an encoder."""

    model: str
    sentences: list[str]
    dimensions: int | None
    is_base64: bool


def read_chat(data: Mapping[str, Any]) -> WritingRequest:
    """Read the body of ``/v1/chat/completions``.

    Raises
    ------
    RequestError
        If a field is missing, wrong or unknown.
    """
    fields = BodyFields(data)
    found = fields.take("messages", "a list of messages", lambda v: isinstance(v, list) and v)
    messages = [_message(each, f"messages[{index}]") for index, each in enumerate(found)]
    most = fields.whole("max_completion_tokens", 1, None, None)
    older = fields.whole("max_tokens", 1, None, None)
    if most is not None and older is not None:
        raise fields.error("max_tokens", "expected no max_completion_tokens beside it")
    logprobs = fields.whole("top_logprobs", 0, MOST_LOGPROBS, None)
    if fields.flag("logprobs", False):
        logprobs = logprobs or 0
    elif logprobs is not None:
        raise fields.error("top_logprobs", "expected logprobs to be true beside it")
    schema = _response_schema(fields)
    tools = _tools(fields)
    if schema is not None and tools is not None:
        raise fields.error("response_format", "expected no tools beside a schema")
    return _writing(
        fields, most or older, logprobs, messages=messages, tools=tools, json_schema=schema
    )


def read_completion(data: Mapping[str, Any]) -> WritingRequest:
    """Read the body of ``/v1/completions``.

    Raises
    ------
    RequestError
        If a field is missing, wrong or unknown.
    """
    fields = BodyFields(data)
    expected = "a text, a list of tokens, or a list of up to 128 of these"
    prompts = _prompts(fields.take("prompt", expected, _is_prompt))
    most = fields.whole("max_tokens", 1, None, _COMPLETION_TOKENS)
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS, None)
    return _writing(fields, most, logprobs, prompts=prompts)


def read_embedding(data: Mapping[str, Any]) -> EmbeddingRequest:
    """Read the body of ``/v1/embeddings``.

    Raises
    ------
    RequestError
        If a field is missing, wrong or unknown.
    """
    fields = BodyFields(data)
    found = fields.take(
        "input",
        f"a text, or a list of 1 to {MOST_INPUTS} texts (tokens would be those of another model)",
        lambda v: isinstance(v, str) or (_is_texts(v) and 0 < len(v) <= MOST_INPUTS),
    )
    kind = fields.take(
        "encoding_format", "'float' or 'base64'", lambda v: v in ("float", "base64"), "float"
    )
    request = EmbeddingRequest(
        fields.text("model"),
        [found] if isinstance(found, str) else found,
        fields.whole("dimensions", 1, None, None),
        kind == "base64",
    )
    fields.finish(_IGNORED)
    return request


def _writing(
    fields: BodyFields,
    max_tokens: int | None,
    logprobs: int | None,
    *,
    prompts: Sequence[Any] = (),
    messages: list[dict[str, Any]] | None = None,
    tools: list[dict[str, Any]] | None = None,
    json_schema: dict[str, Any] | None = None,
) -> WritingRequest:
    """Read the fields that chats and completions share, and check that no other is left."""
    options = _options(fields)
    if logprobs is not None:
        options["logprobs"] = logprobs
    stop = fields.take(
        "stop",
        f"a text, or a list of up to {MOST_STOPS} texts, which are not empty",
        lambda v: (isinstance(v, str) and v) or (_is_texts(v) and len(v) <= MOST_STOPS and all(v)),
        [],
    )
    for name, value in _FIXED.items():
        fields.take(name, f"{json.dumps(value)} alone", partial(_is_same, value), value)
    is_streamed = fields.flag("stream", False)
    shown = fields.take("stream_options", "an object", lambda v: isinstance(v, dict), None)
    if shown is not None and not is_streamed:
        raise fields.error("stream_options", "expected stream to be true beside it")
    more = BodyFields(shown or {}, "stream_options")
    has_usage = more.flag("include_usage", False)
    more.flag("include_obfuscation", False)
    more.finish()
    request = WritingRequest(
        fields.text("model"),
        prompts,
        messages or [],
        tools,
        [stop] if isinstance(stop, str) else stop,
        fields.whole("n", 1, MOST_CHOICES, 1),
        max_tokens,
        options,
        json_schema,
        is_streamed,
        has_usage,
    )
    if request.choices * max(1, len(prompts)) > MOST_CHOICES:
        raise fields.error("n", f"expected at most {MOST_CHOICES} texts of all prompts together")
    fields.finish(_IGNORED)
    return request


def _options(fields: BodyFields) -> dict[str, Any]:
    """Read the options that choose tokens; the generator checks their values."""
    given = {}
    for name in (
        *("temperature", "top_p", "min_p"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    ):
        value = fields.take(name, "a number", lambda v: type(v) in (int, float), None)
        if value is not None:
            given[name] = value
    for name in ("top_k", "seed"):
        value = fields.take(name, "a whole number", lambda v: type(v) is int, None)
        if value is not None:
            given[name] = value
    draws = [name for name in ("temperature", "top_p", "min_p", "top_k") if name in given]
    if given.get("temperature") == 0:
        given = {name: value for name, value in given.items() if name not in draws}
        given["do_sample"] = False
    elif draws:
        given["do_sample"] = True
    bias = fields.take("logit_bias", "an object", lambda v: isinstance(v, dict), None)
    if bias:
        given["logits_processors"] = [LogitBias(bias, fields)]
    return given


class LogitBias:
    """Adds numbers to the logits of some tokens, as a logits processor.

    Parameters
    ----------
    bias : mapping of str to float
        By the digits of a token.
    fields : BodyFields
        For errors.
    """

    def __init__(self, bias: Mapping[str, Any], fields: BodyFields) -> None:
        for token, value in bias.items():
            is_token = token.isascii() and token.isdigit() and len(token) < 10
            if not is_token or type(value) not in (int, float) or not -100 <= value <= 100:
                raise fields.error("logit_bias", "expected numbers from -100 to 100 by token")
        self._error = fields.error
        self._tokens = np.array([int(token) for token in bias], np.int64)
        self._values = np.array([*bias.values()], np.float32)

    def check(self, vocabulary: int) -> None:
        """Check that a model has all of the tokens.

        Raises
        ------
        RequestError
            If it has not.
        """
        if self._tokens.max() >= vocabulary:
            raise self._error("logit_bias", f"expected tokens less than {vocabulary}")

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the changed logits."""
        logits[self._tokens] += self._values
        return logits


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str) or _is_tokens(value):
        return True
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_CHOICES
        and (_is_texts(value) or all(map(_is_tokens, value)))
    )


def _prompts(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or _is_tokens(value) else value


def _message(data: Any, place: str) -> dict[str, Any]:
    """Return a message in the form that chat templates read, with a text as content."""
    fields = BodyFields(data, place)
    made = {"role": fields.text("role")}
    calls = fields.take("tool_calls", "a list", lambda v: isinstance(v, list), [])
    content = fields.take("content", "a text, or a list of parts", _is_content, "" if calls else [])
    if isinstance(content, list):
        if not content:
            raise fields.error("content", "expected a text, got nothing")
        content = "".join(
            _part(part, f"{place}.content[{index}]") for index, part in enumerate(content)
        )
    made["content"] = content
    if calls:
        made["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
    for name in ("name", "tool_call_id"):
        value = fields.text(name, None)
        if value is not None:
            made[name] = value
    fields.finish(("annotations", "audio", "function_call", "refusal"))
    return made


def _is_content(value: Any) -> bool:
    return isinstance(value, (str, list))


def _part(data: Any, place: str) -> str:
    """Return the text of a part of a message."""
    kind = data.get("type") if isinstance(data, dict) else None
    if kind != "text":
        raise RequestError(
            400,
            f"{place}.type: expected 'text', got {describe(kind)}; this server takes no images, "
            "sounds or files, and opens nothing that a request names",
            param=f"{place}.type",
        )
    fields = BodyFields(data, place)
    fields.text("type")
    text: str = fields.text("text")
    fields.finish()
    return text


def _call(data: Any, place: str) -> dict[str, Any]:
    """Return a function call in the form that templates read, with an object as arguments."""
    fields = BodyFields(data, place)
    fields.text("id", None)
    fields.take("type", "'function'", lambda v: v == "function", "function")
    inner = fields.take("function", "an object", lambda v: isinstance(v, dict))
    fields.finish(("index",))
    fields = BodyFields(inner, f"{place}.function")
    name = fields.text("name")
    arguments = parse_object(fields.text("arguments"))
    if arguments is None:
        raise fields.error("arguments", "expected the text of a JSON object")
    fields.finish()
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(fields: BodyFields) -> list[dict[str, Any]] | None:
    """Return the functions that the model may call; None if there are none."""
    tools: list[dict[str, Any]] = fields.take(
        "tools",
        "a list of objects",
        lambda v: isinstance(v, list) and all(isinstance(each, dict) for each in v),
        [],
    )
    choice = fields.take(
        "tool_choice",
        "'auto' or 'none': the text cannot be made to call a function",
        lambda v: v in ("auto", "none"),
        "auto",
    )
    for index, tool in enumerate(tools):
        each = BodyFields(tool, f"tools[{index}]")
        each.take("type", "'function'", lambda v: v == "function")
        inner = each.take("function", "an object", lambda v: isinstance(v, dict))
        each.finish()
        BodyFields(inner, f"tools[{index}].function").text("name")
    return tools if tools and choice == "auto" else None


def _response_schema(fields: BodyFields) -> dict[str, Any] | None:
    """Return the JSON schema that the text must match; None if there is none."""
    data = fields.take("response_format", "an object", lambda v: isinstance(v, dict), None)
    if data is None:
        return None
    form = BodyFields(data, "response_format")
    kind = form.take(
        "type",
        "'text', 'json_object' or 'json_schema'",
        lambda v: v in ("text", "json_object", "json_schema"),
    )
    schema: dict[str, Any] | None = {"type": "object"} if kind == "json_object" else None
    if kind == "json_schema":
        inner = form.take("json_schema", "an object", lambda v: isinstance(v, dict))
        named = BodyFields(inner, "response_format.json_schema")
        named.text("name", None)
        named.text("description", None)
        named.flag("strict", True)  # each schema is met
        schema = named.take("schema", "an object", lambda v: isinstance(v, dict))
        named.finish()
    form.finish()
    return schema


def _is_same(wanted: Any, value: Any) -> bool:
    return type(value) is type(wanted) and value == wanted
