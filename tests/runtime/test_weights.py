"""Test the weights of a session: queries and replacement."""

import json
import pickle
import threading
import weakref

import numpy as np
import pytest

from plan_files import small_plan
from pt2_files import TABLE, members, pack, payload, tensor_meta
from taper_runtime import InferenceSession, InputError, PlanFormatError, SessionOptions
from taper_runtime.file.container import make_header
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.recipes import RecipeStep
from taper_runtime.plan.replaceable import WeightSpec
from weight_swaps import seen_during_swaps
from weighted_plans import K, Q, expected, weight, weighted_plan

B = weighted_plan().constants["b"]
X = np.linspace(-1, 2, 8, dtype=np.float32).reshape(2, 4)
NEW = {
    "q": Q[::-1].copy(),
    "k": K * 2,
    "b": np.arange(8, dtype=np.float32),
}


def opened(plan=None, **options):
    chosen = SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    return InferenceSession(weighted_plan() if plan is None else plan, chosen)


def ran(session):
    return session.run(None, {"x": X})[0]


def want(q=Q, k=K, b=B):
    return expected(q, k, b, X)


def safetensors(path, arrays, dtypes=None):
    """Write a file without metadata, as torch's exporters do, with the runtime's layout."""
    types = {
        name: TensorType((dtypes or {}).get(name, array.dtype.name), array.shape)
        for name, array in arrays.items()
    }
    header, order = make_header({}, types)
    path.write_bytes(header + b"".join(arrays[name].tobytes() for name in order))
    return path


def test_weights_are_listed():
    weights = opened().weights
    assert weights.names() == ["b", "k", "q", "scale"]
    assert weights.names("parameter") == ["k", "q"]
    assert weights.names("buffer") == ["b"]
    assert weights.names("constant") == ["scale"]
    assert len(weights) == 4
    assert "head.k" in weights
    assert "w" not in weights
    assert "unused" not in weights  # no run needs it
    for name in weights.names():
        weights.get(name)
    with pytest.raises(InputError, match="kind: expected one of parameter, buffer, constant"):
        weights.names("tensor")


def test_a_weight_can_be_read_and_not_written():
    weights = opened().weights
    np.testing.assert_array_equal(weights.get("head.k"), K)
    weights.update_many(NEW)
    for name in ("q", "b", "k", "scale"):
        array = weights.get(name)
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    np.testing.assert_array_equal(weights.get("k"), NEW["k"])
    with pytest.raises(InputError, match="no run needs it"):
        weights.get("unused")
    with pytest.raises(InputError, match=r"unknown weight 'hed\.k'; did you mean 'head\.k'"):
        weights.get("hed.k")


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
@pytest.mark.parametrize("fold", [False, True])
def test_a_set_is_loaded_then_committed(executor, fold):
    session = opened(executor=executor, runtime_const_folding=fold)
    np.testing.assert_allclose(ran(session), want(), rtol=1e-6)
    before, version = ran(session), session.weights.version
    session.weights.load(NEW)
    assert ran(session).tobytes() == before.tobytes()
    assert session.weights.version == version
    assert session.weights.commit() == session.weights.version > version
    np.testing.assert_allclose(ran(session), want(**NEW), rtol=1e-6)
    with pytest.raises(InputError, match="no weights are loaded"):
        session.weights.commit()


def test_folding_gives_the_same_bits(tmp_path):
    plan = weighted_plan()
    plan.save(tmp_path / "m.taper", folded=False)
    folding = opened(tmp_path / "m.taper", runtime_const_folding=True)
    completing = opened(tmp_path / "m.taper")
    session = opened(plan)
    for change in ({}, {"q": Q * 3}, {"b": NEW["b"], "head.k": K + 1}):
        for each in (session, folding, completing) if change else ():
            each.weights.update_many(change)
        assert ran(session).tobytes() == ran(folding).tobytes() == ran(completing).tobytes()
    fingerprints = {each.plan.fingerprint() for each in (session, folding, completing)}
    assert len(fingerprints) == 1


def test_stored_constants_are_not_read_where_they_are_folded():
    plan = weighted_plan()
    plan = plan._replace(constants={**plan.constants, "w": plan.constants["w"] * 0})
    np.testing.assert_allclose(ran(opened(plan, runtime_const_folding=True)), want(), rtol=1e-6)


def test_a_set_is_copied():
    session = opened()
    mine = {name: array.copy() for name, array in NEW.items()}
    mine["q"].flags.writeable = False
    view = mine["b"][:]
    view.flags.writeable = False
    session.weights.load({**mine, "b": view})
    for name in ("k", "b"):
        mine[name][...] = 7
    session.weights.commit()
    mine["k"][...] = 8
    np.testing.assert_allclose(ran(session), want(**NEW), rtol=1e-6)


def test_a_set_can_be_discarded_or_loaded_again():
    session = opened()
    session.weights.load({**NEW, "q": Q * 9})
    session.weights.load(NEW)
    session.weights.discard()
    with pytest.raises(InputError, match="no weights are loaded"):
        session.weights.commit()
    np.testing.assert_allclose(ran(session), want(), rtol=1e-6)


@pytest.mark.parametrize("metadata", [False, True])
def test_a_set_is_read_from_a_safetensors_file(metadata, tmp_path):
    session = opened()
    path = safetensors(tmp_path / "m.safetensors", NEW)
    if not metadata:  # as numpy's own writer of safetensors leaves it
        blob = path.read_bytes()
        length = int.from_bytes(blob[:8], "little")
        header = blob[8 : 8 + length].replace(b'"__metadata__":{},', b"")
        path.write_bytes(len(header).to_bytes(8, "little") + header + blob[8 + length :])
    session.weights.load(path)
    path.unlink()
    session.weights.commit()
    np.testing.assert_allclose(ran(session), want(**NEW), rtol=1e-6)


def test_a_model_of_an_archive_is_chosen(tmp_path):
    weights = opened().weights
    table = {"config": {"b": payload("weight_0", tensor_meta((8,), (1,)))}}
    files = members() | {
        "m/data/weights/other_weights_config.json": json.dumps(table).encode(),
        "m/models/other.json": b"{}",
    }
    path = tmp_path / "two.pt2"
    path.write_bytes(pack(files))
    with pytest.raises(InputError, match=r"no model named; expected one of \['model', 'other'\]"):
        weights.load(path)
    with pytest.raises(InputError, match="unknown model 'x'"):
        weights.load(path, model="x")
    weights.load(path, model="other", strict=False)
    weights.commit()
    np.testing.assert_array_equal(weights.get("b"), TABLE[:8])
    for source in (NEW, safetensors(tmp_path / "m.safetensors", NEW), lambda name, spec: None):
        with pytest.raises(InputError, match=r"model: expected None with .*, got 'other'"):
            weights.load(source, model="other")


def test_a_file_is_checked(tmp_path):
    weights = opened().weights
    path = safetensors(tmp_path / "m.safetensors", NEW)
    whole = path.read_bytes()
    for broken in (b"", whole[:4], whole[:-1], whole + b"x", b"PK\x03\x04" + whole):
        path.write_bytes(broken)
        with pytest.raises(PlanFormatError, match=r"safetensors|truncated|data|header") as caught:
            weights.load(path)
        assert caught.value.path == str(path)
    with pytest.raises(OSError, match="regular file"):
        weights.load("/dev/null")
    with pytest.raises(FileNotFoundError):
        weights.load(tmp_path / "none")
    halves = {**NEW, "b": np.zeros(8, np.uint16)}
    path = safetensors(path, halves, {"b": "bfloat16"})
    with pytest.raises(InputError, match="'b': expected dtype float32, got bfloat16"):
        weights.load(path)


def test_a_set_is_asked_for():
    session = opened()
    asked = []

    def give(name, spec):
        asked.append(spec)
        assert spec.name == name
        return NEW[name]

    session.weights.load(give)
    assert [(spec.name, spec.kind, spec.shape) for spec in asked] == [
        ("b", "buffer", (8,)),
        ("k", "parameter", (4, 4)),
        ("q", "parameter", (4, 4)),
    ]
    session.weights.commit()
    np.testing.assert_allclose(ran(session), want(**NEW), rtol=1e-6)


def test_all_problems_are_told_at_once():
    weights = opened().weights
    wrong = {
        "q": np.zeros((4, 5), np.float32),
        "k": np.zeros((4, 4)),
        "scale": np.ones((), np.float32),
        "nobody": np.zeros(3),
        "unused": [1],
    }
    with pytest.raises(InputError) as caught:
        weights.validate(wrong)
    assert str(caught.value).splitlines() == [
        "6 problems with the weights:",
        "  weight 'q': expected shape [4, 4], got [4, 5]",
        "  weight 'k': expected dtype float32, got float64",
        "  weight 'scale' is a constant of the program, which cannot be replaced",
        "  unknown weight 'nobody'",
        "  weight 'unused': expected a numpy array, got list",
        "  weight 'b' is missing",
    ]
    weights.validate(NEW)
    weights.validate({**NEW, "unused": np.zeros((), np.int64)})
    with pytest.raises(InputError, match="expected a mapping, got list"):
        weights.validate([])
    with pytest.raises(InputError, match="source: expected arrays by name, a path or a function"):
        weights.load(3)


def test_without_strict_some_are_enough():
    session = opened()
    session.weights.load({"q": NEW["q"], "nobody": X}, strict=False)
    session.weights.update("b", NEW["b"])  # before the commit: it stays
    session.weights.commit()
    np.testing.assert_allclose(ran(session), want(q=NEW["q"], b=NEW["b"]), rtol=1e-6)
    with pytest.raises(InputError, match="expected shape"):
        session.weights.load({"q": X}, strict=False)


def test_tied_weights_have_one_value():
    session = opened()
    both = {**NEW, "head.k": NEW["k"].copy()}
    session.weights.load(both)
    one = {"head.k" if name == "k" else name: array for name, array in NEW.items()}
    session.weights.load(one)
    session.weights.commit()
    np.testing.assert_allclose(ran(session), want(**NEW), rtol=1e-6)
    with pytest.raises(
        InputError, match=r"'head\.k': expected the values of 'k', which is the same"
    ):
        session.weights.load({**NEW, "head.k": K})


@pytest.mark.parametrize("name", ["q", "k", "b", "head.k"])
def test_an_update_is_seen_by_the_next_run(name):
    session = opened()
    new = NEW[name.removeprefix("head.")]
    ran(session)
    version = session.weights.version
    assert session.weights.update(name, new) > version
    np.testing.assert_allclose(ran(session), want(**{name.removeprefix("head."): new}), rtol=1e-6)


def test_an_update_of_what_is_unknown_changes_nothing():
    session = opened()
    version = session.weights.version
    with pytest.raises(InputError, match="unknown weight 'nobody'"):
        session.weights.update_many({"q": NEW["q"], "nobody": X})
    with pytest.raises(InputError, match="is a constant of the program"):
        session.weights.update("scale", np.zeros((), np.float32))
    assert session.weights.version == version
    np.testing.assert_allclose(ran(session), want(), rtol=1e-6)


def test_a_failure_leaves_the_old_set():
    plan = weighted_plan()
    recipe = (
        weight("q"),
        RecipeStep("INVERSE", (0,), {}),
        weight("k"),
        RecipeStep("CAT", (1, 2), {"axis": 1}),
    )
    regular = (np.eye(4) * 2).astype(np.float32)
    plan = plan._replace(derived={**plan.derived, "w": recipe}, originals={"q": regular, "k": K})
    session = opened(plan, runtime_const_folding=True)
    before, version = ran(session), session.weights.version
    session.weights.load({**NEW, "q": np.zeros((4, 4), np.float32)})
    with pytest.raises(InputError, match="constant 'w' cannot be computed"):
        session.weights.commit()
    with pytest.raises(InputError, match="constant 'w' cannot be computed"):
        session.weights.update("q", np.zeros((4, 4), np.float32))
    assert session.weights.version == version
    assert ran(session).tobytes() == before.tobytes()
    np.testing.assert_array_equal(session.weights.get("b"), plan.constants["b"])


def test_a_plan_with_fixed_weights_says_how_to_export_another():
    session = InferenceSession(small_plan())
    assert session.weights.names() == []
    for act in (
        lambda: session.weights.load(NEW),
        lambda: session.weights.update("w", X),
        lambda: session.weights.validate(NEW),
        lambda: session.weights.get("w"),
    ):
        with pytest.raises(InputError, match="weights='replaceable'"):
            act()
    with pytest.raises(InputError, match="weights='replaceable'"):
        opened(small_plan(), runtime_const_folding=True)


def test_statistics_tell_the_version():
    session = opened()
    for _ in range(2):
        version = session.weights.version
        assert session.stats().weights_version == version
        session.weights.update("q", Q)


def test_threads_that_ask_at_once_have_the_same_weights():
    for _ in range(20):
        session, found = opened(), []
        threads = [
            threading.Thread(target=lambda s=session, f=found: f.append(s.weights))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, found))) == 1


def test_versions_rise_over_all_sessions():
    a, b = opened(), opened()
    versions = [a.weights.version, b.weights.version]
    versions += [session.weights.update("q", Q) for session in (a, b, a)]
    assert versions == sorted(set(versions))


def refuses_to_be_writable(array):
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        array.flags.writeable = True
    return True


def test_nobody_gets_a_window_on_weights_that_can_be_written(tmp_path):
    path = tmp_path / "m.taper"
    weighted_plan().save(path)
    for load_mode in ("map", "copy"):
        options = SessionOptions()
        options.load_mode = load_mode
        session = InferenceSession(path, options)
        for replace in (dict, lambda: {"q": 2 * Q}, lambda: {"b": np.ones(8, np.float32)}):
            session.weights.update_many(replace())
            before = ran(session)
            plan = session.plan
            arrays = [*plan.constants.values(), *plan.originals.values(), *plan.samples.values()]
            arrays += [session.weights.get(name) for name in ("b", "k", "q", "head.k")]
            assert all(map(refuses_to_be_writable, arrays))
            assert ran(session).tobytes() == before.tobytes()


def test_complex_weights_are_complex_numbers():
    plan = weighted_plan()
    spec = WeightSpec("q", "parameter", "float32", (4, 2, 2), is_complex=True)
    recipe = (weight("q"), RecipeStep("RESHAPE", (0,), {"shape": (4, 4)}), weight("k"))
    recipe += (RecipeStep("CAT", (1, 2), {"axis": 1}),)
    plan = plan._replace(
        weights={**plan.weights, "q": spec},
        derived={**plan.derived, "w": recipe},
        originals={"q": Q.reshape(4, 2, 2), "k": K},
    )
    session = opened(plan, runtime_const_folding=True)
    before = ran(session)
    numbers = session.weights.get("q")
    assert numbers.dtype == np.complex64
    np.testing.assert_array_equal(numbers, Q.view(np.complex64))
    session.weights.update("q", 2 * numbers)
    assert ran(session).tobytes() != before.tobytes()
    session.weights.update("q", numbers[:, ::-1][:, ::-1])
    assert ran(session).tobytes() == before.tobytes()
    with pytest.raises(InputError, match="expected dtype complex64, got complex128"):
        session.weights.update("q", numbers.astype(np.complex128))


def test_a_session_with_other_weights_is_pickled_with_them(tmp_path):
    weighted_plan().save(tmp_path / "m.taper")
    session = InferenceSession(tmp_path / "m.taper")
    session.weights.update("q", NEW["q"])
    again = pickle.loads(pickle.dumps(session))  # noqa: S301
    assert ran(again).tobytes() == ran(session).tobytes()
    assert ran(InferenceSession(tmp_path / "m.taper")).tobytes() != ran(again).tobytes()


def test_a_plan_of_a_session_is_saved_with_its_weights(tmp_path):
    session = opened()
    session.weights.update_many(NEW)
    session.plan.save(tmp_path / "m.taper")
    assert ran(InferenceSession(tmp_path / "m.taper")).tobytes() == ran(session).tobytes()


def test_the_old_set_goes_with_its_last_run():
    """A big set is held by the session alone, a later one takes its place."""
    session = opened()
    session.weights.update_many(NEW)
    ran(session)
    kept = weakref.ref(session.weights.get("q"))
    values = [weakref.ref(array) for array in session.plan.constants.values()]
    session.weights.update_many({"q": Q, "b": NEW["b"] + 1})
    assert kept() is None
    assert sum(ref() is not None for ref in values) == 1  # keep, which nothing replaces
    assert ran(session).shape == (8,)


def test_no_run_sees_a_mixture():
    """Eight threads run while two hundred sets are swapped in: each result is one set's."""
    session = opened()
    sets = [{name: array + np.float32(i) for name, array in NEW.items()} for i in range(20)]
    right = set()
    for each in sets:
        session.weights.update_many(each)
        right.add(ran(session).tobytes())
    assert len(right) == len(sets)
    seen = seen_during_swaps(session, sets, lambda: ran(session).tobytes())
    assert seen <= right
    assert len(seen) > 1
