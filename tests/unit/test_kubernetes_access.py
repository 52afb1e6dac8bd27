"""Kubeconfigs: what is read without the official client is what it reads, and all else is left to it."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from mesh.backends.pods import plain
from mesh.backends.pods.access import Access, _official, access_of
from mesh.backends.pods.credentials import end_of_certificate
from mesh.engine.credentials import make_credentials

Config = dict[str, Any]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    place = tmp_path_factory.mktemp("pem")
    key, begin, certificate = make_credentials().partition("-----BEGIN CERTIFICATE")
    (place / "key").write_text(key)
    (place / "crt").write_text(begin + certificate)
    return place / "crt", place / "key"


def config(cluster: Config, user: Config, **more: Any) -> Config:
    return {
        "apiVersion": "v1",
        "current-context": "b",
        "clusters": [{"name": "c", "cluster": {"server": "https://k:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "a", "context": {"cluster": "c", "user": "u"}},
            {"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        **more,
    }


def without_tls(access: Access) -> tuple[Any, ...]:
    tls = access.tls
    return (
        *(access.server, access.context, access.namespace, access.server_name, access.proxy, access.certificate),
        *(dict(access.header()), tls.verify_mode, tls.check_hostname, tls.get_ca_certs()),
    )


@pytest.mark.parametrize("context", ["", "a"])
@pytest.mark.parametrize("kind", ["token", "token file", "files", "data", "unverified"])
def test_a_plain_file_is_read_as_the_official_client_does(
    tmp_path: Path, pem: tuple[Path, Path], kind: str, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    crt, key = pem
    (tmp_path / "crt").write_bytes(crt.read_bytes())
    (tmp_path / "token").write_text("from-a-file")
    crt_data, key_data = (base64.b64encode(one.read_bytes()).decode() for one in pem)
    found = {
        "token": config({"certificate-authority": "crt", "tls-server-name": "other"}, {"token": "t"}),
        "token file": config({"certificate-authority": "crt"}, {"tokenFile": str(tmp_path / "token")}),
        "files": config({"certificate-authority": str(crt)}, {"client-certificate": str(crt), "client-key": str(key)}),
        "data": config(
            {"certificate-authority-data": crt_data}, {"client-certificate-data": crt_data, "client-key-data": key_data}
        ),
        "unverified": config({"insecure-skip-tls-verify": True}, {"token": "t"}),
    }[kind]
    file = tmp_path / "config"
    file.write_text(json.dumps(found))
    assert plain.read(str(file), context, {}) is not None
    ours = access_of(context, {"KUBECONFIG": str(file)})
    assert without_tls(ours) == without_tls(_official(str(file), context))
    assert (ours.context, ours.namespace) == (("a", "") if context else ("b", "team"))
    assert ours.tls.verify_mode == (ssl.CERT_NONE if kind == "unverified" else ssl.CERT_REQUIRED)
    assert (end_of_certificate(ours.certificate) < 4e9) == (kind in ("files", "data"))


NOT_PLAIN = {
    "a plug-in": config({}, {"exec": {"command": "aws"}}),
    "a token beside a plug-in": config({}, {"token": "t", "auth-provider": {"name": "gcp"}}),
    "an absent file of a token": config({}, {"tokenFile": "/t"}),
    "two tokens": config({}, {"token": "t", "tokenFile": "/dev/null"}),
    "a proxy": config({"proxy-url": "http://p"}, {"token": "t"}),
    "no key": config({}, {"client-certificate-data": base64.b64encode(b"x").decode()}),
    "no such file": config({"certificate-authority": "absent"}, {"token": "t"}),
    "no such user": config({}, {}, users=[]),
    "a number": config({}, {"token": 12}),
    "another context": config({}, {"token": "t"}, **{"current-context": "z"}),
    "a bad authority": config({"certificate-authority-data": "%%"}, {"token": "t"}),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_all_else_is_left_to_the_official_client(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config"
    file.write_text(json.dumps(NOT_PLAIN[name]))
    assert plain.read(str(file), "", {}) is None


def test_several_files_and_proxies_are_left_to_the_official_client(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(json.dumps(config({}, {"token": "t"})))
    assert plain.read(str(file), "", {}) is not None
    assert plain.read(f"{file}:{tmp_path / 'other'}", "", {}) is None
    assert plain.read(str(file), "", {"HTTPS_PROXY": "http://p:1"}) is None
