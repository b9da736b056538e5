"""Compare the documents' decoder with transformers: tokens of the simulator and of a plan."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from taper_openinfer import Model, Simulator, SizeVar, parse
from taper_openinfer.compiler import compile_program
from taper_runtime import InferenceSession, InputError

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).parents[2] / "docs" / "openinfer" / "index.md"
LENGTH = 64
PROMPT = [3, 17, 99, 151, 8]

#: Sizes of models: layers, hidden, heads, heads of keys, intermediate.
SIZES = [(2, 64, 4, 4, 96), (4, 128, 8, 2, 256)]


@pytest.fixture(scope="module")
def page():
    """What the page's blocks define: the program's text, and what makes its weights."""
    text = PAGE.read_text()
    program = re.search(r'Path\("decoder.oi"\).write_text\("""(.*?)"""\)', text, re.DOTALL)[1]
    weights = re.search(r"^#: The program's names.*?(?=^torch.manual_seed)", text, re.DOTALL | re.M)
    namespace = {"np": np, "SizeVar": SizeVar}
    exec(weights[0], namespace)  # noqa: S102, the page is ours
    return program, namespace["decoder_weights"]


def llama(layers, hidden, heads, key_heads, intermediate):
    torch.manual_seed(layers)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=intermediate,
        vocab_size=200,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module", params=SIZES, ids=str)
def decoder(request, page):
    program, weights = page
    module = llama(*request.param)
    return module, parse(program), Model.of(weights(module, LENGTH))


@pytest.fixture(scope="module")
def expected(decoder):
    """The tokens that transformers generates, behind those of the prompt."""
    with torch.no_grad():
        tokens = decoder[0].generate(
            torch.tensor([PROMPT]),
            max_new_tokens=LENGTH - len(PROMPT),
            do_sample=False,
            eos_token_id=None,
        )
    return tokens[0].tolist()


def simulated(model, program):
    executor = Simulator(model, program).make_executor()

    def step(token):
        executor.insert_dynamic("token", np.array([token]))
        executor.step()
        return int(executor.fetch("next")[0])

    return step


def planned(model, program):
    session = InferenceSession(compile_program(program, model))
    return lambda token: int(session.run(["next"], {"token": np.array([token])})[0][0])


@pytest.mark.parametrize("runner", [simulated, planned])
def test_tokens_are_those_of_transformers(runner, decoder, expected):
    _, program, model = decoder
    step = runner(model, program)
    found = [step(token) for token in expected[:-1]]
    assert found[len(PROMPT) - 1 :] == expected[len(PROMPT) :]
    assert len(set(expected)) > 20  # the weights do not lead into a circle


def test_logits_are_those_of_transformers(decoder):
    module, program, model = decoder
    session = InferenceSession(compile_program(program, model, outputs=["logits"]))
    tokens = torch.arange(20) * 7 % 200
    with torch.no_grad():
        expected = module(tokens[None]).logits[0].numpy()
    for token, row in zip(tokens.numpy(), expected, strict=True):
        (logits,) = session.run(None, {"token": token[None]})
        np.testing.assert_allclose(logits[0], row, rtol=1e-3, atol=1e-3)


def test_a_step_writes_rows_where_they_lie(decoder):
    _, program, model = decoder
    plan = compile_program(program, model)
    assert plan.is_in_place("keys")
    assert plan.is_in_place("values")
    assert not plan.metadata["fallbacks"]


def test_tables_that_are_full(decoder):
    _, program, model = decoder
    executor = Simulator(model, program).make_executor()
    session = InferenceSession(compile_program(program, model))
    session.set_state("step", np.array(LENGTH))
    before = session.get_state("values")
    with pytest.raises(InputError):
        session.run(None, {"token": np.array([1])})
    np.testing.assert_array_equal(session.get_state("values"), before)
    for _ in range(LENGTH):
        executor.insert_dynamic("token", np.array([1]))
        executor.step()
    executor.insert_dynamic("token", np.array([1]))
    with pytest.raises(InputError):
        executor.step()
