"""Small folders of sentence-transformers with seeded weights, written without that package."""

import json

import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
)

WORDS = ["cat", "dog", "sat", "on", "the", "mat", "a", "query", "is", "##s", ":", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZE = 16

SENTENCES = ["the cat sat on the mat .", "", "A DOG", "cats " * 40, "dogs is unknown"]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def bert_files(root, kind, **changes):
    """A small BERT of a class of transformers, and its tokenizer."""
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=SIZE, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, initializer_range=0.3, **changes,
    )  # fmt: skip
    kind(config).save_pretrained(root)
    (root / "vocab.txt").write_text("\n".join(VOCABULARY))
    BertTokenizerFast(vocab=str(root / "vocab.txt"), model_max_length=32).save_pretrained(root)
    return root


def cross_folder(root, labels=1, **changes):
    """A small cross-encoder; ``changes`` go to its ``config.json``."""
    return bert_files(root, BertForSequenceClassification, num_labels=labels, **changes)


def bert_folder(
    root, stages, *, kind=BertModel, first="Transformer", settings=None, prompts=None, default=None
):
    """A small BERT and what follows it: (type, settings, tensors) for each."""
    bert_files(root, kind)
    package = "sentence_transformers.models."
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{package}{first}"}]
    for index, (kind, stage, tensors) in enumerate(stages, 1):
        folder = f"{index}_{kind}"
        modules.append(
            {"idx": index, "name": str(index), "path": folder, "type": f"{package}{kind}"}
        )
        (root / folder).mkdir(exist_ok=True)
        if stage is not None:
            write_json(root / folder / "config.json", stage)
        if tensors:
            save_file(tensors, root / folder / "model.safetensors")
    write_json(root / "modules.json", modules)
    write_json(root / "sentence_bert_config.json", settings or {"max_seq_length": 20})
    if prompts is not None:
        write_json(
            root / "config_sentence_transformers.json",
            {"prompts": prompts, "default_prompt_name": default},
        )
    return root
