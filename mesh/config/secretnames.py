"""Names of variables whose values are probably secrets."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_|\Z)", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return True for a name that people give to a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("wandb_api_key"), is_secret_name("AWS_SECRET_ACCESS_KEY")
    (True, True, True)
    >>> is_secret_name("TOKENIZERS_PARALLELISM"), is_secret_name("HOME")
    (False, False)
    """
    return bool(_SECRET.search(name))
