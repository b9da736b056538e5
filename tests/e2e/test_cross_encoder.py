"""Cross-encoders end to end: a folder, a plan, and scores of pairs.

The reference is the classifier of transformers, one pair at a time.
"""

import io
import json
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import taper_frontend
import taper_runtime.cli
from cli_page import check_json, schema
from encoder_folders import SENTENCES, cross_folder, write_json
from taper_frontend import ExportError
from taper_frontend.encoders.sentence_folder import read_classifier_folder
from taper_runtime import InputError
from taper_runtime.text import CrossEncoder, Encoder

QUERY = "a query : the cat"
PAIRS = [(QUERY, text) for text in SENTENCES] + [("dogs " * 30, "mat " * 30)]


def with_sentence_files(root, task="sequence-classification", **settings):
    """Give a folder the files that sentence-transformers 6 writes."""
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    write_json(root / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
    write_json(root / "sentence_bert_config.json", {"transformer_task": task})
    write_json(root / "config_sentence_transformers.json", settings)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return cross_folder(tmp_path_factory.mktemp("one") / "label")


@pytest.fixture(scope="module")
def plan(folder):
    plan = taper_frontend.export_encoder(folder)
    assert plan.metadata["fallbacks"] == []
    return plan


@pytest.fixture(scope="module")
def ranker(plan):
    return CrossEncoder(plan)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Three labels, in the files of sentence-transformers 6."""
    root = cross_folder(tmp_path_factory.mktemp("three") / "labels", 3)
    activation = "torch.nn.modules.activation.Tanh"
    return with_sentence_files(
        root, prompts={"query": "a query : "}, default_prompt_name=None, activation_fn=activation
    )


@pytest.fixture(scope="module")
def classifier(several):
    return CrossEncoder(taper_frontend.export_encoder(several, max_length=16))


@torch.no_grad()
def reference(folder, pairs, length=32):
    """Logits [pairs, labels]."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    options = {"truncation": True, "max_length": length, "return_tensors": "pt"}
    return torch.cat([model(**tokenizer([pair], **options)).logits for pair in pairs])


def test_scores_are_those_of_the_classifier(folder, ranker):
    wanted = reference(folder, PAIRS).sigmoid()[:, 0]
    found = ranker.predict(PAIRS)
    assert (found.dtype, found.shape) == (np.float32, (6,))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(ranker.predict(map(list, PAIRS), 2), wanted, atol=1e-5)
    np.testing.assert_allclose(ranker.predict(PAIRS[2]), wanted[2], atol=1e-5)
    assert ranker.predict(list(PAIRS[0])).shape == ()
    assert ranker.predict([]).shape == (0,)
    assert (ranker.num_labels, ranker.max_length) == (1, 32)


def test_a_classifier_has_a_score_of_each_label(several, classifier):
    logits = reference(several, PAIRS, 16)
    np.testing.assert_allclose(classifier.predict(PAIRS), logits.tanh(), atol=1e-5)
    found = classifier.predict(PAIRS, apply_softmax=True)
    np.testing.assert_allclose(found, logits.tanh().softmax(1), atol=1e-5)
    prompted = [("a query : " + first, second) for first, second in PAIRS]
    wanted = reference(several, prompted, 16).tanh()
    found = classifier.predict(PAIRS, prompt_name="query")
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    with pytest.raises(InputError, match="expected one score to rank by, got 3 for a pair"):
        classifier.rank("a", ["b"])


def test_documents_are_ranked(ranker):
    documents = [*SENTENCES, SENTENCES[0]]
    scores = ranker.predict([(QUERY, text) for text in documents])
    found = ranker.rank(QUERY, iter(documents), return_documents=True)
    order = [item["corpus_id"] for item in found]
    assert order == sorted(range(6), key=lambda place: -scores[place])
    assert [item["text"] for item in found] == [documents[place] for place in order]
    np.testing.assert_array_equal(np.float32([item["score"] for item in found]), scores[order])
    best = ranker.rank(QUERY, documents, top_k=2)
    assert [item.keys() for item in best] == [{"corpus_id", "score"}] * 2
    assert [item["corpus_id"] for item in best] == order[:2]
    assert ranker.rank(QUERY, []) == []


def test_pairs_are_sorted_by_length(plan, monkeypatch):
    ranker, lengths = CrossEncoder(plan), []
    run = ranker.session.run

    def recorded(names, feed):
        lengths.append(feed["input_ids"].shape)
        return run(names, feed)

    monkeypatch.setattr(ranker.session, "run", recorded)
    ranker.predict([("a", "cat"), ("a", "cat sat on"), ("a", "cat sat")], batch_size=2)
    assert lengths == [(2, 7), (1, 5)]


ACTIVATIONS = {
    "sentence-transformers 4": {"sentence_transformers": {"activation_fn": "torch.nn.Identity"}},
    "sentence-transformers 3": {"sbert_ce_default_activation_function": "torch.nn.Identity"},
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_older_names_of_the_activation_are_read(case, tmp_path):
    write_json(tmp_path / "config.json", ACTIVATIONS[case])
    assert read_classifier_folder(tmp_path).activation == "torch.nn.Identity"


WRONG_FOLDERS = {
    "own code": ({"activation_fn": "os.system"}, "expected torch.nn..., got 'os.system'"),
    "no name": ({"activation_fn": 1}, "activation_fn: expected a text, got 1"),
}


@pytest.mark.parametrize("case", WRONG_FOLDERS)
def test_wrong_activations_are_refused(case, tmp_path):
    settings, message = WRONG_FOLDERS[case]
    root = with_sentence_files(cross_folder(tmp_path / "wrong"), **settings)
    with pytest.raises(ExportError, match=message):
        taper_frontend.export_encoder(root)


def test_a_folder_of_neither_kind_is_refused(tmp_path):
    write_json(tmp_path / "config.json", {"architectures": ["BertModel"]})
    with pytest.raises(ExportError, match=r"pooling: expected how .* names no sequence classifier"):
        taper_frontend.export_encoder(tmp_path)


def test_a_cross_encoder_is_not_normalized(folder):
    with pytest.raises(ExportError, match="normalize: expected False for a cross-encoder"):
        taper_frontend.export_encoder(folder, normalize=True)


WRONG = {
    "a text": ({"pairs": "a cat"}, r"pairs\[0\]: expected a pair of texts, got str"),
    "a number": ({"pairs": 3}, "pairs: expected pairs of texts, got int"),
    "texts": ({"pairs": ["a", "b", "c"]}, r"pairs\[0\]: expected a pair of texts, got 3 items"),
    "three": ({"pairs": [("a", "b"), ("a",) * 3]}, r"pairs\[1\]: expected a pair .*, got 3 items"),
    "bytes": ({"pairs": [("a", b"b")]}, r"pairs\[0\]\[1\]: expected a str, got bytes"),
    "surrogate": ({"pairs": [("\ud800", "b")]}, r"pairs\[0\]\[0\]: expected valid Unicode"),
    "batch": ({"batch_size": 0}, "batch_size: expected a number from 1 on, got 0"),
    "prompt": ({"prompt_name": "title"}, "prompt_name: expected one of .*, got 'title'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_predict_are_named(case, ranker):
    given, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        ranker.predict(**{"pairs": PAIRS, **given})


def test_wrong_arguments_of_rank_are_named(ranker):
    with pytest.raises(InputError, match="query: expected a str, got list"):
        ranker.rank(["a"], ["b"])
    with pytest.raises(InputError, match="documents: expected several texts, got a str"):
        ranker.rank("a", "b")
    with pytest.raises(InputError, match=r"documents\[1\]: expected a str, got NoneType"):
        ranker.rank("a", ["b", None])
    with pytest.raises(InputError, match="top_k: expected a number from 1 on, got 0"):
        ranker.rank("a", ["b"], top_k=0)


def test_a_plan_of_the_other_kind_is_named(plan):
    with pytest.raises(InputError, match=r"expected 'encoder.json'.* 'cross_encoder.json'\]"):
        Encoder(plan)
    settings = plan.assets["cross_encoder.json"].tobytes()
    assets = {"tokenizer.json": plan.assets["tokenizer.json"].tobytes(), "encoder.json": settings}
    with pytest.raises(InputError, match=r"expected 'cross_encoder.json'.* 'encoder.json'\]"):
        CrossEncoder(plan._replace(assets={}).with_assets(assets))
    assert json.loads(settings)["vocab_size"] == 17


@pytest.fixture
def rank(plan, tmp_path, monkeypatch, capsys):
    plan.save(tmp_path / "ranker.taper")

    def call(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code = taper_runtime.cli.main(["rank", str(tmp_path / "ranker.taper"), *arguments])
        return (code, *capsys.readouterr())

    return call


def test_rank_prints_documents_by_their_scores(rank, ranker):
    texts = ["the dog", "a cat on the mat", "mat"]
    code, out, _ = rank("\n".join(texts).encode(), QUERY, "--top-k", "2")
    wanted = ranker.rank(QUERY, texts, top_k=2, return_documents=True)
    assert code == 0
    assert out == "".join(f"{each['score']:.6g}\t{each['text']}\n" for each in wanted)
    code, out, _ = rank(b"the dog\nmat\n", QUERY, "--json")
    check_json(schema("rank"), json.loads(out))


def test_rank_names_mistakes(rank):
    assert rank(b"\xff\n", QUERY)[::2] == (1, "taper: line 1: expected UTF-8: invalid start byte\n")
    code, _, err = rank(b"a\n", QUERY, "--prompt-name", "x")
    assert (code, "prompt_name: expected one of" in err) == (1, True)
    assert rank(b"", QUERY)[:2] == (0, "\n")
