"""Score pairs of sentences with a plan of a cross-encoder, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.text.encoder_settings import PAIR_SETTINGS
from taper_runtime.text.sentence_reader import (
    SentenceReader,
    check_text,
    checked_number,
    listed_texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class CrossEncoder(SentenceReader):
    """Scores pairs of sentences with a plan of :func:`taper_frontend.export_encoder`.

    It reads both sentences at once, without torch. Many threads may use one at once.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes or Plan
        The plan, as :class:`taper_runtime.InferenceSession` takes it.
    sess_options : SessionOptions, optional
    model : str, optional
        The plan's name, if the file has several.

    Raises
    ------
    InputError
        If the plan has no tokenizer, or one that does not fit, or is not of a cross-encoder.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    settings_asset: ClassVar[str] = PAIR_SETTINGS

    @property
    def num_labels(self) -> int:
        """Return how many scores a pair gets."""
        return self._width

    def predict(
        self,
        pairs: tuple[str, str] | Iterable[tuple[str, str]],
        batch_size: int = 32,
        apply_softmax: bool = False,
        prompt_name: str | None = None,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Return the scores of pairs, after the activation of the model.

        Pairs of similar length are computed together, so that little is padding. The results are
        in the order of the pairs.

        Parameters
        ----------
        pairs : pair or iterable of pairs
            Each is a tuple or a list of two ``str``, such as a query and a document.
        batch_size : int
            The most that are computed at once; where they are long, fewer are.
        apply_softmax : bool
            Whether the scores of a pair are made to add up to 1, where it has several.
        prompt_name : str, optional
            The prompt that stands before the first sentence of each pair, one of :attr:`prompts`;
            by default the one that the model has as its default, if it has one.
        show_progress_bar : bool
            Whether a bar is shown on a terminal, if the package rich is installed.

        Returns
        -------
        numpy.ndarray
            float32 [pairs, num_labels], or [pairs] if :attr:`num_labels` is 1; without the first
            axis for a single pair.

        Raises
        ------
        InputError
            If a pair is not two ``str``, or a parameter is out of its range.
        """
        listed, is_single = _listed_pairs(pairs)
        size = checked_number("batch_size", batch_size)
        prompt = self._prompt(prompt_name)
        prompted = [(prompt + first, second) for first, second in listed]
        found = np.empty((len(listed), self._width), np.float32)
        for rows, scores in self._batches(prompted, size, 0, show_progress_bar):
            found[rows] = scores
        if self._width == 1:
            found = found[:, 0]
        elif apply_softmax:
            found = np.exp(found - found.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        return found[0] if is_single else found

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
        prompt_name: str | None = None,
        show_progress_bar: bool = False,
    ) -> list[dict[str, Any]]:
        """Return documents by their scores with a query, the best first.

        Parameters
        ----------
        query : str
        documents : iterable of str
        top_k : int, optional
            The most documents that are returned; by default all.
        return_documents : bool
            Whether each result has its document as ``text``.
        batch_size, prompt_name, show_progress_bar
            As in :meth:`predict`.

        Returns
        -------
        list of dict
            Each has ``corpus_id``, the document's place in ``documents``, and ``score``, a float.
            Documents of equal scores keep their order.

        Raises
        ------
        InputError
            If the model has several scores for a pair. Also as :meth:`predict`.
        """
        if self._width != 1:
            raise InputError(f"plan: expected one score to rank by, got {self._width} for a pair")
        check_text(query, "query")
        if isinstance(documents, str):
            raise InputError("documents: expected several texts, got a str")
        texts = listed_texts(documents, "documents")
        most = len(texts) if top_k is None else checked_number("top_k", top_k)
        scores = self.predict(
            [(query, text) for text in texts],
            batch_size,
            prompt_name=prompt_name,
            show_progress_bar=show_progress_bar,
        )
        order = np.argsort(-scores, kind="stable")[:most].tolist()
        found: list[dict[str, Any]] = [
            {"corpus_id": place, "score": float(scores[place])} for place in order
        ]
        if return_documents:
            for item in found:
                item["text"] = texts[item["corpus_id"]]
        return found


def _listed_pairs(pairs: Any) -> tuple[list[tuple[str, str]], bool]:
    """Return pairs as a list, and whether the argument was one pair: a list or tuple of ``str``."""
    is_single = isinstance(pairs, (tuple, list)) and any(isinstance(each, str) for each in pairs)
    try:
        listed = [pairs] if is_single or isinstance(pairs, str) else list(pairs)
    except TypeError:
        raise InputError(f"pairs: expected pairs of texts, got {type(pairs).__name__}") from None
    for index, pair in enumerate(listed):
        name = f"pairs[{index}]"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            got = f"{len(pair)} items" if isinstance(pair, (tuple, list)) else type(pair).__name__
            raise InputError(f"{name}: expected a pair of texts, got {got}")
        for side, text in enumerate(pair):
            check_text(text, f"{name}[{side}]")
    return [(first, second) for first, second in listed], is_single
