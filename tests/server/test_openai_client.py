"""OpenAI's own package calls a server of Taper, unchanged but for the address."""

import json
import time

import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from byte_writer import byte_plan, saying
from encoder_folders import bert_folder
from served import serve
from taper_frontend import export_encoder
from taper_runtime.text import Encoder, TextGenerator

HELLO = [{"role": "user", "content": "hello"}]
DRAWN = {"model": "writer", "temperature": 1.0, "seed": 7, "max_tokens": 12}


@pytest.fixture(scope="module")
def encoder_plan(tmp_path_factory):
    stages = [("Pooling", {"pooling_mode": "mean"}, {})]
    return export_encoder(bert_folder(tmp_path_factory.mktemp("bert"), stages))


@pytest.fixture(scope="module")
def server(encoder_plan):
    with serve({"writer": byte_plan(), "encoder": encoder_plan}, api_key="secret") as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    address = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def wanted():
    writer = TextGenerator(byte_plan())
    return "".join(writer.chat(HELLO, do_sample=True, seed=7, max_new_tokens=12))


def test_models(client):
    assert [model.id for model in client.models.list()] == ["writer", "encoder"]
    assert client.models.retrieve("writer").owned_by == "taper"


def test_chat(client, wanted):
    found = client.chat.completions.create(
        messages=HELLO, n=2, logprobs=True, top_logprobs=2, **DRAWN
    )
    assert found.choices[0].message.content == wanted
    assert found.choices[0].finish_reason in ("stop", "length")
    assert len(found.choices[1].logprobs.content[0].top_logprobs) == 2
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens


def test_stream(client, wanted):
    stream = client.chat.completions.create(
        messages=HELLO, stream=True, stream_options={"include_usage": True}, **DRAWN
    )
    *chunks, last = stream
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == wanted
    assert last.usage.completion_tokens <= 12
    # the package raises where a text ends by its length: here a token ends it at once
    ended = {**DRAWN, "logit_bias": {"256": 100}}
    with client.chat.completions.stream(messages=HELLO, **ended) as events:
        assert events.get_final_completion().choices[0].finish_reason == "stop"


def test_completions(client):
    found = client.completions.create(prompt=["one", "two"], logprobs=1, stop="\n", **DRAWN)
    assert [choice.index for choice in found.choices] == [0, 1]
    pieces = [*client.completions.create(prompt="one", stream=True, **DRAWN)]
    whole = client.completions.create(prompt=[ord(c) for c in "one"], **DRAWN)
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_tools(client, server, monkeypatch):
    writer = server.models["writer"].writer
    own = writer.with_defaults
    said = saying(writer, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')
    monkeypatch.setattr(
        writer,
        "with_defaults",
        lambda options: {**own(options), "logits_processors": said["logits_processors"]},
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    found = client.chat.completions.create(model="writer", messages=HELLO, tools=[tool])
    (call,) = found.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"a": 1})
    assert found.choices[0].finish_reason == "tool_calls"
    monkeypatch.undo()
    answered = [
        *HELLO,
        found.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "2"},
    ]
    assert client.chat.completions.create(messages=answered, tools=[tool], **DRAWN).choices


def test_embeddings(client, encoder_plan):
    """The package asks for base64 where it is not told otherwise."""
    sentences = ["the cat sat", "a dog"]
    wanted = Encoder(encoder_plan).encode(sentences)
    for options in ({}, {"encoding_format": "float"}):
        found = client.embeddings.create(model="encoder", input=sentences, **options)
        rows = np.array([each.embedding for each in found.data], np.float32)
        np.testing.assert_array_equal(rows, wanted)


def test_errors_are_those_of_the_package(client, server):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="writer", prompt="x" * 200)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").models.list()
    wrong = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="writer", messages=wrong)
    assert caught.value.param == "messages[0].content[0].type"


def test_a_stream_that_is_closed_ends_its_text(client, server):
    stream = client.completions.create(
        model="writer", prompt="x", max_tokens=120, stream=True, logit_bias={"256": -100}
    )
    next(iter(stream))
    stream.close()
    generator = server.models["writer"].writer.generator
    while generator.active:
        time.sleep(0.01)


def test_metrics_are_prometheus_text(server):
    headers = {"Authorization": "Bearer secret"}
    text = server.ask("/metrics", headers=headers)[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["taper_server_first_token_seconds"].type == "histogram"
    names = {s.labels["model"] for s in families["taper_runs"].samples}
    assert names == {"writer", "encoder"}
