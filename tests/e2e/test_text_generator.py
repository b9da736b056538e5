"""Texts of a decoder with its tokenizer: pieces, stops, chats, commands, and what is refused."""

import io
import json
import sys

import pytest
import torch

import taper_frontend
import taper_runtime.cli
from byte_writer import END, byte_model, byte_plan, byte_tokenizer, saying
from cli_page import check_json, schema
from taper_frontend import ExportError
from taper_runtime import InputError
from taper_runtime.text import TextGenerator
from taper_runtime.text.chat_template import TEMPLATE, ChatTemplate
from taper_runtime.text.text_generator import DEFAULTS
from taper_runtime.text.tokenizer_asset import TOKENIZER


@pytest.fixture(scope="module")
def model():
    return byte_model()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "writer.taper"
    byte_plan().save(path)
    return path


@pytest.fixture(scope="module")
def writer(path):
    return TextGenerator(path)


def test_texts_are_those_of_transformers(writer, model):
    tokenizer = byte_tokenizer()
    ids = tokenizer("The cat", return_tensors="pt")
    with torch.no_grad():
        out = model.generate(**ids, max_new_tokens=30, do_sample=False, pad_token_id=256)
    wanted = tokenizer.decode(out[0][7:], skip_special_tokens=True)
    stream = writer.generate("The cat", max_new_tokens=30)
    # a character that is incomplete at the end is never shown
    assert wanted.rstrip("\ufffd").startswith("".join(stream).rstrip("\ufffd"))
    assert stream.tokens == len(out[0]) - 7
    assert stream.finish_reason in ("length", "stop")


def test_pieces_are_whole_characters(writer):
    text = "naïve 日本 🙂!"
    pieces = [*writer.generate("x", **saying(writer, text))]
    assert "".join(pieces) == text
    assert "🙂" in pieces
    assert "日" in pieces


def test_a_text_ends_in_front_of_a_stop_string_over_several_tokens(writer):
    said = saying(writer, "one two STOP three")
    stream = writer.generate("x", stop=["STOP", "three"], **said)
    pieces = [*stream]
    assert "".join(pieces) == "one two "
    assert (stream.finish_reason, stream.tokens) == ("stop", 12)
    assert writer.generator.active == ()


def test_the_beginning_of_a_stop_string_is_written_where_the_text_goes_on(writer):
    text = "ST STO STOSTO end STO"
    pieces = [*writer.generate("x", stop="STOP", **saying(writer, text))]
    assert "".join(pieces) == text
    assert not any(piece in ("S", "ST") for piece in pieces)


def test_the_token_that_ends_a_text_is_not_written(writer):
    stream = writer.generate("x", **saying(writer, "done"))
    assert "".join(stream) == "done"
    assert (stream.finish_reason, stream.tokens) == ("stop", 5)
    assert stream.tokens_per_second > 0 <= stream.first_token_s


def test_a_chat_is_a_prompt_by_the_template(writer, monkeypatch):
    prompts = []
    submit = writer.generator.submit

    def recorded(ids, **options):
        prompts.append(ids)
        return submit(ids, **options)

    monkeypatch.setattr(writer.generator, "submit", recorded)
    messages = [{"role": "user", "content": "hello"}]
    assert "".join(writer.chat(messages, **saying(writer, "hi"))) == "hi"
    wanted = byte_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
    assert prompts == [wanted["input_ids"]]


def test_defaults_are_those_of_the_model(model):
    model.generation_config.do_sample, model.generation_config.top_k = True, 7
    try:
        made = taper_frontend.decoders.text_assets.text_assets(model, byte_tokenizer(), 257)
    finally:
        model.generation_config.do_sample, model.generation_config.top_k = None, None
    found = json.loads(made[DEFAULTS])
    assert (found["defaults"]["do_sample"], found["defaults"]["top_k"]) == (True, 7)
    assert found["tokens"] == {"eos_token": END}
    greedy = taper_frontend.decoders.text_assets.text_assets(model, byte_tokenizer(), 257)
    assert "top_k" not in json.loads(greedy[DEFAULTS])["defaults"]


# -- what is refused -------------------------------------------------------------------------------

TEMPLATES = {
    "no template": ("{% for %}", "no template"),
    "loops in loops": ("{% for m in messages %}" * 30 + "{% endfor %}" * 30, "no template"),
    "an end of no loop": ("{% break %}", "no template"),
    "a long number": ("{{ " + "9" * 5000 + " }}", "no template"),
    "a refusal": ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    "an unknown name": ("{{ nothing.at.all }}", "the template fails"),
    "Python's classes": ("{{ messages.__class__.__mro__[1].x }}", "the template fails"),
    "a changed message": ("{{ messages.append(1) }}", "the template fails"),
    "a long loop": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "expected at most 100000 steps",
    ),
    "loops over a text": (
        "{% set s = '%9999s' % 'a' %}" + "{% for a in s %}" * 4 + "{% endfor %}" * 4,
        "expected at most 5000 steps of loops and calls of macros",
    ),
    "calls of calls": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        "expected at most 5000 steps of loops and calls of macros",
    ),
    "a long text": ("{{ 'a' * 1000000000 }}", "expected a product of whole numbers"),
    "squares of squares": (
        "{% set n = namespace(x=3) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "expected a product of at most 1024 bits",
    ),
    "many words": ("{{ lipsum(n=1000000000) }}", "'lipsum' is undefined"),
    "many slices": ("{{ messages|map('slice', 1000000000)|map('list')|list }}", "at most 1000"),
    "many digits": ("{{ 1|round(precision=1000000000, method='ceil') }}", "at most 1000"),
    "a long time": ("{% for m in messages %}{{ '%9999d' % 1 }}{% endfor %}", "at most 0 s of CPU"),
    "a power": ("{{ 9 ** 99999999 }}", "expected a product of whole numbers"),
    "division by zero": ("{{ 1 // 0 }}", "the template fails"),
}  # fmt: skip


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> in a city, été",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
WITH_TOOLS = """{% for t in tools or [] %}{{ t | tojson }}{{ t.function | tojson(indent=2) }}
{% endfor %}{% for m in messages %}{% if m.role == "skip" %}{% continue %}{% endif %}
{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}
{% endfor %}{% endfor %}{% if strftime_now("%Y") | length == 4 %}year{% endif %}"""


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["none", "one"])
def test_templates_see_tools_as_in_transformers(tools):
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "skip", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    tokenizer = byte_tokenizer()
    wanted = tokenizer.apply_chat_template(
        messages, tools, chat_template=WITH_TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert ChatTemplate(WITH_TOOLS, {}).render(messages, tools) == wanted
    assert ("<now> in a city, été" in wanted) == bool(tools)


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_that_fail_or_do_not_end_are_refused(case, monkeypatch):
    monkeypatch.setattr("taper_runtime.text.chat_template._MOST_TURNS", 5000)
    if case == "a long time":
        monkeypatch.setattr("taper_runtime.text.chat_template._MOST_SECONDS", 0.0)
    source, message = TEMPLATES[case]
    with pytest.raises(InputError, match=message):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    "messages", [[], "hello", None, ["hello"], [{"role": "user"}], [{"role": 1, "content": "x"}]]
)
def test_messages_of_another_form_are_refused(messages):
    with pytest.raises(InputError, match="messages"):
        ChatTemplate("", {}).render(messages)


WRONG = {
    "prompt": ({"prompt": 5}, "prompt: expected a str, got int"),
    "surrogate": ({"prompt": "\ud800"}, "prompt: expected valid Unicode"),
    "empty": ({"prompt": ""}, "expected a prompt of 1 to 128 tokens"),
    "long": ({"prompt": "x" * 200}, "expected a prompt of 1 to 128 tokens"),
    "stop": ({"stop": [""]}, "stop: expected texts that are not empty"),
    "stop of a number": ({"stop": 5}, "stop: expected texts that are not empty, got 5"),
    "stop of bytes": ({"stop": [b"x"]}, "stop: expected texts"),
    "temperature": ({"do_sample": True, "temperature": -1.0}, "temperature"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case, writer):
    given, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        writer.generate(**{"prompt": "x", "max_new_tokens": 1, **given})
    assert writer.generator.active == ()


DAMAGED = {
    "no utf-8": (
        {DEFAULTS: b"\xff"},
        r"plan.assets\['generation.json'\]: expected a text in UTF-8",
    ),
    "no object": ({DEFAULTS: b"[]"}, "expected an object with tokens and defaults"),
    "tokens": (
        {DEFAULTS: b'{"tokens": [], "defaults": {}}'},
        "tokens: expected an object of texts",
    ),
    "defaults": ({DEFAULTS: b'{"tokens": {}, "defaults": 1}'}, "defaults: expected an object"),
    "a default": (
        {DEFAULTS: b'{"tokens": {}, "defaults": {"logits_processors": [1]}}'},
        "defaults.logits_processors: expected no such value",
    ),
    "tokenizer": ({TOKENIZER: b"{}"}, "no tokenizer"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_assets_are_named(case, path):
    changed, message = DAMAGED[case]
    with pytest.raises(InputError, match=message):
        TextGenerator(taper_runtime.load(path).with_assets(changed))


def test_a_plan_without_a_template_or_a_tokenizer_is_named(path):
    plan = taper_runtime.load(path)
    some = {name: data for name, data in plan.assets.items() if name != TEMPLATE}
    with pytest.raises(InputError, match=r"plan.assets: expected 'chat_template.jinja'"):
        TextGenerator(plan._replace(assets=some)).chat([{"role": "user", "content": "x"}])
    with pytest.raises(InputError, match=r"plan.assets: expected 'tokenizer.json'"):
        TextGenerator(plan._replace(assets={}))


def test_tokenizers_that_do_not_fit_are_refused_at_export(model):
    make = taper_frontend.decoders.text_assets.text_assets
    with pytest.raises(ExportError, match="expected a fast tokenizer of transformers, got object"):
        make(model, object(), 257)
    with pytest.raises(ExportError, match="expected at most the 9 tokens of the model, got 257"):
        make(model, byte_tokenizer(), 9)
    several = byte_tokenizer()
    several.chat_template = {"default": "", "tools": ""}
    with pytest.raises(ExportError, match=r"expected one template, got \['default', 'tools'\]"):
        make(model, several, 257)


# -- the commands ----------------------------------------------------------------------------------


def test_generate_prints_the_text_and_the_speed(path, writer, capsys):
    options = ["generate", str(path), "The cat", "--max-new-tokens", "5"]
    options += ["--assistant-model", str(path)]
    assert taper_runtime.cli.main(options) == 0
    err = capsys.readouterr().err
    assert "5 tokens, the first after" in err
    assert taper_runtime.cli.main([*options, "--json", "--temperature", "0"]) == 0
    found = json.loads(capsys.readouterr().out)
    check_json(schema("generate"), found)
    assert found["text"] == "".join(writer.generate("The cat", max_new_tokens=5))
    assert taper_runtime.cli.main([*options, "--top-k", "3", "--seed", "1", "--json"]) == 0


def test_chat_answers_each_line(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n\nagain\r\n")))
    options = ["chat", str(path), "--max-new-tokens", "3", "--system", "be short", "--json"]
    assert taper_runtime.cli.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    check_json(schema("chat"), found)
    roles = [message["role"] for message in found["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]


def test_chat_goes_on_after_lines_that_are_too_long_or_no_text(path, monkeypatch, capsys):
    lines = b"hello\n" + b"long " * 40 + b"\n\xff\nagain\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert taper_runtime.cli.main(["chat", str(path), "--max-new-tokens", "3", "--json"]) == 1
    out, err = capsys.readouterr()
    asked = [m["content"] for m in json.loads(out)["messages"] if m["role"] == "user"]
    assert asked == ["hello", "again"]
    assert "taper: ids: expected a prompt of 1 to 128 tokens" in err
    assert "taper: line 3: expected UTF-8" in err
    assert err.endswith("taper: 2 lines got no answer\n")


def test_texts_are_printed_in_the_encoding_of_the_output(path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    options = ["--max-new-tokens", "9", "--temperature", "5", "--seed", "1"]
    assert taper_runtime.cli.main(["generate", str(path), "x", *options]) == 0
    assert rb"\ufffd" in sys.stdout.buffer.getvalue()  # for bytes that are no character
