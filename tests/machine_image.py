"""Stand-in for the image of a TPU machine: what is there before anybody has logged in.

A real machine has docker with its daemon. gcsfuse is set up by mesh; here its stand-in is there already.
"""

from __future__ import annotations

from tests.engines import CACHE, PATH
from tests.gcs import PROGRAM

DOCKER_START_S = 30

# runc without the right to raise limits, which these test machines do not have: `--privileged` asks for every right.
RUNC = r"""#!/bin/sh
for word; do
    [ "$before" != --bundle ] || sed -i 's/"CAP_SYS_RESOURCE",//g' "$word/config.json"
    before=$word
done
exec @cache@/usr/sbin/runc "$@"
"""

BOOT = r"""
ip link set lo up
cat >@program@ <<'END'
@gcsfuse@
END
cat >/usr/local/bin/runc-here <<'END'
@runc@
END
rm -f /usr/local/bin/docker
ln -s @cache@/usr/bin/docker /usr/local/bin/docker
chmod 755 @program@ /usr/local/bin/runc-here
mkdir -p @directories@
# docker's data is in memory: overlays cannot be had on this machine's own root.
PATH=@path@:$PATH setsid dockerd --bridge=none --iptables=false --exec-opt native.cgroupdriver=cgroupfs \
    --add-runtime here=/usr/local/bin/runc-here --default-runtime here --data-root /run/docker-data \
    --registry-mirror http://@registry@ >/var/log/docker 2>&1 &
end=$(($(date +%s) + @wait@))
until docker version >/dev/null 2>&1 || [ "$(date +%s)" -gt "$end" ]; do sleep 0.1; done
"""


def boot_script(*, gcsfuse: str, registry: str, directories: str) -> str:
    """Return what a machine runs before sshd starts.

    gcsfuse: the stand-in's text; registry: the address in place of Docker Hub; directories: more that the image has
    """
    values = {
        "gcsfuse": gcsfuse,
        "runc": RUNC.replace("@cache@", str(CACHE)),
        "program": PROGRAM,
        "cache": str(CACHE),
        "path": PATH,
        "registry": registry,
        "directories": directories,
        "wait": str(DOCKER_START_S),
    }
    text = BOOT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
