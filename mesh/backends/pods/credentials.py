"""End of credentials, read from a certificate or a token."""

from __future__ import annotations

import base64
import json
import math
from datetime import timezone


def end_of_token(header: str) -> float:
    """Return when a token ends, in seconds since the epoch; infinity for one that does not show it.

    header: its value in a request, as "Bearer TOKEN"

    >>> end_of_token("Bearer e30.eyJleHAiOiAxMn0.x"), end_of_token("Bearer abc"), end_of_token("")
    (12.0, inf, inf)
    """
    parts = header.rpartition(" ")[2].split(".")
    if len(parts) != 3:
        return math.inf
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def end_of_certificate(pem: bytes) -> float:
    """Return when a client certificate ends, in seconds since the epoch; infinity without one."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return math.inf
    if (found := getattr(certificate, "not_valid_after_utc", None)) is not None:  # cryptography 42 and later
        return float(found.timestamp())
    return certificate.not_valid_after.replace(tzinfo=timezone.utc).timestamp()
