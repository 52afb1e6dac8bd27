"""JSON by the C parts of Python's coder, because importing ``json`` takes longer than Python's own start."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Scan = Callable[[str, int], "tuple[object, int]"]
    Encode = Callable[[object, int], Iterable[str]]

PROBE_TEXT = '{"a":[1.5,null]}'


class _Rules:
    """The rules by which JSON is read, as json.JSONDecoder has them."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _refuse(value: object) -> str:
    raise TypeError(f"JSON has no {type(value).__name__}")


def _coders() -> tuple[Scan, Encode]:
    """Return the scanner of a text at a place, and the encoder of a value into pieces of text."""
    try:
        import _json

        scan: Scan = _json.make_scanner(_Rules())  # type: ignore[arg-type]
        encode: Encode = _json.make_encoder(
            None,
            _refuse,
            _json.encode_basestring_ascii,
            None,
            ":",
            ",",
            False,
            False,
            True,
        )
        if "".join(encode(scan(PROBE_TEXT, 0)[0], 0)) == PROBE_TEXT:
            return scan, encode
    except (ImportError, AttributeError, TypeError):  # this interface is Python's own, and may change
        pass
    import json

    decoder, encoder = json.JSONDecoder(), json.JSONEncoder(separators=(",", ":"))
    return decoder.raw_decode, lambda value, level: (encoder.encode(value),)


_scan, _encode = _coders()


def loads(text: str | bytes) -> object:
    """Return the value of a text of JSON that has no white space around it. Raises ValueError."""
    text = text if isinstance(text, str) else text.decode()
    try:
        value, end = _scan(text, 0)
    except (StopIteration, SystemError, RecursionError):  # SystemError: json's own exception cannot be imported
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value of JSON")
    return value


def dumps(value: object) -> str:
    """Return a value as JSON, without white space, in ASCII. Raises TypeError."""
    return "".join(_encode(value, 0))
