"""Compute embeddings of sentences from embeddings of tokens, as sentence-transformers does.

The formulas are those of its modules Pooling, SpladePooling, Dense, LayerNorm and Normalize, and of
its CrossEncoder (version 6.2). Each stage takes embeddings and returns embeddings; nothing here
depends on the values of the mask, so that batch and length may vary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.encoders.sentence_folder import pooling_modes
from taper_frontend.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from taper_frontend.encoders.sentence_folder import SentenceStage

#: The least sum of weights that a mean divides by.
_LEAST = 1e-9


class TokenPooling(torch.nn.Module):
    """Pool the embeddings of tokens into one embedding of the sentence.

    Parameters
    ----------
    modes : sequence of str
        Of :data:`~taper_frontend.encoders.sentence_folder.POOLING_KEYS`; several are joined.
    """

    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        self.modes = tuple(modes)

    def forward(self, hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
        """Return embeddings [batch, modes * size].

        Parameters
        ----------
        hidden : Tensor
            The embeddings of tokens [batch, length, size].
        pooled : Tensor
            1 where a token takes part, else 0 [batch, length].
        real : Tensor
            1 where a token is not padding, else 0 [batch, length].
        """
        parts = [_POOLINGS[mode](hidden, pooled, real) for mode in self.modes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _first(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    return _token(hidden, pooled.argmax(1))


def _last(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    places = torch.arange(1, hidden.shape[1] + 1)
    return _token(hidden * _column(pooled, hidden), (pooled * places).argmax(1))


def _token(hidden: Tensor, index: Tensor) -> Tensor:
    """Return the token at an index [batch] of each sentence."""
    places = index[:, None, None].expand(-1, 1, hidden.shape[2])
    return hidden.gather(1, places).squeeze(1)


def _largest(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    return hidden.masked_fill(pooled.unsqueeze(-1) == 0, float("-inf")).amax(1)


def _mean(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    mask = _column(pooled, hidden)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=_LEAST)


def _mean_by_root(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    mask = _column(pooled, hidden)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=_LEAST).sqrt()


def _weighted_mean(hidden: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
    """Return the mean with weights 1, 2, ... from the first token that is not padding."""
    places = torch.arange(1, hidden.shape[1] + 1) - real.argmax(1, keepdim=True)
    weights = _column(places * pooled, hidden)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=_LEAST)


def _column(values: Tensor, hidden: Tensor) -> Tensor:
    return values.unsqueeze(-1).to(hidden.dtype)


_POOLINGS = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


class SparsePooling(torch.nn.Module):
    """Pool the logits of tokens into weights of the vocabulary, most of them 0 (SPLADE).

    Parameters
    ----------
    strategy : str
        ``"max"`` or ``"sum"``, over the tokens.
    activation : str
        ``"relu"``: ``log(1 + relu(x))``; ``"log1p_relu"``: ``log(1 + log(1 + relu(x)))``.
    """

    def __init__(self, strategy: str, activation: str) -> None:
        super().__init__()
        self.strategy = strategy
        self.logarithms = _LOGARITHMS[activation]

    def forward(self, logits: Tensor, pooled: Tensor, real: Tensor) -> Tensor:
        """Return weights [batch, vocabulary] for logits [batch, length, vocabulary].

        ``pooled`` has no effect, as in the original: the tokens of a prompt take part.
        """
        x = logits * _column(real, logits)
        if self.strategy == "sum":
            return self._weights(x).sum(1)
        # the weights grow with the logits: of each word only the largest is computed
        return self._weights(x.amax(1))

    def _weights(self, x: Tensor) -> Tensor:
        x = x.relu()
        for _ in range(self.logarithms):
            x = x.log1p()
        return x


#: How often an activation of SpladePooling takes log1p.
_LOGARITHMS = {"relu": 1, "log1p_relu": 2}


def _sparse_pooling(settings: dict[str, Any], where: str) -> SparsePooling:
    known = {"pooling_strategy": ("max", "sum"), "activation_function": (*_LOGARITHMS,)}
    chosen = []
    for key, names in known.items():
        name = settings.get(key, names[0])
        if name not in names:
            raise ExportError(f"{where}: {key}: expected one of {[*names]}, got {name!r}")
        chosen.append(name)
    return SparsePooling(*chosen)


class SentenceDense(torch.nn.Module):
    """Linear layer and activation, perhaps with a residual."""

    def __init__(self, settings: dict[str, Any], weights: dict[str, Tensor], where: str) -> None:
        super().__init__()
        before, after = (_size(settings, f"{end}_features", where) for end in ("in", "out"))
        self.linear = torch.nn.Linear(before, after, bias=settings.get("bias", True) is True)
        self.activation = _activation(settings.get("activation_function"), where)
        self.adds = settings.get("use_residual") is True
        self.residual: torch.nn.Module | None = None
        if self.adds and before != after:
            self.residual = torch.nn.Linear(before, after, bias=False)
        _fill(self, weights, where)

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings [batch, out_features] for embeddings [batch, in_features]."""
        y: Tensor = self.activation(self.linear(x))
        if self.adds:
            y = y + (x if self.residual is None else self.residual(x))
        return y


def _activation(name: Any, where: str) -> torch.nn.Module:
    """Return a module of ``torch.nn`` by its path; Tanh for None, as sentence-transformers does."""
    if name is None:
        return torch.nn.Tanh()
    package, _, last = str(name).rpartition(".")
    found = getattr(torch.nn, last, None) if f"{package}.".startswith("torch.nn.") else None
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise ExportError(f"{where}: activation_function: expected torch.nn..., got {name!r}")
    return found()


class SentenceNorm(torch.nn.Module):
    """Layer normalization of embeddings."""

    def __init__(self, settings: dict[str, Any], weights: dict[str, Tensor], where: str) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(_size(settings, "dimension", where))
        _fill(self, weights, where)

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized embeddings [batch, dimension]."""
        y: Tensor = self.norm(x)
        return y


class UnitLength(torch.nn.Module):
    """Divide embeddings by their lengths."""

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings of length 1, [batch, size]."""
        return torch.nn.functional.normalize(x, p=2.0, dim=-1)


def _size(settings: dict[str, Any], key: str, where: str) -> int:
    size = settings.get(key)
    if type(size) is not int or size < 1:
        raise ExportError(f"{where}: {key}: expected a number from 1 on, got {size!r}")
    return size


def _fill(module: torch.nn.Module, weights: dict[str, Tensor], where: str) -> None:
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise ExportError(f"{where}: its weights do not fit: {error}") from error


def make_stage(stage: SentenceStage) -> torch.nn.Module:
    """Return the module of a stage with its weights.

    Raises
    ------
    ExportError
        If its settings or weights are wrong.
    """
    where = str(stage.folder)
    if stage.kind == "Pooling":
        return TokenPooling(pooling_modes(stage.settings, f"{where}: pooling_mode"))
    if stage.kind == "SpladePooling":
        return _sparse_pooling(stage.settings, where)
    if stage.kind == "Dense":
        return SentenceDense(stage.settings, _weights(stage.folder), where)
    if stage.kind == "LayerNorm":
        return SentenceNorm(stage.settings, _weights(stage.folder), where)
    return UnitLength() if stage.kind == "Normalize" else torch.nn.Identity()


def _weights(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a module, as float32."""
    safe, old = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safe.is_file():
            from safetensors.torch import load_file

            tensors = load_file(safe)
        else:
            tensors = torch.load(old, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind, for a damaged file
        raise ExportError(f"{safe if safe.is_file() else old}: cannot be read: {error}") from error
    return {name: tensor.float() for name, tensor in tensors.items()}


class SentenceEncoder(torch.nn.Module):
    """Transformer, then the modules after it: from tokens to sentence embeddings.

    Parameters
    ----------
    transformer : torch.nn.Module
        It returns the embeddings of tokens first, or their logits.
    stages : sequence of torch.nn.Module
        A :class:`TokenPooling` or :class:`SparsePooling`, and what follows it.
    options : dict
        Further arguments of the transformer, such as ``use_cache``.
    """

    def __init__(
        self,
        transformer: torch.nn.Module,
        stages: Sequence[torch.nn.Module],
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.pooling, *others = stages
        self.others = torch.nn.Sequential(*others)
        self.options = options

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pooling_mask: Tensor | None = None,
    ) -> Tensor:
        """Return embeddings [batch, size] for int64 tokens [batch, length].

        ``pooling_mask`` is 1 where a token takes part in pooling; by default ``attention_mask``.
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, **types, **self.options
        )[0]
        pooled = attention_mask if pooling_mask is None else pooling_mask
        embeddings: Tensor = self.others(self.pooling(hidden, pooled, attention_mask))
        return embeddings


def score_activation(name: str | None, labels: int, where: str) -> torch.nn.Module:
    """Return the module that turns logits into scores; by default a sigmoid if there is one label.

    Raises
    ------
    ExportError
        If ``name`` is no module of ``torch.nn``.
    """
    if name is None:
        return torch.nn.Sigmoid() if labels == 1 else torch.nn.Identity()
    return _activation(name, where)


class PairScorer(torch.nn.Module):
    """Sequence classifier and activation: from the tokens of pairs to their scores.

    Parameters
    ----------
    transformer : torch.nn.Module
        It returns logits [batch, labels] first.
    activation : torch.nn.Module
    options : dict
        Further arguments of the transformer, such as ``use_cache``.
    """

    def __init__(
        self, transformer: torch.nn.Module, activation: torch.nn.Module, options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.activation = activation
        self.options = options

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return scores [batch, labels] of int64 tokens [batch, length]."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, **types, **self.options
        )[0]
        scores: Tensor = self.activation(logits)
        return scores
