"""The files of a dev pod: its start, the configuration of sshd, the user's entry in passwd, and a kubeconfig. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mesh.config.podusers import DevPod, PodUser
from mesh.config.userspaces import namespace_of

DIRECTORY = "/etc/mesh-dev"  # in the container: the files of this module
HOST_KEY_DIRECTORY = "/etc/mesh-host-key"
HOST_KEY = "ssh_host_ed25519_key"
DEV_UID = 1000  # of the user in the pod
PID_FILE = "/tmp/mesh-sshd.pid"  # written once sshd listens
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
LAYOUT = ("code", "data", "cache", "models")  # directories of the volume

# Logins get neither the variables of the image nor those of the container, so the start hands the useful ones on.
START = r"""# The first process of a dev pod: makes what the volume lacks, and becomes sshd.
fail() {
    echo "$1" >&2
    echo "$1" >/dev/termination-log
    exit 1
}
lacks=
sshd=$(PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin"; command -v sshd) || lacks=sshd
command -v mesh >/dev/null || lacks="${lacks:+$lacks and }mesh"
[ -z "$lacks" ] || fail "image $MESH_DEV_IMAGE lacks $lacks"
for name in %(layout)s; do
    [ -d "$HOME/$name" ] || mkdir "$HOME/$name" || fail "user $(id -u) cannot write $HOME: the volume must allow it"
done
if [ ! -e "$HOME/code/setup.sh" ]; then
    cat %(directory)s/setup.sh >"$HOME/code/setup.sh" || fail "user $(id -u) cannot write $HOME/code/setup.sh"
fi
rm -f %(pid_file)s
settings=
for name in PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV LANG KUBECONFIG MESH_TDATA; do
    eval "value=\${$name-}"
    [ -z "$value" ] || settings="$settings \"$name=$value\""
done
{
    cat %(directory)s/sshd_config
    echo "SetEnv$settings"
} >/tmp/mesh-sshd.conf || fail "cannot write /tmp"
exec "$sshd" -D -e -f /tmp/mesh-sshd.conf
"""
SETUP = """\
#!/bin/bash
# Runs in every pod that mesh makes for you, before prerun: install here what your image lacks.
# If it fails, the run does not start (status 125).
"""
SSHD = """\
Port %(port)d
ListenAddress 127.0.0.1
HostKey %(host_key)s
AuthorizedKeysFile %(directory)s/authorized_keys
PidFile %(pid_file)s
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
StrictModes no
UsePAM no
X11Forwarding no
PrintMotd no
Subsystem sftp internal-sftp
"""


def dev_files(user: PodUser, dev: DevPod) -> Mapping[str, str]:
    """Return the files of a user's dev pod by name."""
    words = {"layout": " ".join(LAYOUT), "directory": DIRECTORY, "pid_file": PID_FILE}
    host_key = f"{HOST_KEY_DIRECTORY}/{HOST_KEY}"
    return {
        "start.sh": START % words,
        "setup.sh": SETUP,
        "sshd_config": SSHD % {**words, "port": dev.port, "host_key": host_key},
        "authorized_keys": "".join(f"{line}\n" for line in user.keys),
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{user.name}:x:{DEV_UID}:{DEV_UID}::{dev.mount}:/bin/bash\n",
        "group": f"root:x:0:\ntty:x:5:\n{user.name}:x:{DEV_UID}:\n",
        "kubeconfig": json.dumps(_kubeconfig(user, dev), indent=1),
    }


def _kubeconfig(user: PodUser, dev: DevPod) -> Mapping[str, object]:
    """Return a kubeconfig for the pod's service account, as logins do not get the variables that name the server."""
    name = namespace_of(user.name)
    server = {"server": dev.server, "certificate-authority": f"{SERVICE_ACCOUNT}/ca.crt"}
    return kubeconfig(name, server, {"tokenFile": f"{SERVICE_ACCOUNT}/token"})


def kubeconfig(name: str, server: Mapping[str, object], user: Mapping[str, object]) -> Mapping[str, object]:
    """Return a kubeconfig of one context. name: of the namespace, and of all entries"""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": dict(server)}],
        "users": [{"name": name, "user": dict(user)}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": name}}],
    }
