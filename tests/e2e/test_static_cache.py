"""Language models of transformers with a static cache: one plan for prompts and single tokens."""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportError
from taper_runtime import InputError

transformers = pytest.importorskip("transformers")

LENGTH, PROMPT, TOKENS = 48, 5, 12


def language_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=64,
        max_position_embeddings=128,
    )
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=LENGTH,
        cache_config={"batch_size": 1, "max_cache_len": LENGTH, "device": "cpu"},
    )
    return model.eval()


@pytest.fixture(scope="module")
def exported():
    """Make a model and its plan, for any number of tokens at a time, once."""
    from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

    model = language_model()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setitem(os.environ, "TRANSFORMERS_SDPA_FORCE_GQA", "1")
        warnings.simplefilter("ignore")
        wrapped = TorchExportableModuleForDecoderOnlyLM(
            model, batch_size=1, max_cache_len=LENGTH, device="cpu"
        )
        count = torch.export.Dim("count", min=1, max=LENGTH - 1)
        program = wrapped.export(
            input_ids=torch.arange(PROMPT)[None],
            cache_position=torch.arange(PROMPT),
            dynamic_shapes={"input_ids": {1: count}, "cache_position": {0: count}},
            strict=True,
        )
        return model, taper_frontend.export(program)


def opened(plan, threads=1):
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return taper_runtime.InferenceSession(plan, options)


def step(session, tokens, position, state=None):
    feed = {
        "input_ids": np.array([tokens]),
        "cache_position": np.arange(position, position + len(tokens)),
    }
    return session.run(None, feed, state=state)[0][0, -1]


def decode(session, prompt, count=TOKENS):
    """Return greedy tokens and the logits that they follow from."""
    tokens, logits = list(prompt), [step(session, prompt, 0)]
    for position in range(len(prompt), len(prompt) + count - 1):
        tokens.append(int(logits[-1].argmax()))
        logits.append(step(session, tokens[-1:], position))
    return [*tokens[len(prompt) :], int(logits[-1].argmax())], np.array(logits)


def reference(model, prompt, count=TOKENS):
    """Return what the model says without any cache."""
    tokens, logits = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            logits.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy())
            tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :], np.array(logits)


def test_greedy_tokens_are_those_of_the_model(exported):
    model, plan = exported
    prompt = [3, 1, 4, 1, 5]
    session = opened(plan)
    tokens, logits = decode(session, prompt)
    want_tokens, want = reference(model, prompt)
    assert tokens == want_tokens
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-4)
    session.reset_state()
    np.testing.assert_array_equal(decode(session, prompt)[1], logits)


def test_sessions_and_threads_do_not_meet(exported):
    _, plan = exported
    prompts = [2, 7, 1, 8], [6, 6, 6]
    alone = [decode(opened(plan), prompt)[1] for prompt in prompts]
    sessions = [opened(plan), opened(plan, threads=2)]
    logits = [step(s, p, 0) for s, p in zip(sessions, prompts, strict=True)]
    for at in range(1, TOKENS):
        for i, (session, prompt) in enumerate(zip(sessions, prompts, strict=True)):
            np.testing.assert_array_equal(logits[i], alone[i][at - 1])
            logits[i] = step(session, [int(logits[i].argmax())], len(prompt) + at - 1)


def test_texts_over_one_session_do_not_meet(exported):
    """In turn, and from two threads at once: the bits are those of a session for each text."""
    _, plan = exported
    prompts = [2, 7, 1, 8], [6, 6, 6]
    alone = [decode(opened(plan), prompt)[1] for prompt in prompts]
    session = opened(plan)
    states = [session.new_state() for _ in prompts]
    logits = [step(session, p, 0, s) for p, s in zip(prompts, states, strict=True)]
    for at in range(1, TOKENS):
        for i, (prompt, state) in enumerate(zip(prompts, states, strict=True)):
            np.testing.assert_array_equal(logits[i], alone[i][at - 1])
            token = int(logits[i].argmax())
            logits[i] = step(session, [token], len(prompt) + at - 1, state)
    assert not any(session.get_state(name).any() for name in session.state_names)

    def text(i):
        states[i].reset()
        found = [step(session, prompts[i], 0, states[i])]
        for position in range(len(prompts[i]), len(prompts[i]) + TOKENS - 1):
            found.append(step(session, [int(found[-1].argmax())], position, states[i]))
        return np.array(found)

    with ThreadPoolExecutor(2) as pool:
        for got, wanted in zip(pool.map(text, range(2)), alone, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_cache_of_one_row_is_no_batch(exported):
    _, plan = exported
    session = opened(plan)
    with pytest.raises(InputError, match=r"state '.*' of shape \(.*\) has no dim that varies"):
        step(session, [1], 0, [session.new_state(), session.new_state()])


def test_a_step_writes_one_row_of_each_cache(exported):
    _, plan = exported
    caches = {name for name in plan.states if "cache" in name}
    assert len(caches) == 4
    assert all(plan.is_in_place(name) for name in caches)
    writers = [n.op for n in plan.nodes if plan.placements[n.output].root in caches]
    assert writers == ["WRITE"] * 4
    whole = plan.tensors["key_cache_0"].shape
    same = [name for name, spec in plan.tensors.items() if spec.shape == whole]
    assert {plan.placements[name].root for name in same} == caches, "no copy of a cache"
    session = opened(plan)
    decode(session, [1, 2, 3], 4)
    before = {name: session.get_state(name) for name in caches}
    step(session, [9], 20)
    for name in caches:
        changed = (session.get_state(name) != before[name]).any((0, 1, 3))
        np.testing.assert_array_equal(np.flatnonzero(changed), [20])


def test_a_position_beyond_the_cache_changes_nothing(exported):
    _, plan = exported
    session = opened(plan)
    decode(session, [1, 2, 3], 4)
    before = {name: session.get_state(name) for name in session.state_names}
    with pytest.raises(InputError, match=r"indices in \[0, 48\), got .*48"):
        session.run(None, {"input_ids": np.array([[5, 6]]), "cache_position": np.array([47, 48])})
    for name, array in before.items():
        np.testing.assert_array_equal(session.get_state(name), array)


def test_a_cache_that_grows_is_refused_with_what_to_do():
    model, ids = language_model(), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(
        ExportError, match=r"got a DynamicCache: .*register.* pass use_cache=False, or .*static"
    ):
        taper_frontend.export(model, (), {"input_ids": ids, "past_key_values": cache})
    with pytest.raises(ExportError, match=r"DynamicCache'> in output.*\n.*pass use_cache=False"):
        taper_frontend.export(model, (), {"input_ids": ids, "use_cache": True})
