"""Ways to make one value of two: by name, or by a function of the user."""

from __future__ import annotations

from typing import Callable, Dict, Union

Combine = Callable[[object, object], object]


def added(one: object, other: object) -> object:
    """Return the sum of two values; of lists, tuples and dictionaries member by member.

    >>> added({"loss": 1, "grad": [1, 2]}, {"loss": 2, "grad": [3, 4]})
    {'loss': 3, 'grad': [4, 6]}
    """
    return _each(lambda left, right: left + right, one, other)  # type: ignore[operator]


def larger(one: object, other: object) -> object:
    """Return the larger of two values; of arrays element by element.

    >>> larger((1, 5), (3, 2))
    (3, 5)
    """
    return _each(lambda left, right: _chosen("maximum", left, right), one, other)


def smaller(one: object, other: object) -> object:
    """Return the smaller of two values; of arrays element by element.

    >>> smaller([1, 5], [3, 2])
    [1, 2]
    """
    return _each(lambda left, right: _chosen("minimum", left, right), one, other)


def merged(one: object, other: object) -> object:
    """Return one dictionary of two; where both have a key, the second one wins.

    >>> merged({"a": 1, "b": 2}, {"b": 3})
    {'a': 1, 'b': 3}
    """
    return {**one, **other}  # type: ignore[dict-item]


COMBINE: "Dict[str, Combine]" = {"sum": added, "max": larger, "min": smaller, "merge": merged}


def combine_of(how: "Union[str, Combine]") -> Combine:
    """Return the function of a name, or the function itself. Raises ValueError for an unknown name."""
    if callable(how):
        return how
    if how not in COMBINE:
        raise ValueError(f"{how!r}: expected {', '.join(COMBINE)}, or a function of two values")
    return COMBINE[how]


def name_of(how: "Union[str, Combine]") -> str:
    """Return the name of a way to combine, for messages."""
    return how if isinstance(how, str) else str(getattr(how, "__name__", "a function"))


def _each(combine: Combine, one: object, other: object) -> object:
    """Combine two values, or the members of two containers. Raises ValueError where those are not alike."""
    if type(one) is dict and type(other) is dict:
        if one.keys() != other.keys():
            unlike = sorted(map(str, one.keys() ^ other.keys()))
            raise ValueError(f"the keys differ: {', '.join(unlike[:8])}")
        return {key: _each(combine, value, other[key]) for key, value in one.items()}
    if type(one) in (list, tuple) and type(one) is type(other):
        first, second = list(one), list(other)  # type: ignore[call-overload]
        if len(first) != len(second):
            raise ValueError(f"the lengths differ: {len(first)} and {len(second)}")
        found = [_each(combine, left, right) for left, right in zip(first, second)]
        return tuple(found) if type(one) is tuple else found
    return combine(one, other)


def _chosen(name: str, one: object, other: object) -> object:
    """Return the maximum or minimum of two values, by numpy's function for arrays."""
    if hasattr(one, "__array_ufunc__") or hasattr(other, "__array_ufunc__"):
        import numpy

        found: object = getattr(numpy, name)(one, other)
        return found
    pair = (one, other)
    return max(pair) if name == "maximum" else min(pair)  # type: ignore[type-var]
