"""A server over a socket: OpenAI's protocol, limits, clients that go away, and what is refused."""

import base64
import json
import random
import threading
import time

import numpy as np
import pytest

from byte_writer import byte_plan, saying
from encoder_folders import bert_folder
from plan_files import small_plan
from served import serve
from taper_frontend import export_encoder
from taper_runtime import InputError, KernelError
from taper_runtime.generation.guess_count import GuessCount
from taper_runtime.serving import ServerLimits, make_application, open_model
from taper_runtime.serving.openai_answers import AnswerChoice
from taper_runtime.serving.tool_calls import ToolCall, ToolCallReader
from taper_runtime.serving.writing_thread import WrittenPart
from taper_runtime.text import Encoder, TextGenerator

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]
DRAWN = {"temperature": 1.0, "seed": 7, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return bert_folder(tmp_path_factory.mktemp("bert"), [("Pooling", {"pooling_mode": "mean"}, {})])


@pytest.fixture(scope="module")
def encoder_plan(folder):
    return export_encoder(folder)


@pytest.fixture(scope="module")
def server(encoder_plan):
    plans = {"writer": byte_plan(), "encoder": encoder_plan, "plain": small_plan()}
    with serve(plans, ServerLimits(max_active=4, max_body_bytes=200_000)) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(server):
    yield
    generator = server.models["writer"].writer.generator
    wait_until(lambda: not generator.active)
    assert generator.waiting == ()


@pytest.fixture(scope="module")
def alone():
    """A writer without a server."""
    return TextGenerator(byte_plan())


def wait_until(is_true):
    for _ in range(2000):
        if is_true():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def says(server, monkeypatch, text):
    """Have the model write this text."""
    writer = server.models["writer"].writer
    own = writer.with_defaults
    said = saying(writer, text)["logits_processors"]
    monkeypatch.setattr(writer, "with_defaults", lambda o: {**own(o), "logits_processors": said})


def chat(server, **fields):
    status, _, found = server.ask(CHAT, {"model": "writer", "messages": HELLO, **fields})
    assert status == 200, found
    return found


def test_a_chat_is_that_of_the_writer(server, alone):
    found = chat(server, **DRAWN)
    stream = alone.chat(HELLO, do_sample=True, seed=7, max_new_tokens=12)
    text = "".join(stream)
    assert found["object"] == "chat.completion"
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": stream.finish_reason,
        }
    ]
    prompt = len(alone.encode_chat(HELLO))
    assert found["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": stream.tokens,
        "total_tokens": prompt + stream.tokens,
    }


def test_a_stream_has_the_same_text_in_pieces(server):
    asked = {"model": "writer", "messages": HELLO, "n": 2, "logprobs": True, **DRAWN}
    whole = chat(server, **asked)
    *events, end = server.events(CHAT, {**asked, "stream_options": {"include_usage": True}})
    assert end == "[DONE]"
    *chunks, last = map(json.loads, events)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for wanted in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == wanted["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert (
            "".join(part["delta"].get("content", "") for part in parts)
            == (wanted["message"]["content"])
        )
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == wanted["finish_reason"]
        tokens = [t for part in parts if part["logprobs"] for t in part["logprobs"]["content"]]
        assert tokens == wanted["logprobs"]["content"]
    first, second = (choice["message"]["content"] for choice in whole["choices"])
    assert first != second


def test_completions_take_texts_and_tokens(server, alone):
    prompts = ["one", "another text"]
    asked = {"model": "writer", "n": 2, **DRAWN}
    status, _, found = server.ask(COMPLETIONS, {**asked, "prompt": prompts})
    assert (status, found["object"]) == (200, "text_completion")
    texts = [choice["text"] for choice in found["choices"]]
    assert texts == [
        "".join(alone.generate(prompt, do_sample=True, seed=seed, max_new_tokens=12))
        for prompt in prompts
        for seed in (7, 8)
    ]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    tokens = [alone.encode(prompt) for prompt in prompts]
    assert found["usage"]["prompt_tokens"] == sum(map(len, tokens))
    again = server.ask(COMPLETIONS, {**asked, "prompt": tokens})[2]
    assert [choice["text"] for choice in again["choices"]] == texts
    one = server.ask(COMPLETIONS, {**asked, "prompt": tokens[0], "n": 1, "max_tokens": None})[2]
    assert one["choices"][0]["text"].startswith(texts[0])
    assert one["usage"]["completion_tokens"] <= 16
    streamed = server.events(COMPLETIONS, {**asked, "prompt": prompts})
    pieces = [json.loads(event)["choices"][0] for event in streamed[:-1]]
    assert ["".join(p["text"] for p in pieces if p["index"] == i) for i in range(4)] == texts


def test_logprobs_are_those_of_the_generator(server, alone):
    ids = alone.encode("one")
    request = alone.generator.submit(
        ids, max_new_tokens=6, do_sample=True, seed=7, logprobs=3, eos_token_id=()
    )
    while alone.generator.active:
        alone.generator.step()
    bias = {"256": -100}  # no token ends the text
    asked = {"model": "writer", "prompt": "one", "temperature": 1, "seed": 7, "max_tokens": 6}
    found = server.ask(COMPLETIONS, {**asked, "logprobs": 3})[2]["choices"][0]["logprobs"]
    shown = len(found["tokens"])  # without the token that ends it
    assert found["token_logprobs"] == [each.logprob for each in request.logprobs[:shown]]
    assert (
        found["top_logprobs"]
        == [  # parts of characters have one name
            {alone.tokenizer.decode([token]): value for token, value in each.top}
            for each in request.logprobs[:shown]
        ]
    )
    assert found["text_offset"][0] == 0
    pieces = server.events(COMPLETIONS, {**asked, "logprobs": 3})[:-1]
    offsets = [json.loads(e)["choices"][0]["logprobs"]["text_offset"] for e in pieces]
    assert [offset for each in offsets for offset in each] == found["text_offset"]
    found = chat(server, logprobs=True, top_logprobs=2, max_tokens=3, logit_bias=bias)
    content = found["choices"][0]["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in content] == [2, 2, 2]
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in content if each["bytes"])


def test_a_bias_decides(server):
    found = chat(server, logit_bias={"40": 100, "256": -100}, max_tokens=4)
    assert len({*found["choices"][0]["message"]["content"]}) == 1


def test_stop_strings_end_a_text(server, monkeypatch):
    says(server, monkeypatch, "one two STOP three")
    found = chat(server, stop=["STOP", "never"], max_tokens=50)
    assert found["choices"][0]["message"]["content"] == "one two "
    assert found["choices"][0]["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == 12


def test_a_greedy_text_needs_no_draws(server, alone):
    text = "".join(alone.chat(HELLO, max_new_tokens=5))
    for fields in ({}, {"temperature": 0, "top_p": 0.5, "seed": 3}, {"seed": 3}):
        found = chat(server, max_completion_tokens=5, **fields)
        assert found["choices"][0]["message"]["content"] == text


def test_a_text_without_max_tokens_fills_the_context(server, alone):
    found = chat(server, logit_bias={"256": -100})
    prompt = len(alone.encode_chat(HELLO))
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 128 + 1 - prompt


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = (
    'So: <tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
    '<tool_call>{"name": "g"}</tool_call>'
)


def test_calls_of_tools_are_read_from_the_text(server, monkeypatch):
    long = {"max_tokens": 120, "tools": [TOOL], "messages": [{"role": "user", "content": ""}]}
    monkeypatch.setattr(server.models["writer"].writer, "encode_chat", lambda *_: [1])
    says(server, monkeypatch, CALLS)
    choice = chat(server, **long)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "So: "
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert [call["name"] for call in calls] == ["f", "g"]
    assert [json.loads(call["arguments"]) for call in calls] == [{"a": "ü"}, {}]
    says(server, monkeypatch, CALLS)
    events = server.events(CHAT, {"model": "writer", **long})
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in streamed] == [0, 1]
    assert [call["function"] for call in streamed] == calls
    says(server, monkeypatch, CALLS)
    text = chat(server, **{**long, "tool_choice": "none"})["choices"][0]["message"]
    assert (text["content"], "tool_calls" in text) == (CALLS, False)


def test_templates_see_tools_and_calls(server, monkeypatch):
    seen = []
    writer = server.models["writer"].writer
    own = writer.encode_chat

    def recorded(messages, tools=None):
        seen.append((messages, tools))
        return own(messages, tools)

    monkeypatch.setattr(writer, "encode_chat", recorded)
    function = {"name": "weather", "arguments": '{"city": "Zürich"}'}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    chat(server, messages=messages, tools=[TOOL], max_tokens=1)
    ((found, tools),) = seen
    assert tools == [TOOL]
    assert found[0] == {"role": "user", "content": "ab"}
    call = {"type": "function", "function": {**function, "arguments": {"city": "Zürich"}}}
    assert found[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert found[2] == {"role": "tool", "content": "rain", "tool_call_id": "1"}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_is_no_call_stays_text(size):
    text = "a <tool <tool_call>{no}</tool_call> <tool_call>[1]</tool_call> b <tool_call>{"
    reader, found, calls = ToolCallReader(), "", []
    for start in range(0, len(text), size):
        piece, some = reader.push(text[start : start + size])
        found += piece
        calls += some
    assert found + reader.finish() == text
    assert calls == []
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    pieces = [reader.push(call[i : i + size]) for i in range(0, len(call), size)]
    assert [each for _, some in pieces for each in some] == [ToolCall("f", '{"a": 1}')]
    ended = AnswerChoice(True)
    ended.add(WrittenPart(0, "<tool_call>{", 1, [], "length", None))
    assert (ended.text, ended.reason) == ("<tool_call>{", "length")


def test_embeddings_are_those_of_the_encoder(server, encoder_plan):
    sentences = ["the cat sat on the mat .", "A DOG", ""]
    encoder = Encoder(encoder_plan)
    wanted = encoder.encode(sentences)
    asked = {"model": "encoder", "input": sentences}
    found = server.ask(EMBEDDINGS, asked)[2]
    rows = [each["embedding"] for each in found["data"]]
    np.testing.assert_array_equal(np.array(rows, np.float32), wanted)
    count = encoder.count_tokens(sentences)
    assert found["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert count == (7 + 2) + (2 + 2) + 2  # with [CLS] and [SEP]
    coded = server.ask(EMBEDDINGS, {**asked, "encoding_format": "base64", "dimensions": 3})[2]
    rows = [np.frombuffer(base64.b64decode(e["embedding"]), "<f4") for e in coded["data"]]
    np.testing.assert_array_equal(rows, wanted[:, :3])


def test_texts_have_the_same_bits_whoever_else_is_written(server):
    """Each of many requests at once has the tokens and probabilities that it has alone."""
    rng = random.Random(0)
    asked = [
        {
            "model": "writer",
            "prompt": "x" * rng.randrange(1, 40),
            "max_tokens": rng.randrange(1, 30),
            "logprobs": 2,
            **rng.choice(({}, {"temperature": 0.9, "seed": number}, {"frequency_penalty": 0.5})),
        }
        for number in range(12)
    ]
    alone = [server.ask(COMPLETIONS, each)[2]["choices"] for each in asked]
    found = [None] * len(asked)

    def ask(place):
        found[place] = server.ask(COMPLETIONS, asked[place])[2]["choices"]

    gone = server.begin(COMPLETIONS, {"model": "writer", "prompt": "y", "max_tokens": 120})
    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(asked))]
    for thread in threads:
        thread.start()
    gone.close()
    for thread in threads:
        thread.join()
    assert found == alone


@pytest.mark.parametrize("guesser", ["assistant", "lookup"])
def test_guesses_change_no_text(guesser, server, monkeypatch):
    """One text alone takes fewer steps than it has tokens; several share steps."""
    asked = [
        {"model": "writer", "prompt": prompt, "max_tokens": 30, "logprobs": 1, **options}
        for prompt, options in (
            ("abcabcab", {}),
            ("xyz", {"temperature": 0.9, "seed": 3}),
            ("aaaa", {"frequency_penalty": 0.5}),
        )
    ]
    wanted = [server.ask(COMPLETIONS, each)[2]["choices"] for each in asked]
    limits = ServerLimits(prompt_lookup_num_tokens=5 if guesser == "lookup" else None)
    assistants = {"writer": byte_plan()} if guesser == "assistant" else {}
    monkeypatch.setattr(GuessCount, "choose", lambda _, most: most)  # however much one costs
    with serve({"writer": byte_plan()}, limits, assistants=assistants) as guessing:
        generator, steps = guessing.models["writer"].writer.generator, []
        step = generator.step
        generator.step = lambda: steps.append(1) or step()
        for each, choices in zip(asked, wanted, strict=True):
            assert guessing.ask(COMPLETIONS, each)[2]["choices"] == choices
        assert len(steps) < 80
        found = [None] * len(asked)

        def ask(place):
            found[place] = guessing.ask(COMPLETIONS, asked[place])[2]["choices"]

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == wanted


def test_answers_meet_a_schema(server):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "word": {"enum": ["yes", "no"]}},
        "required": ["ok", "word"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    sampled = {"temperature": 1, "top_k": 257, "seed": 3, "n": 3, "max_tokens": 100}
    for choice in chat(server, response_format=form, **sampled)["choices"]:
        if choice["finish_reason"] == "stop":
            found = json.loads(choice["message"]["content"])
            assert isinstance(found["ok"], bool)
            assert found["word"] in ("yes", "no")
    free = chat(server, response_format={"type": "json_object"}, max_tokens=3)
    assert free["choices"][0]["message"]["content"].startswith("{")


def idle_until(allowed, own):
    """A step that does nothing unless one more is allowed."""
    return lambda: own() if allowed.acquire(timeout=0.005) else []


@pytest.fixture
def slow(server, monkeypatch):
    """A semaphore that allows steps."""
    generator = server.models["writer"].writer.generator
    allowed = threading.Semaphore(0)
    monkeypatch.setattr(generator, "step", idle_until(allowed, generator.step))
    yield allowed
    allowed.release(1000)


def metric(server, name):
    text = server.ask("/metrics")[2].decode()
    found = [line for line in text.splitlines() if line.startswith(name + "{")]
    return float(found[0].split()[-1]) if found else 0.0


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_goes_away_takes_its_text_along(server, slow, is_streamed):
    generator = server.models["writer"].writer.generator
    before = metric(server, "taper_server_cancelled_texts_total")
    asked = {"model": "writer", "prompt": "x", "max_tokens": 100, "stream": is_streamed}
    gone = server.begin(COMPLETIONS, {**asked, "n": 2, "logit_bias": {"256": -100}})
    answers = []
    stays = threading.Thread(
        target=lambda: answers.append(server.ask(COMPLETIONS, {**asked, "stream": False}))
    )
    stays.start()
    wait_until(lambda: len(generator.active) == 3)
    slow.release(2)
    wait_until(lambda: all(request.tokens for request in generator.active))
    if is_streamed:
        assert b"200 OK" in gone.recv(1000)
    gone.close()
    wait_until(lambda: len(generator.active) == 1)
    slow.release(200)
    stays.join()
    assert answers[0][0] == 200
    assert metric(server, "taper_server_cancelled_texts_total") == before + 2


def test_texts_wait_for_a_place(server, slow):
    generator = server.models["writer"].writer.generator
    asked = {"model": "writer", "prompt": "x", "max_tokens": 3, "n": 6}
    answers = []
    thread = threading.Thread(target=lambda: answers.append(server.ask(COMPLETIONS, asked)))
    thread.start()
    wait_until(lambda: len(generator.waiting) == 2)
    assert len(generator.active) == 4
    assert metric(server, "taper_server_waiting_texts") == 2
    slow.release(100)
    thread.join()
    assert len(answers[0][2]["choices"]) == 6


def test_a_run_that_fails_ends_its_texts_alone(server, slow, monkeypatch):
    writer = server.models["writer"].writer
    own, calls = writer.session.run, []

    def run(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KernelError("it broke")
        return own(*arguments, **options)

    monkeypatch.setattr(writer.session, "run", run)
    slow.release(1000)
    status, _, found = server.ask(CHAT, {"model": "writer", "messages": HELLO})
    assert (status, found["error"]["type"]) == (500, "server_error")
    assert "it broke" in found["error"]["message"]
    calls[:] = []
    events = server.events(CHAT, {"model": "writer", "messages": HELLO})
    assert "it broke" in json.loads(events[-1])["error"]["message"]  # the status was 200
    assert chat(server, max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_tokenizer_that_fails_ends_its_text_alone(server, monkeypatch):
    def broken(self, token):
        raise RuntimeError("no such prefix")

    monkeypatch.setattr("taper_runtime.text.piece_decoder.PieceDecoder.push", broken)
    status, _, found = server.ask(CHAT, {"model": "writer", "messages": HELLO, "max_tokens": 2})
    monkeypatch.undo()
    assert (status, "no such prefix" in found["error"]["message"]) == (500, True)
    assert chat(server, max_tokens=2)


PICTURE = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
WRITER = {"model": "writer", "messages": HELLO}

#: Path, body, status, and a part of the message.
WRONG = {
    "no json": (CHAT, b"{", 400, "body: expected a JSON object"),
    "deep": (CHAT, b'{"a":' + b"[" * 100_000, 400, "body: expected a JSON object"),
    "no utf-8": (CHAT, b"\xff", 400, "body: expected a JSON object in UTF-8"),
    "list": (CHAT, [], 400, "body: expected a JSON object"),
    "model": (CHAT, {**WRITER, "model": "gpt"}, 404, "model: expected one of writer, encoder"),
    "surrogate": (CHAT, {**WRITER, "model": "\ud800"}, 404, "model: expected one of"),
    "no model": (CHAT, {"messages": HELLO}, 400, "model: expected a string, got nothing"),
    "no messages": (CHAT, {"model": "writer"}, 400, "messages: expected a list of messages"),
    "empty messages": (CHAT, {**WRITER, "messages": []}, 400, "messages: expected a list"),
    "message": (CHAT, {**WRITER, "messages": ["x"]}, 400, "messages[0]: expected an object"),
    "role": (CHAT, {**WRITER, "messages": [{"content": "x"}]}, 400, "messages[0].role: expected"),
    "content": (CHAT, {**WRITER, "messages": [{"role": "user"}]}, 400, "messages[0].content"),
    "picture": (
        CHAT, {**WRITER, "messages": [{"role": "user", "content": [PICTURE]}]}, 400,
        "messages[0].content[0].type: expected 'text', got 'image_url'",
    ),
    "unknown": (CHAT, {**WRITER, "max_token": 3}, 400, "did you mean 'max_tokens'?"),
    "arguments": (
        CHAT,
        {**WRITER, "messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{"}}]}]},
        400, "messages[0].tool_calls[0].function.arguments: expected the text of a JSON object",
    ),
    "tool": (CHAT, {**WRITER, "tools": [{"type": "x"}]}, 400, "tools[0].type: expected 'function'"),
    "seed without draws": (
        CHAT, {**WRITER, "temperature": 0, "seed": 10**30}, 400, "seed: expected None or an int"
    ),
    "tool choice": (CHAT, {**WRITER, "tool_choice": "required"}, 400, "tool_choice: expected"),
    "format": (
        CHAT, {**WRITER, "response_format": {"type": "xml"}}, 400, "response_format.type: expected",
    ),
    "format with tools": (
        CHAT, {**WRITER, "response_format": {"type": "json_object"}, "tools": [
            {"type": "function", "function": {"name": "f"}}]}, 400, "expected no tools beside",
    ),
    "no schema": (
        CHAT, {**WRITER, "response_format": {"type": "json_schema", "json_schema": {}}}, 400,
        "response_format.json_schema.schema: expected an object, got nothing",
    ),
    "schema": (
        CHAT, {**WRITER, "response_format": {"type": "json_schema", "json_schema": {
            "schema": {"allOf": [{"type": "string"}, {"type": "null"}]}}}}, 400,
        "json_schema: Unsatisfiable schema",
    ),
    "n": (CHAT, {**WRITER, "n": 0}, 400, "n: expected a whole number from 1 to 128, got 0"),
    "many": (COMPLETIONS, {"model": "writer", "prompt": ["x"] * 20, "n": 9}, 400, "at most 128"),
    "best of": (COMPLETIONS, {"model": "writer", "prompt": "x", "best_of": 2}, 400, "best_of"),
    "echo": (COMPLETIONS, {"model": "writer", "prompt": "x", "echo": True}, 400, "echo"),
    "temperature": (CHAT, {**WRITER, "temperature": -1}, 400, "temperature: expected a number"),
    "temperature text": (CHAT, {**WRITER, "temperature": "1"}, 400, "temperature: expected"),
    "temperature nan": (CHAT, json.dumps({**WRITER, "temperature": float("nan")}).encode(), 400,
                        "temperature: expected a number at least 1e-30"),
    "top_p": (CHAT, {**WRITER, "top_p": 1.5}, 400, "top_p: expected a number more than 0"),
    "top_k": (CHAT, {**WRITER, "top_k": 0}, 400, "top_k"),
    "seed": (CHAT, {**WRITER, "temperature": 1, "seed": 10**30}, 400, "seed"),
    "penalty": (CHAT, {**WRITER, "presence_penalty": 3}, 400, "presence_penalty"),
    "bias": (CHAT, {**WRITER, "logit_bias": {"x": 1}}, 400, "logit_bias"),
    "bias token": (CHAT, {**WRITER, "logit_bias": {"257": 1}}, 400, "tokens less than 257"),
    "bias value": (CHAT, {**WRITER, "logit_bias": {"1": 101}}, 400, "logit_bias"),
    "max_tokens": (CHAT, {**WRITER, "max_tokens": 0}, 400, "max_tokens: expected a whole number"),
    "two limits": (
        CHAT, {**WRITER, "max_tokens": 1, "max_completion_tokens": 1}, 400, "max_tokens: expected",
    ),
    "top_logprobs": (CHAT, {**WRITER, "top_logprobs": 2}, 400, "expected logprobs to be true"),
    "logprobs": (CHAT, {**WRITER, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    "stop": (CHAT, {**WRITER, "stop": [""]}, 400, "stop: expected a text"),
    "stops": (CHAT, {**WRITER, "stop": ["x"] * 17}, 400, "stop: expected a text"),
    "stream options": (CHAT, {**WRITER, "stream_options": {}}, 400, "expected stream to be true"),
    "more stream options": (
        CHAT, {**WRITER, "stream": True, "stream_options": {"x": 1}}, 400, "stream_options.x",
    ),
    "empty": (COMPLETIONS, {"model": "writer", "prompt": ""}, 400, "a prompt of 1 to 128 tokens"),
    "no tokens": (COMPLETIONS, {"model": "writer", "prompt": []}, 400, "prompt: expected a text"),
    "long": (COMPLETIONS, {"model": "writer", "prompt": "x" * 129}, 400, "got a prompt of 129"),
    "too much": (
        COMPLETIONS, {"model": "writer", "prompt": "x" * 100, "max_tokens": 30}, 400,
        "expected at most 128 tokens, the context of the model, got a prompt of 100 and max_tokens",
    ),
    "token": (COMPLETIONS, {"model": "writer", "prompt": [1, 257]}, 400, "an id from 0 to 256"),
    "tokens": (COMPLETIONS, {"model": "writer", "prompt": [[1], [-1]]}, 400, "from 0 to 256"),
    "mixed": (COMPLETIONS, {"model": "writer", "prompt": ["x", [1]]}, 400, "prompt: expected"),
    "lone surrogate": (COMPLETIONS, b'{"model": "writer", "prompt": "\\ud800"}', 400, "Unicode"),
    "no writer": (CHAT, {**WRITER, "model": "plain"}, 400, "'plain' is no decoder"),
    "no encoder": (EMBEDDINGS, {"model": "writer", "input": "x"}, 400, "embeds no sentences"),
    "input": (EMBEDDINGS, {"model": "encoder", "input": [1, 2]}, 400, "input: expected a text"),
    "inputs": (EMBEDDINGS, {"model": "encoder", "input": []}, 400, "input: expected a text"),
    "coding": (
        EMBEDDINGS, {"model": "encoder", "input": "x", "encoding_format": "hex"}, 400, "base64",
    ),
    "dimensions": (
        EMBEDDINGS, {"model": "encoder", "input": "x", "dimensions": 99}, 400, "truncate_dim",
    ),
    "model of many words": (CHAT, {**WRITER, "model": "x" * 9999}, 404, "x..."),
    "large temperature": (CHAT, {**WRITER, "temperature": 10**400}, 400, "an integer of 1329 bits"),
    "path": ("/v1/files", {"file": "/etc/passwd"}, 404, "POST /v1/files: Not Found"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests_are_answered_in_the_protocols_form(case, server):
    path, body, wanted, message = WRONG[case]
    status, _, found = server.ask(path, body)
    assert status == wanted, found
    assert found.keys() == {"error"}
    assert found["error"].keys() == {"message", "type", "param", "code"}
    assert found["error"]["type"] == "invalid_request_error"
    assert message in found["error"]["message"]
    assert len(found["error"]["message"]) <= 503


def test_codes_are_those_that_clients_know(server):
    long = server.ask(COMPLETIONS, {"model": "writer", "prompt": "x" * 129})[2]["error"]
    assert long["code"] == "context_length_exceeded"
    other = server.ask(CHAT, {**WRITER, "model": "gpt"})[2]["error"]
    assert (other["code"], other["param"]) == ("model_not_found", "model")
    assert server.ask("/v1/models", method="DELETE")[0] == 405


def test_templates_that_fail_are_named(server, monkeypatch):
    from taper_runtime.text.chat_template import ChatTemplate

    writer = server.models["writer"].writer
    monkeypatch.setattr(writer, "_template", ChatTemplate("{{ raise_exception('no tool') }}", {}))
    status, _, found = server.ask(CHAT, WRITER)
    assert (status, "no tool" in found["error"]["message"]) == (400, True)
    monkeypatch.undo()
    assert chat(server, max_tokens=1)


def test_large_bodies_are_not_kept(server):
    def parts():
        for _ in range(100):
            yield b"x" * 1_000_000

    for body in (b"x" * 100_000_000, parts()):
        status, _, found = server.ask(CHAT, body)
        assert (status, found["error"]["code"]) == (413, "body_too_large")
    assert chat(server, max_tokens=1)


def test_models_are_listed(server):
    found = server.ask("/v1/models")[2]
    assert [model["id"] for model in found["data"]] == ["writer", "encoder", "plain"]
    assert server.ask("/v1/models/encoder")[2]["object"] == "model"
    assert server.ask("/v1/models/other")[0] == 404
    assert server.ask("/health")[2] == {"status": "ok"}


def test_metrics_count(server):
    chat(server, max_tokens=2)
    status, headers, text = server.ask("/metrics")
    assert (status, headers.get_content_type()) == (200, "text/plain")
    lines = text.decode().splitlines()
    kinds = [line for line in lines if line.startswith("# TYPE")]
    assert len(kinds) == len({*kinds}) > 20
    assert metric(server, "taper_server_generated_tokens_total") >= 2
    assert any(
        line.startswith('taper_server_requests_total{path="/v1/chat/completions",status="200"}')
        for line in lines
    )
    assert 'taper_server_active_texts{model="writer"} 0' in lines
    runs = [line for line in lines if line.startswith("taper_runs_total{")]
    assert [line.partition("model=")[2].split('"')[1] for line in runs] == [
        *("writer", "encoder", "plain")
    ]


def test_a_key_is_asked_for():
    with serve({"plain": small_plan()}, api_key="secret") as server:
        assert server.ask("/v1/models")[0] == 401
        wrong = server.ask("/v1/models", headers={"Authorization": "Bearer other"})
        assert (wrong[0], wrong[2]["error"]["code"]) == (401, "invalid_api_key")
        assert server.ask("/v2/models/plain")[2].keys() == {"error"}
        assert server.ask("/metrics")[0] == 401
        assert server.ask("/health")[0] == server.ask("/v2/health/ready")[0] == 200
        assert server.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200


def test_names_of_others_are_refused_where_the_server_is_for_its_machine():
    with serve({"plain": small_plan()}, hosts=("localhost", "127.0.0.1", "[::1]")) as server:
        for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "[::1]", "LOCALHOST"):
            assert server.ask("/health", headers={"Host": host})[0] == 200
        for host in ("evil.example:8000", "localhost.evil.example", "", "127.0.0.1.x:1"):
            status, _, found = server.ask("/health", headers={"Host": host})
            assert (status, found["error"]["code"]) == (403, "unknown_host")


def test_limits_refuse():
    limits = ServerLimits(max_requests=1, max_new_tokens=5, timeout_s=1)
    with serve({"writer": byte_plan()}, limits) as server:
        text = {"model": "writer", "prompt": "x", "logit_bias": {"256": -100}}
        found = server.ask(COMPLETIONS, {**text, "max_tokens": 6})
        assert (found[0], found[2]["error"]["param"]) == (400, "max_tokens")
        assert chat(server)["usage"]["completion_tokens"] <= 5
        generator = server.models["writer"].writer.generator
        allowed = threading.Semaphore(0)
        generator.step = idle_until(allowed, generator.step)
        try:
            gone = server.begin(COMPLETIONS, {**text, "max_tokens": 5})
            wait_until(lambda: generator.active)
            status, headers, found = server.ask(COMPLETIONS, text)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert found["error"]["code"] == "overloaded"
            assert server.ask("/health")[0] == 200
            assert b"504" in gone.recv(100)  # it took too long
            events = server.events(COMPLETIONS, {**text, "max_tokens": 5})
            assert json.loads(events[-1])["error"]["code"] == "timeout"
        finally:
            allowed.release(1000)
        gone.close()
        wait_until(lambda: not generator.active)
        assert server.ask(COMPLETIONS, {**text, "max_tokens": 5})[0] == 200


def test_a_server_that_stops_ends_its_texts():
    with serve({"writer": byte_plan()}) as server:
        generator = server.models["writer"].writer.generator
        generator.step = idle_until(threading.Semaphore(0), generator.step)
        asked = {"model": "writer", "prompt": "x", "max_tokens": 120, "stream": True}
        left = server.begin(COMPLETIONS, {**asked, "logit_bias": {"256": -100}})
        wait_until(lambda: generator.active)
    assert generator.active == ()
    left.close()


def test_applications_that_cannot_be_are_refused():
    plain = open_model("plain", small_plan())
    for models, options, message in (
        ([], {}, "models: expected models of different names"),
        ([plain, plain], {}, "models: expected models of different names"),
        ([plain], {"api_key": ""}, "api_key: expected a text of ASCII"),
        ([plain], {"api_key": "é"}, "api_key: expected a text of ASCII"),
        ([plain], {"limits": ServerLimits(timeout_s=0)}, "timeout_s: expected a number from 1"),
        ([plain], {"limits": ServerLimits(max_active=True)}, "max_active: expected a number"),
    ):
        with pytest.raises(InputError, match=message):
            make_application(models, **options)
    with pytest.raises(InputError, match="assistant_model: expected none for 'plain', which is no"):
        open_model("plain", small_plan(), assistant_model=small_plan())
    for name in ("", "a/b", "ä"):
        with pytest.raises(InputError, match="name: expected a model's name of letters"):
            open_model(name, small_plan())
