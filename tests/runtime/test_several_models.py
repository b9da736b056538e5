"""Files of several models: names, what they share, files written anew."""

import os
import pickle

import numpy as np
import pytest

import taper_runtime
from plan_files import PlanFile, assert_same_plan, chain, small_plan
from taper_runtime import InferenceSession, InputError, PlanFormatError
from taper_runtime.file.reader import load_all


def other_plan():
    """The small plan with another bias and sample, and equal weights in arrays of their own."""
    plan = small_plan()
    constants = {name: array.copy() for name, array in plan.constants.items()}
    constants["b"] = constants["b"] + 1
    return plan._replace(constants=constants, samples={"x": np.zeros((2, 4), np.float32)})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "two.taper"
    small_plan().save(path, name="encoder")
    other_plan().save(path, name="decoder", append=True)
    return path


def test_models_are_opened_by_name(path):
    assert taper_runtime.list_models(path) == ["decoder", "encoder"]
    assert_same_plan(taper_runtime.load(path, "encoder"), small_plan())
    assert_same_plan(taper_runtime.load(path, "decoder"), other_plan())
    x = {"x": np.ones((2, 4), np.float32)}
    (first,) = InferenceSession(path, model="encoder").run(None, x)
    (second,) = InferenceSession(path.read_bytes(), model="decoder").run(None, x)
    np.testing.assert_allclose(second, first + 1)


def test_equal_tensors_are_there_once(path, tmp_path):
    header = PlanFile(path.read_bytes()).header
    assert sorted(header) == ["__metadata__", "b", "b_1", "keep", "sample/x", "sample/x_1", "w"]
    plans = load_all(path)
    assert np.shares_memory(plans["encoder"].constants["w"], plans["decoder"].constants["w"])
    small_plan().save(tmp_path / "one.taper")
    own = sum(array.nbytes for array in (other_plan().constants["b"], other_plan().samples["x"]))
    data = len(PlanFile(path.read_bytes()).data)
    assert data == len(PlanFile((tmp_path / "one.taper").read_bytes()).data) + own


def test_the_default_name_is_model(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    alone = path.read_bytes()
    assert taper_runtime.list_models(path) == ["model"]
    assert_same_plan(taper_runtime.load(path, "model"), small_plan())
    other_plan().save(path, name="other", append=True)
    assert_same_plan(taper_runtime.load(path), small_plan())
    small_plan().save(path, append=False)
    assert path.read_bytes() == alone


def test_the_only_model_needs_no_name(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path, name="tagger", append=True)  # to a file that is not there
    assert_same_plan(taper_runtime.load(path), small_plan())
    with pytest.raises(InputError, match=r"unknown model 'model'; expected one of \['tagger'\]"):
        taper_runtime.load(path, "model")


def test_an_unknown_name_lists_what_there_is(path, tmp_path):
    with pytest.raises(InputError, match=r"unknown model 'x'; expected one of \['decoder', 'enc"):
        InferenceSession(path, model="x")
    with pytest.raises(InputError, match=r"unknown model 'model'; expected one of"):
        InferenceSession(path)
    with pytest.raises(InputError, match="expected None, for a Plan is one model, got 'x'"):
        InferenceSession(small_plan(), model="x")


def test_order_and_history_do_not_change_the_file(path, tmp_path):
    other = tmp_path / "other.taper"
    other_plan().save(other, name="decoder")
    small_plan().save(other, name="encoder", append=True)
    assert other.read_bytes() == path.read_bytes()


def test_a_name_that_is_taken_is_refused_and_the_file_stays(path):
    before = path.read_bytes()
    with pytest.raises(
        InputError,
        match=r"name: expected a name that the file does not have .*\['decoder', 'encoder'",
    ):
        small_plan().save(path, name="encoder", append=True)
    with pytest.raises(PlanFormatError, match="name: expected a name of at most 100"):
        small_plan().save(path, name="../x", append=True)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_nothing_is_appended_to_what_is_no_plan(tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(PlanFormatError, match=r"expected a \.taper file"):
        small_plan().save(path, name="x", append=True)
    assert path.read_bytes() == b"PK\3\4"


def test_plans_of_other_models_are_not_read(path):
    """Another model may use what this reader does not know."""
    file = PlanFile(path.read_bytes())
    file.plan["models"]["decoder"]["plan"]["features"] = ["dreams"]
    path.write_bytes(file.pack())
    assert_same_plan(taper_runtime.load(path, "encoder"), small_plan())
    with pytest.raises(PlanFormatError, match=r"got 'dreams'") as error:
        taper_runtime.load(path, "decoder")
    assert error.value.field == "plan.models['decoder'].plan.features[0]"
    with pytest.raises(PlanFormatError, match="dreams"):  # else it would be lost
        chain(["NEG"], 2).save(path, name="third", append=True)


def test_a_session_of_a_model_is_sent_to_another_process(path):
    session = pickle.loads(pickle.dumps(InferenceSession(path, model="decoder")))  # noqa: S301
    assert_same_plan(session.plan, other_plan())
