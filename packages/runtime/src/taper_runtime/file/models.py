"""Store several plans in one file, with a joint document and shared tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from taper_runtime.base.checks import check_name, fail
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.text import is_one_of
from taper_runtime.file import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from taper_runtime.ops.opdef import TensorType

#: The name of a plan that is saved or opened without a name.
DEFAULT_MODEL = "model"

#: The feature of a file with several plans.
MODELS = "models"

_KEYS = {"format_version", "features", "models"}
_MODEL_KEYS = {"plan", "tensors"}

_Stored = TypeVar("_Stored")


def has_models(document: object) -> bool:
    """Return whether a file's document holds several plans."""
    return type(document) is dict and document.get("features") == [MODELS]


def member(kind: str, model: str, document: object) -> str:
    """Return the key in the header's metadata of a plan's ``kind``, such as its fingerprint."""
    return f"{kind}.{model}" if has_models(document) else kind


def model_names(document: Any) -> list[str]:
    """Return the names of the plans of a document of the right version.

    Raises
    ------
    PlanFormatError
        If it is not a document with several plans.
    """
    if not has_models(document):
        return [DEFAULT_MODEL]
    if wrong := document.keys() ^ _KEYS:
        key = min(wrong)
        problem = "is not a key of a file of several models" if key in document else "is missing"
        raise PlanFormatError(f"plan.{key}", problem)
    models = document["models"]
    if type(models) is not dict or not models:
        fail("plan.models", "expected an object of plans by name", models)
    for name, item in models.items():
        field = f"plan.models[{name!r}]"
        check_name(name, field)
        if type(item) is not dict or item.keys() != _MODEL_KEYS:
            fail(field, "expected an object with the keys plan and tensors", item)
        if type(item["tensors"]) is not dict:
            fail(f"{field}.tensors", "expected an object", item["tensors"])
    return list(models)


def choose_model(
    document: Any, stored: Mapping[str, _Stored], model: str | None
) -> tuple[str, Any, Mapping[str, _Stored], str]:
    """Return a plan's name, its own document, its tensors, and the path of the document.

    Parameters
    ----------
    document : plain data
        The document of a file, of the right version.
    stored : mapping of str to object
        The tensors of the file.
    model : str or None
        The plan's name; None is ``"model"``, or the only plan.

    Raises
    ------
    InputError
        If there is no such plan.
    PlanFormatError
        If the document's list of plans or of their tensors is wrong.
    """
    names = model_names(document)
    if model is None:
        model = names[0] if len(names) == 1 else DEFAULT_MODEL
    if not is_one_of(model, names):
        raise InputError(f"unknown model {model!r}; expected one of {names}")
    if not has_models(document):
        return model, document, stored, "plan"
    used = set()
    for name, item in document["models"].items():
        for own, shared in item["tensors"].items():
            if type(shared) is not str or shared not in stored:
                fail(
                    f"plan.models[{name!r}].tensors[{own!r}]",
                    "expected a tensor of the file",
                    shared,
                )
            used.add(shared)
    for name in stored:
        if name not in used:
            raise PlanFormatError(f"header[{name!r}]", "expected a tensor that a model uses")
    item = document["models"][model]
    tensors = {own: stored[shared] for own, shared in item["tensors"].items()}
    return model, item["plan"], tensors, f"plan.models[{model!r}].plan"


class Joined:
    """The joint document of several plans, and their tensors without duplicates.

    Attributes
    ----------
    arrays, types : dict
        The tensors and their types, by the names in the joint file.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self._models: dict[str, Any] = {}
        self._alike: dict[TensorType, list[str]] = {}
        self._digests: dict[str, bytes] = {}

    def add(
        self,
        name: str,
        document: Any,
        arrays: Mapping[str, np.ndarray],
        types: Mapping[str, TensorType],
    ) -> None:
        """Add a plan: its own document, and its tensors by the names they have in its own file."""
        tensors = {own: self._share(own, arrays[own], types[own]) for own in sorted(arrays)}
        self._models[name] = {"plan": document, "tensors": tensors}

    def document(self) -> dict[str, Any]:
        """Return the document."""
        models = {name: self._models[name] for name in sorted(self._models)}
        return {"format_version": FORMAT_VERSION, "features": [MODELS], "models": models}

    def _share(self, own: str, array: np.ndarray, type_: TensorType) -> str:
        """Return the name of an equal tensor that is already there, or add this one."""
        alike = self._alike.setdefault(type_, [])
        digest = _digest(array) if alike else b""
        for name in alike:
            if self._digest(name) == digest:
                return name
        new, count = own, 1
        while new in self.arrays:
            new, count = f"{own}_{count}", count + 1
        self.arrays[new], self.types[new] = array, type_
        alike.append(new)
        return new

    def _digest(self, name: str) -> bytes:
        if name not in self._digests:
            self._digests[name] = _digest(self.arrays[name])
        return self._digests[name]


def _digest(array: np.ndarray) -> bytes:
    from hashlib import blake2b  # imported here because loads do not need it

    return blake2b(array.reshape(-1).view("u1").data).digest()
