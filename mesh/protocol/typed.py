"""Stand-ins for what only mypy reads of ``typing``, whose import takes longer than all of this package."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Generic

    from typing_extensions import dataclass_transform
else:

    class Generic:
        """A base class that takes any type in brackets."""

        def __class_getitem__(cls, item: object) -> type:
            return cls

    def dataclass_transform(**options: object) -> object:
        """Return a decorator that changes nothing."""
        return lambda one: one


__all__ = ["Generic", "dataclass_transform"]
