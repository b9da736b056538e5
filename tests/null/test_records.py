"""Records are named tuples as Python's own are."""

import copy
import re
import typing
from pathlib import Path

import pytest

from taper_runtime.base.records import NamedTuple


class Ours(NamedTuple):
    """A record."""

    x: int
    y: str = "why"
    z: tuple = ()

    @property
    def twice(self) -> int:
        return 2 * self.x


class Theirs(typing.NamedTuple):
    """A record."""

    x: int
    y: str = "why"
    z: tuple = ()

    @property
    def twice(self) -> int:
        return 2 * self.x


@pytest.mark.parametrize(
    "arguments", [((1,), {}), ((1, "a", (2,)), {}), ((), {"z": (3,), "x": 1}), ((1,), {"y": "b"})]
)
def test_a_record_is_a_named_tuple(arguments):
    args, kwargs = arguments
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert (ours.x, ours.y, ours.z, ours.twice) == (theirs.x, theirs.y, theirs.z, theirs.twice)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours._asdict() == theirs._asdict()
    assert ours._replace(y="c", x=5) == theirs._replace(y="c", x=5)
    assert type(ours._replace(y="c")) is Ours
    assert ours.__replace__(y="c") == ours._replace(y="c")
    assert Ours._make([1, 2, 3]) == Theirs._make([1, 2, 3])
    assert Ours.__doc__ == "A record."
    for copied in (copy.copy(ours), copy.deepcopy(ours)):
        assert copied == ours
        assert type(copied) is Ours


def test_its_class_says_its_fields():
    assert Ours._fields == Theirs._fields
    assert Ours._field_defaults == Theirs._field_defaults
    assert Ours.__match_args__ == Theirs.__match_args__
    match Ours(4, "m"):
        case Ours(x, y, z=()):
            assert (x, y) == (4, "m")


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"x": 2}), ((1,), {"other": 2})]
)
def test_wrong_arguments_are_refused_as_of_any_function(args, kwargs):
    with pytest.raises(TypeError) as theirs:
        Theirs(*args, **kwargs)
    with pytest.raises(TypeError) as ours:
        Ours(*args, **kwargs)
    tail = str(theirs.value).partition("__new__() ")[2]
    assert str(ours.value) == f"Ours.__new__() {tail.replace('_cls', 'cls')}"


def test_an_unknown_field_is_not_replaced():
    with pytest.raises(TypeError, match=r"Ours has no fields \['a'\]"):
        Ours(1)._replace(a=2)


def test_values_of_other_lengths_make_none():
    with pytest.raises(TypeError):
        Ours._make([])


def test_a_record_has_no_other_attributes():
    with pytest.raises(AttributeError):
        Ours(1).other = 2
    with pytest.raises(AttributeError):
        Ours(1).x = 2


def test_fields_with_defaults_come_last():
    with pytest.raises(TypeError, match="Wrong: expected fields without a default before"):

        class Wrong(NamedTuple):
            x: int = 1
            y: int


def test_a_subclass_has_the_fields():
    class More(Ours):
        def thrice(self) -> int:
            return 3 * self.x

    assert More(2).thrice() == 6
    assert type(More(2)._replace(x=4)) is More


def test_packages_have_one_named_tuple():
    """The product makes its records of this class alone, not of typing's too."""
    packages = Path(__file__).parents[2] / "packages"
    modules = [path for path in packages.glob("*/src/**/*.py") if path.name != "records.py"]
    assert len(modules) > 300
    texts = {path: path.read_text() for path in modules}
    theirs = re.compile(r"from typing import [^\n]*\bNamedTuple\b|typing\.NamedTuple\b")
    assert [str(path) for path, text in texts.items() if theirs.search(text)] == []
