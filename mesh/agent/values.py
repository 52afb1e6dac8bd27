"""Plain values that compare and print by their fields, as ``dataclasses`` costs more to import than all of them."""

from __future__ import annotations


class Value:
    """A value that is never changed after it was made."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the value as a call of its class.

        >>> Value()
        Value()
        """
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"
