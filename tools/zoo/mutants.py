"""Measure which errors in lowering handlers and rewrite rules verification finds.

python -m tools.zoo.mutants --draw FILE.json              surveys models, draws the mutants
python -m tools.zoo.mutants --run FILE.json --write PAGE  tries each, writes docs/results/mutants.md

`nox -s mutants` does both. Each mutant is tried in the smallest of :data:`MODELS` that has it: the
first tensor that the handler gives, or that the rule rewrites, is changed, once in an export. A
float is multiplied by 1.01 or has its elements one place further along its last axis, a complex
number is doubled, an integer is one larger, a bool the other one.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch

import taper_frontend
from taper_frontend.compiler.rules import engine
from taper_frontend.lowering import HANDLERS
from taper_frontend.lowering.representation import Pairs
from taper_frontend.verify.trials import VerificationError
from taper_runtime.base.progress import progress
from tools.zoo import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Some that are cheap to export, of every group of the zoo but the encoder-decoders.
MODELS = (
    *("DistilBertModel", "GPT2LMHeadModel", "GemmaForCausalLM", "ResNetForImageClassification"),
    *("ViTForImageClassification", "Wav2Vec2ForCTC", "nn.LSTM", "nn.MultiheadAttention"),
    *("nn.Transformer", "GFNet block", "Hyena convolution", "S4D", "log-mel classifier", "Vocos"),
    *("LLaMA's own rotary attention", "masking denoiser", "cond: one of two experts"),
    "scan: gated recurrent cell",
)

SEED = 31
COUNT = 20

#: What becomes of a mutant, and what a page says of it.
OUTCOMES = {
    "outputs": "an output differs",
    "inside": "the outputs are right, a value inside is wrong",
    "refused": "the export ends with another error",
    "missed": "nothing differs",
}


class Mutant(NamedTuple):
    """An error that is put in.

    Attributes
    ----------
    kind : str
        ``"handler"`` or ``"rule"``.
    name : str
        The ATen op, or what the rule is called.
    change : str
        What becomes of floats: ``"scaled"`` or ``"rolled"``.
    model : str
    """

    kind: str
    name: str
    change: str
    model: str


# -- putting errors in -----------------------------------------------------------------------------


def changed(graph: Graph, tensor: str, change: str, add: Callable[..., str]) -> str:
    """Add nodes that give another value than a tensor has; return what gives it."""
    dtype, shape = graph.tensors[tensor].dtype, graph.tensors[tensor].shape
    if isinstance(tensor, Pairs):
        return add("ADD", [tensor, tensor])
    if dtype == "bool":
        return add("LOGICAL_NOT", [tensor])
    if not dtype.startswith(("float", "bfloat")):
        return add("ADD", [tensor], scalar=1, scalar_index=1)
    if change == "rolled" and shape and isinstance(shape[-1], int) and shape[-1] > 1:
        axis = len(shape) - 1
        first = add("SLICE", [tensor], axis=axis, start=0, stop=shape[-1] - 1, step=1)
        last = add("SLICE", [tensor], axis=axis, start=shape[-1] - 1, stop=shape[-1], step=1)
        return add("CAT", [last, first], axis=axis)
    return add("MUL", [tensor], scalar=1.01, scalar_index=1)


@contextmanager
def _wrong_handler(mutant: Mutant) -> Iterator[Callable[[], bool]]:
    """Put the error into a handler; yield what returns whether the handler was used."""
    right = HANDLERS[mutant.name]
    done = False

    def handler(context: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        result = right(context, *args, **kwargs)
        first = result[0] if isinstance(result, list | tuple) else result
        if done or not isinstance(first, str):
            return result
        done = True
        wrong = changed(context.graph, first, mutant.change, context.emit)
        return [wrong, *result[1:]] if isinstance(result, list | tuple) else wrong

    with mock.patch.dict(HANDLERS, {mutant.name: handler}):
        yield lambda: done


@contextmanager
def _wrong_rule(mutant: Mutant) -> Iterator[Callable[[], bool]]:
    """Put the error into a rule; yield what returns whether the rule was applied."""
    right = engine._applies
    done = False

    def applies(step: Any, graph: Graph, node: Node) -> bool:
        nonlocal done
        if done or engine._name(step) != mutant.name:
            return right(step, graph, node)
        name = node.output

        def add(op: str, inputs: list[str], **attrs: Any) -> str:
            return graph.add_node(op, inputs, attrs)

        def bypass(node: Node, *tensors: str) -> bool:
            first = changed(graph, tensors[0], mutant.change, add)
            return type(graph).bypass(graph, node, first, *tensors[1:])

        with mock.patch.object(graph, "bypass", bypass):
            fired = right(step, graph, node)
        made = graph.producers.get(name) if name in graph.tensors else None
        if fired and made is not None:
            twin = graph.add_multi_output(
                made.op, made.inputs, made.attrs, blocks=[b.copy() for b in made.blocks]
            )
            wrong = graph.producers.get(changed(graph, twin[0], mutant.change, add))
            assert wrong is not None
            graph.replace_node(made, wrong.op, wrong.inputs, wrong.attrs, outputs=[name])
        done = done or fired
        return fired

    with mock.patch.object(engine, "_applies", applies):
        yield lambda: done


def outcome(mutant: Mutant) -> tuple[str, str]:
    """Return what becomes of a mutant, one of :data:`OUTCOMES`, and the first words of why.

    Raises
    ------
    ValueError
        If the export of the model does not use the handler or the rule.
    """
    found, why = _verified(mutant, verify=True)
    if found == "inside":  # random inputs may have told it by the outputs
        also, text = _verified(mutant, verify="outputs")
        found, why = (also, text) if also == "outputs" else (found, why)
    return found, why


def _verified(mutant: Mutant, verify: bool | str) -> tuple[str, str]:
    torch._dynamo.reset()  # it remembers what it could not compile of a branch
    module, inputs = _architectures()[mutant.model].build()
    put_in = _wrong_handler if mutant.kind == "handler" else _wrong_rule
    try:
        with put_in(mutant) as is_used:
            taper_frontend.export(module, (), inputs, verify=verify)
    except VerificationError as error:
        text = str(error)
        return ("inside" if text.startswith("a value inside") else "outputs"), text
    except Exception as error:  # a wrong graph may break anything
        return "refused", f"{type(error).__name__}: {error}"
    if not is_used():
        raise ValueError(f"{mutant.model}: expected a use of {mutant.kind} {mutant.name!r}")
    return "missed", ""


# -- drawing them ----------------------------------------------------------------------------------


class Use(NamedTuple):
    """What an export made use of."""

    nodes: int
    handlers: set[str]
    rules: set[str]


def survey(model: str) -> Use:
    """Export a model and note the handlers that give tensors and the rules that apply."""
    handlers: set[str] = set()
    rules: set[str] = set()
    applies = engine._applies

    def noted(name: str, right: Any) -> Any:
        def handler(context: Any, *args: Any, **kwargs: Any) -> Any:
            result = right(context, *args, **kwargs)
            if isinstance(result[0] if isinstance(result, list | tuple) else result, str):
                handlers.add(name)
            return result

        return handler

    def noted_step(step: Any, graph: Graph, node: Node) -> bool:
        fired = applies(step, graph, node)
        if fired:
            rules.add(engine._name(step))
        return fired

    module, inputs = _architectures()[model].build()
    every = {name: noted(name, right) for name, right in HANDLERS.items()}
    with mock.patch.dict(HANDLERS, every), mock.patch.object(engine, "_applies", noted_step):
        plan = taper_frontend.export(module, (), inputs, verify=False)
    return Use(len(plan.nodes), handlers, rules)


def draw() -> list[Mutant]:
    """Draw the mutants."""
    uses = {}
    with progress("models", len(MODELS)) as advance:
        for model in MODELS:
            uses[model] = survey(model)
            advance()
    generator = random.Random(SEED)
    mutants = []
    for kind, of in (("handler", lambda use: use.handlers), ("rule", lambda use: use.rules)):
        names = sorted(set().union(*map(of, uses.values())))
        for name in generator.sample(names, COUNT):
            change = generator.choice(("scaled", "rolled"))
            having = [model for model, use in uses.items() if name in of(use)]
            model = min(having, key=lambda model: uses[model].nodes)
            mutants.append(Mutant(kind, name, change, model))
    return mutants


def _architectures() -> dict[str, Any]:
    return {name: each for members in GROUPS.values() for name, each in members.items()}


# -- the page --------------------------------------------------------------------------------------


def page(mutants: list[Mutant], outcomes: list[tuple[str, str]]) -> str:
    """Write what became of the mutants."""
    counts = {key: sum(found == key for found, _ in outcomes) for key in OUTCOMES}
    how = (
        "This page counts the errors that verification finds. `nox -s mutants` writes it "
        "(`tools/zoo/mutants.py` says how). Errors are put into "
        f"{COUNT} lowering handlers and {COUNT} rewrite rules, drawn with seed {SEED} before the "
        f"first was tried, each in the smallest model that has it of {len(MODELS)} that were "
        "chosen before: models that are cheap to export, of every group of the zoo but the "
        "encoder-decoders. A model of the zoo that is none of these may be smaller."
    )
    first_run = (
        "Two artefacts of the script were fixed after a first run with the same mutants, in which "
        "the outputs told 32 and the values inside 2 more, and 6 ended in another error. A complex "
        "tensor cannot be multiplied by 1.01 in the way that others are; now it is doubled. And "
        "what torch's compiler remembered of a branch that it could not compile was left to the "
        "next mutant; now it is reset before each."
    )
    result = (
        f"The outputs alone show {counts['outputs']} of the {len(mutants)} errors, and the values "
        f"inside {counts['inside']} more. {counts['refused']} end in another error, and "
        f"{counts['missed']} change nothing that is compared."
    )
    lines = [
        "# Errors that verification finds",
        "",
        how,
        "",
        result,
        "",
        first_run,
        "",
        "| | where | change | model | found |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mutant, (found, why) in zip(mutants, outcomes, strict=True):
        words = OUTCOMES[found]
        if found == "refused":
            words += f": {why.splitlines()[0][:100]}"
        cells = (mutant.kind, f"`{mutant.name}`", mutant.change, mutant.model, words)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", type=Path, help="where to write the mutants")
    parser.add_argument("--run", type=Path, help="mutants that have been drawn")
    parser.add_argument("--write", type=Path, help="the page about them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models warn of their own configs
    if options.draw:
        options.draw.write_text(json.dumps([m._asdict() for m in draw()], indent=1) + "\n")
    if not options.run:
        return
    mutants = [Mutant(**each) for each in json.loads(options.run.read_text())]
    outcomes = []
    for mutant in mutants:
        outcomes.append(outcome(mutant))
        print(*mutant, "->", *outcomes[-1], sep="  ", flush=True)
    if options.write:
        options.write.write_text(page(mutants, outcomes))


if __name__ == "__main__":
    main()
