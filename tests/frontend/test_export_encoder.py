"""Export of text encoders: what a folder or a module may be, and what is refused."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, Qwen2Config, Qwen2Model

from cli_page import section, taper_command
from encoder_folders import SENTENCES, SIZE, VOCABULARY, bert_folder, write_json
from taper_frontend import ExportError, export_encoder
from taper_frontend.encoders import encoder_exporter
from taper_runtime.cli.command_line import command_parser
from taper_runtime.text import Encoder

MEAN = ("Pooling", {"word_embedding_dimension": SIZE, "pooling_mode_mean_tokens": True}, {})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    dense = {"in_features": SIZE, "out_features": 4, "bias": False}
    stages = [MEAN, ("Dense", dense, {"linear.weight": torch.ones(4, SIZE)})]
    root = tmp_path_factory.mktemp("original")
    return bert_folder(root, stages, prompts={"query": "a "}, default="query")


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "folder")


def test_a_causal_module_pools_the_last_token_of_sentences_padded_in_front(original):
    tokenizer = AutoTokenizer.from_pretrained(original)
    tokenizer.padding_side = "left"
    config = Qwen2Config(
        vocab_size=len(VOCABULARY) + 3, hidden_size=SIZE, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2Model(config).eval()
    plan = export_encoder(
        model, pooling=("lasttoken", "cls"), normalize=True, tokenizer=tokenizer, max_length=12
    )
    assert plan.inputs == ("input_ids", "attention_mask")
    encoder = Encoder(plan)
    assert (encoder.max_length, encoder.prompts) == (12, {})
    wanted = []
    for text in SENTENCES:
        ids = tokenizer(text, truncation=True, max_length=12, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            hidden = model(input_ids=ids)[0][0]
        both = torch.cat([hidden[-1], hidden[0]])
        wanted.append((both / both.norm()).numpy())
    np.testing.assert_allclose(encoder.encode(SENTENCES), np.stack(wanted), atol=1e-5)


def test_the_command_takes_a_folder_of_transformers(folder, tmp_path, capsys):
    (folder / "modules.json").unlink()
    taper = taper_command(capsys)
    code, _, err = taper("export-encoder", folder, "-o", tmp_path / "m.taper", "--quiet")
    assert (code, "pooling: expected how token embeddings become one" in err) == (1, True)
    options = ["--pooling", "max", "--max-length", 9, "--quantize", "float16", "--quiet", "--json"]
    code, out, _ = taper("export-encoder", folder, "-o", tmp_path / "m.taper", *options)
    assert code == 0
    assert {*json.loads(out)["plan"]["assets"]} == {"tokenizer.json", "encoder.json"}
    encoder = Encoder(tmp_path / "m.taper")
    assert encoder.max_length == 9
    ids = AutoTokenizer.from_pretrained(folder)("the cat", return_tensors="pt")
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(folder)(**ids)[0][0].max(0).values
    np.testing.assert_allclose(encoder.encode("the cat"), wanted, atol=0.01)


def test_page_has_every_option_of_the_command():
    parser = command_parser("export-encoder")
    flags = {flag for action in parser._actions for flag in action.option_strings}
    table = " ".join(re.findall(r"^\| (`-.*?) \|", section("export-encoder"), re.M))
    shown = {*re.findall(r"(?<=`)-[-\w]+", table)}
    assert shown == flags - {"-h", "--help", "--json"}


def change(path, /, **changes):
    """Break a folder by other values in a JSON file, in the last item of an array."""

    def attack(folder):
        value = json.loads((folder / path).read_text())
        (value if isinstance(value, dict) else value[-1]).update(changes)
        write_json(folder / path, value)

    return attack


def write(path, content):
    return lambda folder: (folder / path).write_bytes(content)


FIRST = "sentence_transformers.models.Transformer"
DAMAGED = {
    "not JSON": (write("modules.json", b"[{"), "modules.json: expected JSON"),
    "not UTF-8": (write("modules.json", b"\xff"), "modules.json: expected JSON"),
    "deep": (write("modules.json", b"[" * 100_000), "modules.json: expected JSON"),
    "an object": (write("modules.json", b"{}"), "modules.json: expected an array, got dict"),
    "empty": (write("modules.json", b"[]"), "expected a Transformer and a Pooling, got"),
    "numbers": (write("modules.json", b"[1]"), r"modules.json\[0\]: expected an object with"),
    "no type": (write("modules.json", b'[{"path": ""}]'), r"\[0\]: expected an object with the"),
    "own code": (
        change("modules.json", type="custom_st.Transformer"),
        r"\[2\].type: expected sentence_transformers.* got 'custom_st.Transformer'",
    ),
    "own code that looks like theirs": (
        change("modules.json", type="sentence_transformersx.models.Dense"), r"\[2\].type: expected",
    ),
    "an unknown module": (
        change("modules.json", type="sentence_transformers.models.CNN"), r"got .*models.CNN'",
    ),
    "two transformers": (change("modules.json", type=FIRST), "expected one Transformer, the first"),
    "a path outside": (change("modules.json", path="../x"), r"path: expected a folder inside"),
    "an absolute path": (change("modules.json", path="/etc"), r"path: expected a folder inside"),
    "a missing module": (change("modules.json", path="3_Gone"), r"3_Gone.*No such file"),
    "no pooling": (
        write("modules.json", json.dumps([{"type": FIRST, "path": ""}]).encode()),
        "expected a Transformer and a Pooling",
    ),
    "pooling mode": (
        change("1_Pooling/config.json", pooling_mode="median"), "expected one or several of",
    ),
    "pooling modes": (change("1_Pooling/config.json", pooling_mode=[]), "expected one or several"),
    "sizes of Dense": (
        change("2_Dense/config.json", in_features=0), "in_features: expected a number from 1 on",
    ),
    "other sizes of Dense": (change("2_Dense/config.json", out_features=5), "weights do not fit"),
    "activation": (
        change("2_Dense/config.json", activation_function="os.system"),
        r"activation_function: expected torch.nn..., got 'os.system'",
    ),
    "activation that is no module": (
        change("2_Dense/config.json", activation_function="torch.nn.functional.relu"),
        "activation_function: expected torch.nn",
    ),
    "other features": (
        change("2_Dense/config.json", module_input_name="token_embeddings"),
        "module_input_name: expected 'sentence_embedding', got 'token_embeddings'",
    ),
    "damaged weights": (write("2_Dense/model.safetensors", b"x"), "safetensors: cannot be read"),
    "no weights": (
        lambda folder: (folder / "2_Dense/model.safetensors").unlink(),
        "pytorch_model.bin: cannot be read",
    ),
    "length": (
        change("sentence_bert_config.json", max_seq_length=-1), "max_seq_length: expected a number",
    ),
    "task": (
        change("sentence_bert_config.json", transformer_task="text-generation"),
        "transformer_task: expected one of .*, got 'text-generation'",
    ),
    "task of another pooling": (
        change("sentence_bert_config.json", transformer_task="fill-mask"),
        "expected a Transformer and a SpladePooling, for fill-mask, got",
    ),
    "a cross-encoder that embeds": (
        change("sentence_bert_config.json", transformer_task="sequence-classification"),
        r"expected a Transformer alone to score pairs, got \['Transformer', 'Pooling', 'Dense'\]",
    ),
    "two poolings": (
        change("modules.json", type="sentence_transformers.models.SpladePooling"),
        "expected a Transformer and a Pooling, for feature-extraction, got",
    ),
    "prompts": (
        change("config_sentence_transformers.json", prompts=["a"]),
        "prompts: expected an object of texts",
    ),
    "default prompt": (
        change("config_sentence_transformers.json", default_prompt_name="title"),
        r"default_prompt_name: expected one of \['query', 'document'\], got 'title'",
    ),
    "no model": (lambda folder: (folder / "config.json").unlink(), "transformers cannot read it"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_folders_are_refused(case, folder, monkeypatch):
    attack, message = DAMAGED[case]
    attack(folder)
    monkeypatch.setattr(encoder_exporter, "export", lambda *_, **__: pytest.fail("exported"))
    with pytest.raises(ExportError, match=message):
        export_encoder(folder)


ARGUMENTS = {
    "no folder": ({"model": "nothing here"}, "model: expected a folder or a module, got 'nothing"),
    "pooling of modules.json": ({"pooling": "mean"}, "expected neither, for modules.json"),
    "normalize of modules.json": ({"normalize": True}, "expected neither, for modules.json"),
    "tokenizer of a folder": ({"tokenizer": object()}, "tokenizer: expected None for a folder"),
    "module without pooling": ({"model": torch.nn.Linear(2, 2)}, "pooling: expected how token"),
    "module of unknown pooling": (
        {"model": torch.nn.Linear(2, 2), "pooling": ["mean", "x"]}, "pooling: expected one or",
    ),
    "slow tokenizer": (
        {"model": torch.nn.Linear(2, 2), "pooling": "mean", "tokenizer": object()},
        "tokenizer: expected a fast tokenizer of transformers, got object",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_do_not_fit_are_named(case, original):
    given, message = ARGUMENTS[case]
    with pytest.raises(ExportError, match=message):
        export_encoder(**{"model": original, **given})


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(original):
    model = AutoModel.from_pretrained(original)
    model.config.vocab_size = 3
    tokenizer = AutoTokenizer.from_pretrained(original)
    with pytest.raises(ExportError, match="expected at most the 3 tokens of the model, got 17"):
        export_encoder(model, pooling="mean", tokenizer=tokenizer)
