"""``@frozen`` makes what ``@dataclass(frozen=True)`` makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from mesh.core.frozen import frozen, write_all


@frozen
class Point:
    """A value."""

    x: int
    y: int = 0
    tags: tuple[str, ...] = dataclasses.field(default=(), repr=False)


@frozen(kw_only=False)
class Named(Point):
    """A value that is made of another, with a method of its own."""

    name: str

    def __repr__(self) -> str:
        return self.name


@frozen
class Checked(Point):
    """A value that looks at itself, and has a list of its own."""

    more: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError(self.x)


class Plain(Checked):
    """What is below one without being decorated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What Point is to be like."""

    x: int
    y: int = 0
    tags: tuple[str, ...] = dataclasses.field(default=(), repr=False)


def test_values_are_compared_and_hashed_by_their_fields() -> None:
    assert Point(x=1) == Point(x=1, y=0) != Point(x=2)
    assert {Point(x=1), Point(x=1), Point(x=1, tags=("a",))} == {Point(x=1), Point(x=1, tags=("a",))}
    assert Point(x=1) != Model(x=1)
    assert Named("n", x=1) != Point(x=1)
    assert hash(Point(x=1)) == hash(Model(x=1))


def test_they_are_told_and_copied_as_dataclasses_are() -> None:
    assert repr(Point(x=1, tags=("a",))) == repr(Model(x=1, tags=("a",))).replace("Model", "Point") == "Point(x=1, y=0)"
    assert repr(Named("n", x=1)) == "n"
    assert dataclasses.replace(Point(x=1), y=5) == Point(x=1, y=5)
    assert dataclasses.asdict(Point(x=1)) == dataclasses.asdict(Model(x=1))
    assert copy.deepcopy(Point(x=1)) == pickle.loads(pickle.dumps(Point(x=1))) == Point(x=1)


def test_an_init_of_its_own_stays_and_names_may_be_any() -> None:
    @frozen
    class Own:
        """It counts."""

        count: int

        def __init__(self, text: str) -> None:
            self.__dict__["count"] = len(text)

    @frozen(kw_only=False)
    class Odd:
        """Names that the written code might use."""

        values: dict[str, int]
        cls: int = 0
        dict: int = 2

    assert (Own("abc").count, Odd({"a": 1}).values, Odd({}).dict) == (3, {"a": 1}, 2)


@pytest.mark.parametrize("name", ["self", "_missing"])
def test_names_that_no_field_may_have(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        frozen(type("Bad", (), {"__annotations__": {name: "int"}}))
    with pytest.raises(TypeError, match=r"Unset\.x"):
        frozen(type("Unset", (), {"__annotations__": {"x": "int"}, "x": dataclasses.field(init=False)}))


@pytest.mark.parametrize("kind", [Plain, Checked])
def test_each_value_has_defaults_of_its_own_and_is_looked_at(kind: type[Checked]) -> None:
    one, other = kind(x=1), kind(x=1)
    one.more.append(3)
    assert (one.more, other.more, type(other)) == ([3], [], kind)
    with pytest.raises(ValueError, match="-1"):
        kind(x=-1)


@pytest.mark.parametrize("name", ["x", "y", "tags", "other"])
def test_nothing_is_set_a_second_time(name: str) -> None:
    for value in (Point(x=1), Model(x=1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 3)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, name)
    assert dataclasses.asdict(Point(x=1)) == {"x": 1, "y": 0, "tags": ()}


@pytest.mark.parametrize("given", [{}, {"x": 1, "z": 2}])
def test_fields_are_given_by_name_and_none_is_missing(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"^Point\.__init__"):
        Point(**given)
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg,misc]


def test_what_the_first_value_would_do_can_be_done_before() -> None:
    @frozen
    class Late:
        x: int

    write_all()
    written = vars(Late)["__init__"]
    assert Late(x=1).x == 1
    assert vars(Late)["__init__"] is written
