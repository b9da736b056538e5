"""Texts that meet a JSON schema, a regular expression or a grammar, alone and beside others."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import taper_runtime.cli
from byte_writer import byte_plan
from taper_runtime import InputError
from taper_runtime.text import TextGenerator

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
GRAMMAR = 'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]{1,2}/'
REGEX = "(ab|c){3}-[0-9]+x"
DRAWN = {"do_sample": True, "temperature": 1.5, "max_new_tokens": 110}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "writer.taper"
    byte_plan().save(path)
    return path


@pytest.fixture(scope="module")
def writer(path):
    return TextGenerator(path)


def meets(form, text):
    """Return whether a complete text is right, as Python reads it."""
    if form == "json_schema":
        found = json.loads(text)
        return (
            found.keys() == {"name", "age", "kind"}
            and len(found["name"]) <= 4
            and 0 <= found["age"] <= 99
            and found["kind"] in ("cat", "dog")
        )
    if form == "regex":
        return re.fullmatch(REGEX, text) is not None
    inner = text.strip("()")
    depth = text.count("(")
    return text == "(" * depth + inner + ")" * depth and re.fullmatch("[0-9]{1,2}", inner)


FORMS = {"json_schema": SCHEMA, "regex": REGEX, "grammar": GRAMMAR}


@pytest.mark.parametrize("form", FORMS)
def test_complete_texts_are_right_beside_free_ones(form, writer):
    free = "".join(writer.generate("x", max_new_tokens=20))
    # a text of one request is the same whatever the grammars of those beside it
    other = writer.generate("x", max_new_tokens=20)
    streams = [
        writer.generate("x", **{form: FORMS[form]}, **DRAWN, seed=seed, logprobs=0)
        for seed in range(4)
    ]
    texts = ["".join(stream) for stream in streams]
    assert "".join(other) == free
    complete = [
        text for text, stream in zip(texts, streams, strict=True) if stream.finish_reason == "stop"
    ]
    assert complete
    for text in complete:
        assert meets(form, text), text
    alone = writer.generate("x", **{form: FORMS[form]}, **DRAWN, seed=0)
    assert "".join(alone) == texts[0]


def test_the_schema_may_be_text_and_guesses_change_nothing(writer):
    asked = {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 100}
    plain = "".join(writer.generate("x", **asked))
    assert plain.startswith("{")
    assert "".join(writer.generate("x", prompt_lookup_num_tokens=3, **asked)) == plain
    messages = [{"role": "user", "content": "x"}]
    assert "".join(writer.chat(messages, regex="a[bc]", max_new_tokens=9)) in ("ab", "ac")


def test_copies_of_a_mask_are_of_other_texts(writer):
    mask = writer.grammar_mask(regex="ab|cd")
    other = mask.copy()
    a, b, c = (writer.tokenizer.encode(letter).ids[0] for letter in "abc")
    prompt = np.array([5, 5])
    assert np.flatnonzero(mask(prompt)).tolist() == [a, c]
    assert np.flatnonzero(mask(np.array([5, 5, a]))).tolist() == [b]
    assert np.flatnonzero(mask(np.array([5, 5, a, b]))).tolist() == [256]
    assert np.flatnonzero(other(prompt)).tolist() == [a, c]


NEVER = {"allOf": [{"type": "string"}, {"type": "null"}]}

WRONG = {
    "two": ({"regex": "a", "grammar": "b"}, "expected one of json_schema, regex, grammar, got r"),
    "no schema": ({"json_schema": {"type": "x"}}, "json_schema: Invalid type: x"),
    "unmet": ({"json_schema": NEVER}, "json_schema: Unsatisfiable schema"),
    "keyword": (
        {"json_schema": {"type": "array", "uniqueItems": True}},
        "json_schema: Unimplemented keys",
    ),
    "no json": ({"json_schema": "{"}, "json_schema: expected a JSON object: "),
    "a list": ({"json_schema": "[1]"}, "json_schema: expected a JSON object, got"),
    "an object": ({"json_schema": {"x": object()}}, "json_schema: expected a JSON object: "),
    "a number": ({"json_schema": 5}, "json_schema: expected a JSON object: "),
    "a file": ({"json_schema": {"$ref": "file:///etc/passwd"}}, "json_schema: Resource"),
    "deep": ({"json_schema": '{"not":' * 500 + "{}" + "}" * 500}, "json_schema: .*recursion"),
    "no regex": ({"regex": "[a"}, "regex: .*unclosed character class"),
    "a regex of bytes": ({"regex": b"a"}, "regex: expected a str, got bytes"),
    "no text": ({"regex": r"[^\s\S]"}, "regex: no text that begins so can meet it$"),
    "a text without end": ({"grammar": "start: start"}, "no text that begins so can meet it$"),
    "much work": (
        {"grammar": "start: A\nA: /(.*a.{15})/ & /(.*b.{14}c)/ & ~/(.*c.{13})/"},
        "grammar: fuel exhausted when checking .*200000",
    ),
    "no grammar": ({"grammar": "start: nothing"}, "grammar: .*unknown name"),
    "ends": ({"regex": "a", "eos_token_id": 1}, "eos_token_id: expected None beside a schema"),
    "tokens": ({"regex": "a", "allowed_tokens": list}, "allowed_tokens: expected None beside a s"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_text_meets_is_an_error_of_its_request_alone(case, writer):
    given, message = WRONG[case]
    other = writer.generate("x", max_new_tokens=2)
    with pytest.raises(InputError, match=message):
        writer.generate("x", max_new_tokens=5, **given)
    assert len("".join(other)) <= 2
    assert writer.generator.active == ()


def test_an_end_that_cannot_come_is_an_error_while_it_writes(writer):
    other = writer.generate("x", max_new_tokens=9)
    bad = writer.generate("x", grammar='start: "ab" NONE\nNONE: /[^\\s\\S]/', max_new_tokens=9)
    with pytest.raises(InputError, match="grammar: no text that begins so can meet it"):
        "".join(bad)
    assert "".join(other) == "".join(writer.generate("x", max_new_tokens=9))


def test_a_model_without_an_end_is_refused(path):
    plan = taper_runtime.load(path)
    decoder = {**plan.metadata["decoder"], "eos_token_ids": []}
    writer = TextGenerator(plan._replace(metadata={**plan.metadata, "decoder": decoder}))
    with pytest.raises(InputError, match="expected a model with tokens that end texts"):
        writer.generate("x", regex="a", max_new_tokens=1)


def test_without_the_package_an_error_says_what_to_install(path):
    code = """
import sys
sys.modules["llguidance"] = None
from taper_runtime import TaperError
from taper_runtime.text import TextGenerator
writer = TextGenerator(sys.argv[1])
"".join(writer.generate("x", max_new_tokens=2))
try:
    writer.generate("x", regex="a")
except TaperError as error:
    assert "pip install 'taper-runtime[text]'" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_commands_take_a_schema_from_a_file(path, tmp_path, capsys):
    written = tmp_path / "schema.json"
    written.write_text(json.dumps({"enum": ["one", "two"]}))
    options = ["generate", str(path), "x", "--json", "--max-new-tokens", "20"]
    assert taper_runtime.cli.main([*options, "--json-schema", str(written)]) == 0
    assert json.loads(json.loads(capsys.readouterr().out)["text"]) in ("one", "two")
    assert taper_runtime.cli.main([*options, "--regex", "a{3}"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "aaa"
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "yes"')
    assert taper_runtime.cli.main([*options, "--grammar", str(grammar)]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "yes"
    grammar.write_bytes(b"\xff")
    for wrong in (grammar, tmp_path / "absent"):
        assert taper_runtime.cli.main([*options, "--grammar", str(wrong)]) != 0
        assert wrong.name in capsys.readouterr().err
