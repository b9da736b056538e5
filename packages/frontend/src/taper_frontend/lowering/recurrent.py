"""Lower recurrent layers: one product for all steps, then one op, per layer and direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.random import dropped
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.panels import PANEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering


@lowers("aten.lstm.input")
def lstm(ctx: Lowering, x: str, hx: Sequence[str], *settings: Any) -> tuple[str, str, str]:
    """Run an LSTM of any number of layers and directions over a sequence."""
    y, h, c = _Stack(ctx, "LSTM", _Settings(*settings)).run(x, hx)
    return y, h, c


@lowers("aten.gru.input", "aten.rnn_relu.input", "aten.rnn_tanh.input")
def rnn(ctx: Lowering, x: str, hx: str, *settings: Any) -> tuple[str, str]:
    """Run a GRU or a simple recurrent network over a sequence."""
    op, attrs = ("GRU", {}) if ctx.aten == "gru" else ("RNN", {"activation": ctx.aten[4:]})
    y, h = _Stack(ctx, op, _Settings(*settings), attrs).run(x, [hx])
    return y, h


@lowers("aten.gru.data", "aten.lstm.data", "aten.rnn_relu.data", "aten.rnn_tanh.data")
def packed(ctx: Lowering, *args: object, **kwargs: object) -> str:
    """Refuse packed sequences of different lengths."""
    ctx.unsupported("expected a padded sequence, got a packed one (PackedSequence)")


class _Settings(NamedTuple):
    """The arguments that ATen's recurrent ops share, in ATen's order."""

    params: Sequence[str]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool


class _Stack:
    """The layers of a network, with one or two directions."""

    def __init__(
        self,
        ctx: Lowering,
        op: str,
        settings: _Settings,
        attrs: dict[str, Any] | None = None,
    ) -> None:
        self.ctx, self.op, self.attrs = ctx, op, attrs or {}
        self.settings = settings
        self.drops = settings.train and settings.dropout > 0
        self.params = iter(settings.params)

    def run(self, x: str, states: Sequence[str]) -> tuple[str, ...]:
        """Return the output sequence, and each final state of all layers and directions."""
        ctx = self.ctx
        projects = self.op == "LSTM" and ctx.shape(states[0])[2] != ctx.shape(states[1])[2]
        directions = 2 if self.settings.bidirectional else 1
        if self.settings.batch_first:
            x = ctx.permute(x, (1, 0, 2))
        lasts: list[list[str]] = []  # the states of each layer and direction, as [1, B, columns]
        for layer in range(self.settings.num_layers):
            sequences = []
            for direction in range(directions):
                index = layer * directions + direction
                state = [
                    ctx.reshape(ctx.slice(s, 0, index, index + 1), ctx.shape(s)[1:]) for s in states
                ]
                y, *cells = self._direction(x, state, projects, bool(direction))
                end = 0 if direction else ctx.shape(y)[0] - 1
                last = [ctx.reshape(c, (1, *ctx.shape(c))) for c in cells]
                lasts.append([ctx.slice(y, 0, end, end + 1), *last])
                sequences.append(y)
            x = sequences[0] if len(sequences) == 1 else ctx.emit("CAT", sequences, axis=2)
            if self.drops and layer + 1 < self.settings.num_layers:
                x = dropped(ctx, x, self.settings.dropout)
        if self.settings.batch_first:
            x = ctx.permute(x, (1, 0, 2))
        ends = zip(*lasts, strict=True)
        return x, *(end[0] if len(end) == 1 else ctx.emit("CAT", end, axis=0) for end in ends)

    def _direction(
        self, x: str, state: Sequence[str], projects: bool, reverse: bool
    ) -> tuple[str, ...]:
        """Run one direction of a layer over the sequence ``x``; return its results."""
        ctx = self.ctx
        w_ih, w_hh = next(self.params), next(self.params)
        gates = ctx.emit("MATMUL", [x, ctx.emit("TRANSPOSE", [w_ih], axis0=0, axis1=1)])
        extra = []
        if self.settings.has_biases:
            b_ih, b_hh = next(self.params), next(self.params)
            if self.op == "GRU":  # the reset gate scales the last third of b_hh, and not b_ih
                hidden = ctx.shape(state[0])[1]
                zeros = ctx.full((hidden,), 0, ctx.dtype(b_hh))
                extra = [ctx.slice(b_hh, 0, 2 * hidden, 3 * hidden)]
                b_hh = ctx.emit("CAT", [ctx.slice(b_hh, 0, 0, 2 * hidden), zeros], axis=0)
            gates = ctx.emit("ADD", [gates, ctx.emit("ADD", [b_ih, b_hh])])
        elif self.op == "GRU":
            extra = [ctx.full(ctx.shape(state[0])[1:], 0, ctx.dtype(x))]
        if projects:
            extra = [self._packed(next(self.params), 1)]
        hidden = ctx.shape(state[-1])[1]
        w_hh = self._packed(w_hh, ctx.shape(w_hh)[0] // hidden)
        inputs = [gates, *state, w_hh, *extra]
        return ctx.emit_multi(self.op, inputs, reverse=reverse, **self.attrs)

    def _packed(self, w: str, gates: int) -> str:
        """Pack [gates * H, K] as [ceil(H/16), gates, K, 16], with zeros beyond H."""
        ctx = self.ctx
        rows, k = ctx.shape(w)
        hidden = rows // gates
        blocks = -(-hidden // PANEL)
        w = ctx.reshape(w, (gates, hidden, k))
        if missing := blocks * PANEL - hidden:
            w = ctx.emit("CAT", [w, ctx.full((gates, missing, k), 0, ctx.dtype(w))], axis=1)
        return ctx.permute(ctx.reshape(w, (gates, blocks, PANEL, k)), (1, 0, 3, 2))
