"""Read a folder of sentence-transformers: which modules it has, in order, and their settings.

The folder is as its ``save`` writes it: ``modules.json`` lists modules, each with a type and a
folder of its own. Nothing in it is run as code.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple

#: The modes of pooling, in the order in which several are joined, with their older keys.
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}

#: The modules that may follow the transformer.
STAGES = ("Pooling", "SpladePooling", "Dense", "LayerNorm", "Normalize", "Dropout")

#: The tasks of a transformer, with its class in transformers.
TASKS = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
}

#: The task of a cross-encoder, which scores pairs of sentences.
SCORES_PAIRS = "sequence-classification"

#: The pooling that the other tasks need.
_POOLING_OF = {"feature-extraction": "Pooling", "fill-mask": "SpladePooling"}

#: The kinds of the first module, with the tasks that they have by default.
_TRANSFORMERS = {"Transformer": "feature-extraction", "MLMTransformer": "fill-mask"}

_PACKAGE = "sentence_transformers."

#: Names of the settings of the transformer, which are all of the same form.
_TRANSFORMER_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in (
        "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet",
    )
)  # fmt: skip


class SentenceStage(NamedTuple):
    """One module after the transformer: one of :data:`STAGES`, its folder and its settings."""

    kind: str
    folder: Path
    settings: dict[str, Any]


class SentenceFolder(NamedTuple):
    """The contents of a folder of sentence-transformers.

    Attributes
    ----------
    task : str
        The transformer's, one of :data:`TASKS`.
    transformer : Path
        The folder of the transformer and its tokenizer.
    stages : tuple of SentenceStage
    max_length : int or None
        The most tokens of a sentence, if the folder says it.
    lower_case : bool
        Whether sentences are made lower case before the tokenizer's own steps.
    prompts : dict of str to str
    default_prompt : str or None
        The name of the prompt that is used where none is asked for.
    activation : str or None
        The path of the class in torch that turns logits into scores, if the folder says it.
    """

    task: str
    transformer: Path
    stages: tuple[SentenceStage, ...]
    max_length: int | None
    lower_case: bool
    prompts: dict[str, str]
    default_prompt: str | None
    activation: str | None


def read_sentence_folder(root: Path) -> SentenceFolder:
    """Read ``modules.json`` and the settings of its modules.

    Raises
    ------
    ExportError
        If a file is missing or damaged, or the folder has modules that cannot be exported.
    """
    listed = _read_json(root / "modules.json", list)
    modules = [_module(root, index, item) for index, item in enumerate(listed)]
    kinds = [kind for kind, _ in modules]
    if not kinds:
        raise ExportError(f"{root / 'modules.json'}: expected a Transformer and a Pooling, got []")
    (first, transformer), *others = modules
    given = [transformer / name for name in _TRANSFORMER_SETTINGS]
    path = next((path for path in given if path.is_file()), None)
    settings = {} if path is None else _read_json(path, dict)
    task = settings.get("transformer_task", _TRANSFORMERS[first])
    if not isinstance(task, str) or task not in TASKS:
        raise ExportError(f"{path}: transformer_task: expected one of {[*TASKS]}, got {task!r}")
    if task == SCORES_PAIRS and others:
        raise ExportError(
            f"{root / 'modules.json'}: expected a Transformer alone to score pairs, got {kinds}"
        )
    poolings = [kind for kind in kinds if kind in _POOLING_OF.values()]
    if task != SCORES_PAIRS and poolings != [_POOLING_OF[task]]:
        raise ExportError(
            f"{root / 'modules.json'}: expected a Transformer and a {_POOLING_OF[task]}, for "
            f"{task}, got {kinds}"
        )
    prompts, default = _prompts(root)
    return SentenceFolder(
        task,
        transformer,
        tuple([SentenceStage(kind, path, _stage_settings(kind, path)) for kind, path in others]),
        _max_length(path, settings),
        settings.get("do_lower_case") is True,
        prompts,
        default,
        _activation_name(root, transformer) if task == SCORES_PAIRS else None,
    )


def is_classifier(root: Path) -> bool:
    """Return whether a folder of transformers has a sequence classifier."""
    path = root / "config.json"
    names = _read_json(path, dict).get("architectures") if path.is_file() else None
    return isinstance(names, list) and str(next(iter(names), "")).endswith(
        "ForSequenceClassification"
    )


def read_classifier_folder(root: Path) -> SentenceFolder:
    """Read the settings of a cross-encoder in a folder without ``modules.json``.

    Raises
    ------
    ExportError
        If a file is damaged.
    """
    prompts, default = _prompts(root)
    activation = _activation_name(root, root)
    return SentenceFolder(SCORES_PAIRS, root, (), None, False, prompts, default, activation)


def _activation_name(root: Path, transformer: Path) -> str | None:
    """Return the path of the class that turns logits into scores, from the first file that has it.

    The names and places of the setting are those of sentence-transformers 6, 4 and 3.
    """
    new, old = root / "config_sentence_transformers.json", transformer / "config.json"
    first = _read_json(new, dict) if new.is_file() else {}
    model = _read_json(old, dict) if old.is_file() else {}
    within = model.get("sentence_transformers")
    found = [
        (new, first.get("activation_fn")),
        (old, within.get("activation_fn") if isinstance(within, dict) else None),
        (old, model.get("sbert_ce_default_activation_function")),
    ]
    for path, name in found:
        if name is not None and not isinstance(name, str):
            raise ExportError(f"{path}: activation_fn: expected a text, got {name!r}")
        if name is not None:
            return name
    return None


def pooling_modes(settings: dict[str, Any], where: str) -> tuple[str, ...]:
    """Return the modes of a Pooling, in the order in which they are joined.

    Raises
    ------
    ExportError
        If a mode is unknown.
    """
    given = settings.get("pooling_mode")
    if given is None:
        old = tuple(mode for mode, key in POOLING_KEYS.items() if settings.get(key) is True)
        return old or ("mean",)
    modes = [given] if isinstance(given, str) else given
    known = isinstance(modes, (list, tuple)) and modes and all(m in (*POOLING_KEYS,) for m in modes)
    if not known:
        raise ExportError(f"{where}: expected one or several of {[*POOLING_KEYS]}, got {given!r}")
    return tuple(modes)


def _module(root: Path, index: int, item: Any) -> tuple[str, Path]:
    """Return the kind and the folder of one item of ``modules.json``."""
    field = f"{root / 'modules.json'}[{index}]"
    if not isinstance(item, dict) or not all(
        isinstance(item.get(key), str) for key in ("type", "path")
    ):
        raise ExportError(f"{field}: expected an object with the texts 'type' and 'path'")
    package, _, kind = item["type"].rpartition(".")
    if not f"{package}.".startswith(_PACKAGE) or kind not in (*_TRANSFORMERS, *STAGES):
        raise ExportError(
            f"{field}.type: expected {_PACKAGE}... of {', '.join((*_TRANSFORMERS, *STAGES))}, "
            f"got {item['type']!r}"
        )
    if (index == 0) != (kind in _TRANSFORMERS):
        raise ExportError(f"{field}.type: expected one Transformer, the first, got {kind!r}")
    path = PurePosixPath(item["path"])
    if path.is_absolute() or ".." in path.parts or "\\" in item["path"]:
        raise ExportError(f"{field}.path: expected a folder inside, got {item['path']!r}")
    return kind, root / path


def _stage_settings(kind: str, folder: Path) -> dict[str, Any]:
    """Return the settings of a module; only Normalize and Dropout may have none."""
    path = folder / "config.json"
    if kind in ("Normalize", "Dropout") and not path.is_file():
        return {}
    settings: dict[str, Any] = _read_json(path, dict)
    for key in ("module_input_name", "module_output_name"):
        got = settings.get(key)
        if got not in (None, "sentence_embedding"):
            raise ExportError(f"{path}: {key}: expected 'sentence_embedding', got {got!r}")
    return settings


def _max_length(path: Path | None, settings: dict[str, Any]) -> int | None:
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ExportError(f"{path}: max_seq_length: expected a number from 1 on, got {length!r}")
    return length


def _prompts(root: Path) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default one."""
    path = root / "config_sentence_transformers.json"
    settings = _read_json(path, dict) if path.is_file() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, (str, type(None))) for text in prompts.values()
    ):
        raise ExportError(f"{path}: prompts: expected an object of texts")
    # these two are known to every model, and empty where it does not have them
    known = {"query": "", "document": "", **{name: text or "" for name, text in prompts.items()}}
    default = settings.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in known):
        raise ExportError(
            f"{path}: default_prompt_name: expected one of {[*known]}, got {default!r}"
        )
    return known, default


def _read_json(path: Path, kind: type) -> Any:
    """Return the JSON in a file, an object or an array as ``kind`` says."""
    what = "an object" if kind is dict else "an array"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path}: expected JSON: {error}") from None
    if not isinstance(value, kind):
        raise ExportError(f"{path}: expected {what}, got {type(value).__name__}")
    return value
