"""Text encoders end to end: a folder of sentence-transformers, a plan, and sentences.

The reference is transformers with the formulas of pooling in torch, one sentence at a time.
"""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import taper_frontend
import taper_runtime.cli
from cli_page import check_json, schema
from encoder_folders import SENTENCES, SIZE, bert_folder
from plan_files import small_plan
from taper_runtime import InputError
from taper_runtime.text import Encoder
from taper_runtime.text.encoder_settings import SETTINGS, EncoderSettings
from taper_runtime.text.tokenizer_asset import TOKENIZER

MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
PROMPT = "a query : "


def dense(rows, columns):
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator) / columns**0.5


WEIGHT, RESIDUAL = dense(24, len(MODES) * SIZE), dense(25, len(MODES) * SIZE)[:24]
NORM = dense(24, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All modes of pooling without the prompt's tokens, then each other module."""
    bias = WEIGHT[:, 0].clone()
    stages = [
        ("Pooling", {"pooling_mode": MODES, "include_prompt": False}, {}),
        ("Dropout", {"dropout": 0.1}, {}),
        (
            "Dense",
            {
                "in_features": len(MODES) * SIZE, "out_features": 24, "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh", "use_residual": True,
            },
            {"linear.weight": WEIGHT, "linear.bias": bias, "residual.weight": RESIDUAL},
        ),
        (
            "LayerNorm",
            {"dimension": 24},
            {"norm.weight": NORM[:, 0].clone(), "norm.bias": NORM[:, 1].clone()},
        ),
        ("Normalize", None, {}),
    ]  # fmt: skip
    return bert_folder(
        tmp_path_factory.mktemp("st"),
        stages,
        settings={"max_seq_length": 20, "do_lower_case": True},
        prompts={"query": PROMPT},
    )


@pytest.fixture(scope="module")
def path(folder):
    plan = taper_frontend.export_encoder(folder, max_length=20)
    assert plan.metadata["fallbacks"] == []
    plan.save(folder / "m.taper")
    return folder / "m.taper"


@pytest.fixture(scope="module")
def encoder(path):
    return Encoder(path)


@pytest.fixture(scope="module")
def reference(folder):
    """A function from sentences to what sentence-transformers computes."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def embed(sentences, prompt=""):
        found = []
        # the tokens of the prompt and [CLS] in front of them, without [SEP]
        skipped = len(tokenizer(prompt)["input_ids"]) - 1 if prompt else 0
        for text in sentences:
            tokens = tokenizer(
                (prompt + text).lower(), truncation=True, max_length=20, return_tensors="pt"
            )
            hidden = model(**tokens).last_hidden_state[0]
            own = hidden[skipped:]
            weights = torch.arange(skipped + 1, len(hidden) + 1)[:, None].float()
            parts = [
                own[0], own.max(0).values, own.mean(0), own.sum(0) / len(own) ** 0.5,
                (own * weights).sum(0) / weights.sum(), own[-1],
            ]  # fmt: skip
            x = torch.cat(parts)
            x = torch.tanh(x @ WEIGHT.T + WEIGHT[:, 0]) + x @ RESIDUAL.T
            x = torch.nn.functional.layer_norm(x, (24,), NORM[:, 0], NORM[:, 1])
            found.append(x / x.norm())
        return torch.stack(found).numpy()

    return embed


def test_embeddings_are_those_of_the_modules(encoder, reference):
    found = encoder.encode(SENTENCES)
    assert (found.dtype, found.shape) == (np.float32, (5, 24))
    np.testing.assert_allclose(found, reference(SENTENCES), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(SENTENCES, 2), found, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(SENTENCES[0]), found[0], atol=1e-5)
    assert (encoder.dimension, encoder.max_length) == (24, 20)
    assert encoder.encode([]).shape == (0, 24)


def test_prompts_stand_before_sentences_and_are_not_pooled(encoder, reference):
    assert encoder.prompts == {"query": PROMPT, "document": ""}
    found = encoder.encode(SENTENCES, prompt_name="query")
    np.testing.assert_allclose(found, reference(SENTENCES, PROMPT), atol=1e-5)
    plain = encoder.encode(SENTENCES)
    assert np.abs(found - plain).max() > 0.01
    np.testing.assert_array_equal(encoder.encode(SENTENCES, prompt_name="document"), plain)


def test_embeddings_are_truncated_then_normalized(encoder, reference):
    wanted = reference(SENTENCES)[:, :5]
    np.testing.assert_allclose(encoder.encode(SENTENCES, truncate_dim=5), wanted, atol=1e-5)
    found = encoder.encode(iter(SENTENCES), truncate_dim=5, normalize_embeddings=True)
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_batches_are_sorted_by_length(path, monkeypatch):
    encoder, lengths = Encoder(path), []
    run = encoder.session.run

    def recorded(names, feed):
        lengths.append(feed["input_ids"].shape)
        return run(names, feed)

    monkeypatch.setattr(encoder.session, "run", recorded)
    sentences = ["cat", "cat sat on", "cat sat", "cat sat on the mat"]
    encoder.encode(sentences, batch_size=2)
    assert lengths == [(2, 7), (2, 4)]
    lengths.clear()
    monkeypatch.setattr(encoder, "_most_tokens", 8)  # fewer where they are long
    encoder.encode(sentences)
    assert lengths == [(1, 7), (1, 5), (2, 4)]
    lengths.clear()
    monkeypatch.setattr(encoder, "_most_tokens", 3)  # a longer sentence runs alone
    encoder.encode(sentences)
    assert lengths == [(1, 7), (1, 5), (1, 4), (1, 3)]


def test_a_bar_is_shown_only_on_a_terminal(encoder, capsys):
    encoder.encode(SENTENCES, show_progress_bar=True)
    assert capsys.readouterr() == ("", "")


WRONG = {
    "number": ({"sentences": 5}, "sentences: expected texts, got int"),
    "bytes inside": ({"sentences": ["a", b"b"]}, r"sentences\[1\]: expected a str, got bytes"),
    "none inside": ({"sentences": [None]}, r"sentences\[0\]: expected a str, got NoneType"),
    "surrogate": ({"sentences": ["a", "\ud800"]}, r"sentences\[1\]: expected valid Unicode"),
    "prompt": (
        {"prompt_name": "title"},
        r"prompt_name: expected one of \['query', 'document'\] or None, got 'title'",
    ),
    "prompt of another type": ({"prompt_name": []}, r"prompt_name: expected .*, got \[\]"),
    "dim 0": ({"truncate_dim": 0}, "truncate_dim: expected a number from 1 to 24, got 0"),
    "dim 25": ({"truncate_dim": 25}, "truncate_dim: expected a number from 1 to 24, got 25"),
    "dim of a float": ({"truncate_dim": 5.0}, "truncate_dim: expected a number"),
    "batch 0": ({"batch_size": 0}, "batch_size: expected a number from 1 on, got 0"),
    "batch of a bool": ({"batch_size": True}, "batch_size: expected a number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case, encoder):
    given, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        encoder.encode(**{"sentences": SENTENCES, **given})
    assert encoder.encode("cat").shape == (24,)


def settings(**changes):
    made = EncoderSettings({"query": ""}, None, False, 17)._asdict() | changes
    return {SETTINGS: json.dumps(made).encode()}


DAMAGED = {
    "settings are text": ({SETTINGS: b"query"}, "expected an object with prompts"),
    "settings are not UTF-8": ({SETTINGS: b"\xff"}, "expected a text in UTF-8"),
    "settings are an array": ({SETTINGS: b"[]"}, "expected an object with prompts"),
    "settings lack a key": ({SETTINGS: b"{}"}, "expected an object with prompts"),
    "prompts are an array": (settings(prompts=[]), r"\.prompts: expected an object of texts"),
    "a prompt is a number": (settings(prompts={"q": 1}), r"\.prompts: expected an object"),
    "default prompt": (
        settings(default_prompt_name="q"), r"default_prompt_name: expected null or one of",
    ),
    "include_prompt": (settings(include_prompt=1), "include_prompt: expected true or false"),
    "vocab_size": (settings(vocab_size=True), "vocab_size: expected a number from 1 on"),
    "fewer embeddings": (settings(vocab_size=3), "expected at most the 3 tokens of the model, got"),
    "no tokenizer": ({TOKENIZER: b"{}"}, "no tokenizer"),
    "a tokenizer of noise": ({TOKENIZER: b"\0" * 40}, "no tokenizer"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_assets_are_named(case, path):
    changed, message = DAMAGED[case]
    with pytest.raises(InputError, match=message):
        Encoder(taper_runtime.load(path).with_assets(changed))


def test_a_tokenizer_that_panics_is_named(path):
    """What Rust calls a panic is no Exception in Python."""
    plan = taper_runtime.load(path)
    made = json.loads(plan.assets[TOKENIZER].tobytes())
    made["truncation"] = {
        "direction": "Right", "strategy": "LongestFirst", "max_length": 3, "stride": 9,
    }  # fmt: skip
    encoder = Encoder(plan.with_assets({TOKENIZER: json.dumps(made).encode()}))
    with pytest.raises(InputError, match=r"'tokenizer.json'\]: the tokenizer fails: .*stride"):
        encoder.encode("a cat and a dog")


def test_a_plan_without_assets_is_named(path):
    plan = taper_runtime.load(path)
    with pytest.raises(InputError, match=r"plan.assets: expected 'encoder.json'.*, got \[\]"):
        Encoder(plan._replace(assets={}))
    with pytest.raises(InputError, match=r"plan.assets: expected 'tokenizer.json'"):
        Encoder(plan._replace(assets={SETTINGS: plan.assets[SETTINGS]}))
    with pytest.raises(InputError, match=r"plan: expected int64 inputs .*, got x: float32"):
        Encoder(small_plan())


def in_process(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_nothing_but_tokenizers_is_imported(path):
    """Of what tokenizers declares, and of what embeds with torch."""
    code = """
import sys
class Refused:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(name)
BLOCKED = ("huggingface_hub", "torch", "transformers", "sentence_transformers", "requests",
           "httpx", "tqdm", "yaml", "filelock", "fsspec", "jinja2", "taper_frontend")
sys.meta_path.insert(0, Refused())
from taper_runtime.text import Encoder
assert "tokenizers" not in sys.modules
assert Encoder(sys.argv[1]).encode(["a cat"]).shape == (1, 24)
assert not {*BLOCKED} & {*sys.modules}
"""
    done = in_process(code, path)
    assert done.returncode == 0, done.stderr


def test_without_the_package_an_error_says_what_to_install(path):
    code = """
import sys
sys.modules["tokenizers"] = None
import taper_runtime.text
try:
    taper_runtime.text.Encoder(sys.argv[1])
except taper_runtime.TaperError as error:
    assert "pip install 'taper-runtime[text]'" in str(error)
else:
    raise AssertionError
"""
    done = in_process(code, path)
    assert done.returncode == 0, done.stderr


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def embed(path, monkeypatch, capsys):
    def call(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code = taper_runtime.cli.main(["embed", str(path), *arguments])
        return (code, *capsys.readouterr())

    return call


def test_embed_prints_a_row_for_each_line(embed, encoder):
    code, out, err = embed(b"a cat\n\r\nthe dog")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    np.testing.assert_array_equal(np.float32(rows), encoder.encode(["a cat", "", "the dog"]))


def test_embed_writes_an_array(embed, encoder, tmp_path):
    options = ["--truncate-dim", "4", "--normalize", "--prompt-name", "query", "--batch-size", "1"]
    code, out, _ = embed(b"a cat\nthe dog\n", "-o", str(tmp_path / "x.npy"), *options)
    assert (code, out) == (0, f"{tmp_path / 'x.npy'}: 2 sentences of 4 numbers\n")
    wanted = encoder.encode(["a cat", "the dog"], 1, True, 4, "query")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted)


def test_embed_prints_what_is_not_0(embed, encoder):
    code, out, _ = embed(b"a cat\nthe dog\n", "--sparse")
    assert code == 0
    for line, dense in zip(out.splitlines(), encoder.encode(["a cat", "the dog"]), strict=True):
        row = json.loads(line)
        assert row["indices"] == np.flatnonzero(dense).tolist()
        np.testing.assert_array_equal(np.float32(row["weights"]), dense[row["indices"]])
    code, _, err = embed(b"a\n", "--sparse", "--normalize")
    assert (code, "--normalize: expected none with --sparse" in err) == (1, True)


def test_json_of_embed(embed):
    code, out, _ = embed(b"a cat\nthe dog\n", "--json")
    assert code == 0
    check_json(schema("embed"), json.loads(out))


def test_embed_names_mistakes(embed):
    assert embed(b"a\n\xff\n")[::2] == (1, "taper: line 2: expected UTF-8: invalid start byte\n")
    code, _, err = embed(b"a\n", "--prompt-name", "x")
    assert (code, "prompt_name: expected one of" in err) == (1, True)
    code, out, _ = embed(b"")
    assert (code, out) == (0, "\n")
