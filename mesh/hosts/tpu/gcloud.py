"""Settings of this machine's gcloud command, read from its files: it need not be installed."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from mesh.config.tpu import TpuName
from mesh.core.errors import UsageError

KEY = "~/.ssh/google_compute_engine"  # that gcloud makes, and logs in with
PRODUCT = Path("/sys/class/dmi/id/product_name")
# Section and name in a configuration, and the variable that wins over it: `gcloud topic configurations`.
_PROPERTIES = {
    "project": ("core", "project", "CLOUDSDK_CORE_PROJECT"),
    "zone": ("compute", "zone", "CLOUDSDK_COMPUTE_ZONE"),
    "endpoint": ("api_endpoint_overrides", "tpu", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"),
}


class Zone(Struct, frozen=True, kw_only=True):
    """Zone of a project in which TPUs are looked for."""

    project: str
    zone: str
    endpoint: str = ""  # an URL in the API's place; "": Google's own

    def __str__(self) -> str:
        return f"zone {self.zone} of project {self.project}"


def zone_of(tpu: TpuName, environ: Mapping[str, str], *, of_job: bool = False) -> Zone:
    """Return the zone that the user has named, or gcloud's. Raises UsageError if there is none.

    of_job: it may be named in a job file, and not in cluster.yaml
    """
    found = {name: _property(*place, environ) for name, place in _PROPERTIES.items()}
    zone = Zone(
        project=tpu.project or found["project"], zone=tpu.zone or found["zone"], endpoint=found["endpoint"].rstrip("/")
    )
    for what, value, command in (
        ("project", zone.project, "gcloud config set project PROJECT"),
        ("zone", zone.zone, "gcloud config set compute/zone ZONE"),
    ):
        if not value:
            other = f"cluster.yaml, or --{what.upper()} of mesh multihost"
            hint = f"{command}; or {what}: below tpu: in {'the job file' if of_job else other}"
            raise UsageError(f"TPU {tpu.name}: no {what} is set", hint=hint)
    return zone


def directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of gcloud's configurations and credentials."""
    named = environ.get("CLOUDSDK_CONFIG", "")
    return Path(named) if named else Path.home() / ".config" / "gcloud"


def is_google() -> bool:
    """True if this machine is one of Google Cloud."""
    try:
        return PRODUCT.read_text().startswith("Google")
    except (OSError, UnicodeDecodeError):
        return False


def _property(section: str, name: str, variable: str, environ: Mapping[str, str]) -> str:
    if environ.get(variable):
        return environ[variable]
    place = directory(environ)
    active = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _text(place / "active_config").strip() or "default"
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(_text(place / "configurations" / f"config_{active}"))
    except configparser.Error:  # gcloud's own commands show what is wrong
        return ""
    return parser.get(section, name, fallback="").strip()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
