"""Test hosts: real sshd, real processes, real cables, on one machine.

``Lab`` needs root on Linux: every host is a set of namespaces (network, PID, mount, UTS, IPC) with an address, a
process tree and files of its own. ``PlainLab`` needs nothing: its hosts are sshd processes on 127.0.0.x that share this
machine's files, and differ in HOME.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
START = 60.0  # seconds that a host may take to start
LOOK_INTERVAL_S, LONGEST_PAUSE_S = 0.02, 0.5  # between two looks of ``eventually``
PAUSE_FACTOR = 3.0  # of the time that a look has taken
PLAIN_USER_ID = 34567  # of whoever logs in but root; nobody here has it
UNSHARE = ["unshare", "-n", "-m", "-p", "-u", "-i", "-f", "--kill-child", "--mount-proc", "sh"]
# What begins empty on a host, so that a file found there was really sent.
EMPTY = "/root /home /tmp /var/tmp /run /dev/shm /mnt /srv"
KUBERNETES_NETWORK = 83  # 10.83 is that of tests/kubecluster

# PID 1 of a host. $1: its directory here, $2: its name, $3: what begins empty, $4: a file with paths to show
# read-only, one a line, $5: a home directory to share, or nothing, $6: who logs in, $7: the user ID if not root.
# A script `boot` in its directory runs there before sshd starts.
INIT = r"""
set -e
cd "$1"
mount -t tmpfs -o mode=755 tmpfs fs
mkdir fs/upper fs/work fs/root
mount -t overlay overlay -o lowerdir=/,upperdir=fs/upper,workdir=fs/work fs/root
mount --rbind /dev fs/root/dev
mount --rbind /sys fs/root/sys
while read -r path; do mkdir -p "fs/shown$path"; mount --bind "$path" "fs/shown$path"; done <"$4"
for d in $3; do [ -d fs/root$d ] && mount -t tmpfs -o mode=1777 tmpfs fs/root$d; done
chmod 755 fs/root/home fs/root/run fs/root/srv fs/root/mnt
[ -z "$5" ] || mount --bind "$5" fs/root/root
chmod 700 fs/root/root
if [ "$6" != root ]; then
    echo "$6:x:$7:$7::/home/$6:/bin/bash" >>fs/root/etc/passwd
    echo "$6:x:$7:" >>fs/root/etc/group
    echo "$6:*:19000:0:99999:7:::" >>fs/root/etc/shadow
    mkdir -m 700 "fs/root/home/$6"
    chown "$7:$7" "fs/root/home/$6"
fi
while read -r path; do
    mkdir -p "fs/root$path"
    mount --bind "fs/shown$path" "fs/root$path"
    mount -o remount,bind,ro "fs/root$path"
done <"$4"
mkdir -p fs/root/run/sshd fs/root/run/lock
cp host_key authorized_keys sshd_config hosts fs/root/etc/ssh/
chmod 600 fs/root/etc/ssh/host_key
[ ! -e boot ] || cp boot fs/root/etc/boot
rm -rf fs/root/etc/update-motd.d  # at each login, PAM would start five processes for a text that nobody reads
mv fs/root/etc/ssh/hosts fs/root/etc/hosts
echo 'nameserver 127.0.0.1' >fs/root/etc/resolv.conf
echo "$2" >fs/root/etc/hostname
hostname "$2"
mkdir fs/root/.old
cd fs/root
pivot_root . .old
mount -t proc proc /proc
umount -l /.old
cd /
exec </dev/null >/var/log/init 2>&1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
trap '' HUP INT
trap 'exit 0' TERM
[ ! -e /etc/boot ] || sh /etc/boot
/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log
while :; do sleep 2147483647 & wait $! || true; done
"""

# Arguments of find, after the places that begin empty: the agent's versions stay, in a directory that is private.
# -xdev: what is mounted there belongs to this machine.
LEFT = r"""
-xdev -mindepth 1 ( -not -path /tmp/mesh-[0-9]*/.agent-* -delete ,
-path /tmp/mesh-* -not -path /tmp/mesh-*/* -not -perm 700 -exec rm -rf {} + )
"""
LOGIN_SHELL = "/bin/bash"

# OpenSSH's first choice, sntrup761, takes six times the processor time of a connection with this one.
SSHD_CONFIG = """\
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256
PasswordAuthentication no
KbdInteractiveAuthentication no
AcceptEnv LANG LC_*
Subsystem sftp /usr/lib/openssh/sftp-server
"""


class LabError(Exception):
    """The test hosts could not be made."""


def sh(*argv: str, text: str | None = None, check: bool = True) -> str:
    done = subprocess.run(argv, input=text, text=True, capture_output=True, check=False)
    if check and done.returncode:
        raise LabError(f"{shlex.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def eventually(condition: object, within: float = 30.0) -> bool:
    """Return True if a condition becomes true in time.

    Looks every 20 ms. A look that takes long, as a command does, is followed by a longer pause, so that it leaves the
    processor to what is waited for.
    """
    assert callable(condition)
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        if condition():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(min(LONGEST_PAUSE_S, max(LOOK_INTERVAL_S, PAUSE_FACTOR * (time.monotonic() - began))))


def make_key(path: Path, comment: str, passphrase: str = "") -> None:
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", comment, "-f", str(path))


@contextlib.contextmanager
def ssh_agent(directory: Path, key: Path) -> Iterator[str]:
    """An agent that holds a key; yields its socket."""
    sock = directory / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    try:
        if not eventually(sock.exists):
            raise LabError("ssh-agent did not start")
        subprocess.run(["ssh-add", "-q", str(key)], env={"SSH_AUTH_SOCK": str(sock)}, check=True, capture_output=True)
        yield str(sock)
    finally:
        agent.terminate()
        agent.wait()


def wait_for_sshd(address: str, port: int) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=2) as sock:
            return sock.recv(4) == b"SSH-"
        return False

    if not eventually(answers, START):
        raise LabError(f"no sshd at {address}:{port}")


def state_of(place: Path) -> str:
    """The state of a process or thread, by its directory in /proc: Z for a zombie. Raises OSError if it is gone."""
    return (place / "stat").read_text().rpartition(")")[2].split()[0]


def peak_memory(pid: int | str = "self") -> float:
    """MB that a process has had at most. getrusage would count what its parent had when it forked."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1000  # type: ignore[index]


def processes_in(namespaces: Collection[str]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """Return (pid here, command) of each process in some PID namespaces, by its PID and its network namespace.

    Zombies, and processes that have given back their memory, are left out.
    """
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # pathlib would take most of the time of many tests
        with contextlib.suppress(OSError):
            pids = os.readlink(f"/proc/{name}/ns/pid")
            if pids not in namespaces:
                continue
            entry = Path("/proc", name)
            if all(state_of(thread) in "ZX" for thread in (entry / "task").iterdir()):
                continue
            os.readlink(entry / "exe")  # there is none then
            network, command = os.readlink(entry / "ns/net"), (entry / "cmdline").read_bytes()
            shown = command.replace(b"\0", b" ").decode(errors="replace")
            found.setdefault((pids, network), []).append((int(name), shown))
    return found


def is_agent(command: str) -> bool:
    """Return True for the command line of an agent or a guardian, also before it has taken its name."""
    return command.startswith(("mesh-agent", "mesh-guardian")) or " -I -S -c " in command


class TestHost:
    """One machine of a Lab."""

    __test__ = False

    def __init__(self, lab: Lab, index: int, name: str, address: str) -> None:
        self.lab, self.index, self.name, self.address = lab, index, name, address
        self.port, self.user = 22, lab.user
        self.home = "/root" if lab.user == "root" else f"/home/{lab.user}"
        self.directory = lab.directory / name
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of its init, here
        self.reaper = 0  # of the first process of its PID namespace, which another host may share
        self.shell = LOGIN_SHELL  # of root

    def run(self, *argv: str, check: bool = True, text: str | None = None) -> str:
        """Run a command there, without SSH; return what it printed."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--", *argv]
        return sh(*enter, text=text, check=check)

    def script(self, text: str) -> str:
        """Run shell text there as root, in the home directory of the user who logs in."""
        path = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return self.run("env", "-i", f"HOME={self.home}", path, "sh", "-ec", f"cd; {text}")

    def processes(self, *, with_sshd: bool = False) -> list[tuple[int, str]]:
        """What runs there beyond init and sshd."""
        return self.lab.processes([self], with_sshd=with_sshd)[self.name]

    @property
    def namespaces(self) -> tuple[str, str]:
        """The PID and the network namespace. A host that shares the first one has a network of its own."""
        return os.readlink(f"/proc/{self.pid}/ns/pid"), os.readlink(f"/proc/{self.pid}/ns/net")

    def unmount(self, place: str) -> None:
        """Unmount as soon as nothing is open there: agents and sessions of sshd may be on their way out."""

        def is_unmounted() -> bool:
            with contextlib.suppress(LabError):
                self.run("umount", place)
                return True
            return False

        assert eventually(is_unmounted, 20.0), self.processes(with_sshd=True)

    def path(self, inside: str) -> Path:
        """A file of the host, seen from here."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def cut(self) -> None:
        """Pull the cable: nobody is told."""
        self.lab.in_switch("ip", "link", "set", f"p{self.index}", "down")

    def mend(self) -> None:
        self.lab.in_switch("ip", "link", "set", f"p{self.index}", "up")

    def set_shell(self, shell: str) -> None:
        """Change root's login shell."""
        if shell != self.shell:
            self.run("sed", "-i", rf"s|^\(root:.*:\)[^:]*$|\1{shell}|", "/etc/passwd")
            self.shell = shell

    def new_host_key(self) -> None:
        """As if the machine had been made anew."""
        self.script("rm -f /etc/ssh/host_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/host_key")
        self.restart_sshd()

    def old_host_key(self) -> None:
        """As it was made by the lab."""
        self.path("/etc/ssh/host_key").write_text((self.directory / "host_key").read_text())
        self.reload_sshd()

    def reload_sshd(self) -> None:
        """Have sshd read its settings again, and wait until it listens: in between it refuses connections."""
        file = self.path("/run/sshd.pid")

        def written() -> tuple[int, int] | None:
            """Return what tells one writing of the file from another; None: it is not written."""
            with contextlib.suppress(FileNotFoundError):
                found = file.stat()
                return (found.st_ino, found.st_mtime_ns) if file.read_text().strip() else None
            return None

        before = written()
        self.script("kill -HUP $(cat /run/sshd.pid)")
        if not eventually(lambda: written() not in (None, before)):
            raise LabError(f"sshd of {self.name} has not started again")

    def restart_sshd(self) -> None:
        """Start the sshd that listens anew, and wait until it does: it has read its settings and its key by then."""
        self.script(
            "kill $(cat /run/sshd.pid); while [ -e /run/sshd.pid ]; do sleep 0.01; done; "
            "/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log"
        )
        wait_for_sshd(self.address, 22)


class Lab:
    """Hosts made of namespaces; a context manager. Nothing of it stays, also when its process is killed."""

    def __init__(
        self,
        count: int,
        *,
        sshd: Sequence[str] = (),
        visible: Sequence[Path] = (),
        shared_home: bool = False,
        user: str = "root",
        shared_pids: bool = False,
    ) -> None:
        """sshd: lines for sshd_config; visible: what hosts see read-only though it lies where they begin empty.

        user: who logs in; anybody but root is a plain user, who may make no control group
        shared_pids: the first two hosts see each other's processes, as containers of one pod do
        """
        if os.geteuid():
            raise LabError("needs root")
        self._count, self._sshd, self._visible, self._shared_home = count, sshd, visible, shared_home
        self.user, self.shared_pids = user, shared_pids
        self.directory = Path(tempfile.mkdtemp(prefix="mesh-lab-"))
        self.identity = self.directory / "id"
        self.known_hosts = self.directory / "known_hosts"
        self.hosts: list[TestHost] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self.link = f"ml{os.getpid() % 1000000}x{len(self.directory.name) and self.directory.name[-4:]}"[:15]

    def __enter__(self) -> Lab:
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def in_switch(self, *argv: str, text: str | None = None) -> None:
        sh("nsenter", "-t", str(self.switch), "-n", *argv, text=text)

    def cluster_yaml(self, name: str = "pod", *more: str, hosts: Sequence[TestHost] | None = None) -> str:
        """A cluster of all hosts (or some), with more lines of settings."""
        listed = "".join(f"    - {host.address}\n" for host in (self.hosts if hosts is None else hosts))
        settings = "".join(f"  {line}\n" for line in more)
        return f"{name}:\n  user: {self.user}\n  identity_file: {self.identity}\n{settings}  hosts:\n{listed}"

    def reset(self) -> None:
        """Mend all cables, end what runs, and empty the places that began so.

        The directories of the agent's versions stay, as on hosts in use: each new one would be compiled there.
        """
        self.in_switch("ip", "-batch", "-", text="".join(f"link set p{host.index} up\n" for host in self.hosts))
        self.end_all(*self.hosts)
        for host in self.hosts:
            host.set_shell(LOGIN_SHELL)
            host.run("find", host.home, "/tmp", *LEFT.split(), check=False)

    def end_all(self, *hosts: TestHost) -> None:
        """Kill everything on hosts but their inits and the sshds that listen."""
        found = self.processes(hosts, with_sshd=True)
        for host in hosts:
            for pid, _ in found[host.name]:
                if not self._is_listener(host, pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def processes(self, hosts: Sequence[TestHost], *, with_sshd: bool = False) -> dict[str, list[tuple[int, str]]]:
        """Return what runs on hosts beyond init and sshd, by their names, in one look at all processes."""
        own = {host.name: host.namespaces for host in hosts}
        found = processes_in({pids for pids, _ in own.values()})
        inits = {host.pid for host in hosts}
        return {
            name: [
                (pid, command)
                for pid, command in found.get(namespaces, [])
                if pid not in inits
                and "sleep 2147483647" not in command
                and (with_sshd or not re.match(r"(\S*/)?sshd", command))
            ]
            for name, namespaces in own.items()
        }

    def _is_listener(self, host: TestHost, pid: int) -> bool:
        """By its parent, init: its title is another one while it reads its settings again."""
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            return name == "sshd" and int(rest.split()[1]) == host.reaper
        return False

    def down(self) -> None:
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()
        for host in self.hosts:
            if host.pid:
                eventually(lambda pid=host.pid: not Path(f"/proc/{pid}").exists())
        sh("ip", "link", "del", self.link, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ---- making them

    def _up(self) -> None:
        make_key(self.identity, "lab")
        switch = self._spawn("unshare", "-n", "--kill-child", "-f", "sleep", "2147483647")
        self.switch = self._child_of(switch)
        net = self._take_network()
        for index in range(self._count):
            address = f"{net}.{1 + index // 250}.{1 + index % 250}"
            self.hosts.append(TestHost(self, index, f"h{index:02d}", address))
        names = "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        (self.directory / "init").write_text(INIT)
        (self.directory / "visible").write_text("".join(f"{path}\n" for path in self._visible))
        (self.directory / "home").mkdir(mode=0o700)
        options = "".join(f"{line}\n" for line in self._sshd)  # sshd takes the first value that it reads
        options += SSHD_CONFIG + "HostKey /etc/ssh/host_key\nAuthorizedKeysFile /etc/ssh/authorized_keys\nUsePAM yes\n"
        spawned = []
        for host in self.hosts:
            (host.directory / "fs").mkdir(parents=True)
            make_key(host.directory / "host_key", host.name)
            shutil.copy(f"{self.identity}.pub", host.directory / "authorized_keys")
            (host.directory / "sshd_config").write_text(options + "PidFile /run/sshd.pid\n")
            (host.directory / "hosts").write_text(names)
            enter = UNSHARE
            if self.shared_pids and host.index == 1:  # it ends with the first process of that namespace
                first = str(self._child_of(spawned[0]))
                enter = ["nsenter", "-t", first, "-p", "--", "unshare", "-n", "-m", "-u", "-i", "--mount-proc", "sh"]
            spawned.append(self._begin(host, enter))
        for host, process in zip(self.hosts, spawned, strict=True):
            host.process, host.pid = process, self._child_of(process)
            host.reaper = host.pid
        if self.shared_pids:
            self.hosts[1].reaper = self.hosts[0].pid
            mine = os.readlink("/proc/self/ns/net")
            assert eventually(lambda: os.readlink(f"/proc/{self.hosts[1].pid}/ns/net") != mine)
        self._connect_all()
        lines = []
        for host in self.hosts:
            wait_for_sshd(host.address, 22)
            key = (host.directory / "host_key.pub").read_text().split()
            lines.append(f"{host.address} {key[0]} {key[1]}\n")
        self.known_hosts.write_text("".join(lines))

    def _begin(self, host: TestHost, enter: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start the init of a host."""
        shared = str(self.directory / "home") if self._shared_home else ""
        arguments = [str(self.directory / "init"), str(host.directory), host.name, EMPTY]
        login = (self.user, str(PLAIN_USER_ID))
        return self._spawn(*enter, *arguments, str(self.directory / "visible"), shared, *login)

    def kill(self, *hosts: TestHost) -> None:
        """End hosts without a goodbye, as if their machines were gone."""
        for host in hosts:
            assert host.process is not None
            host.process.kill()
        for host in hosts:
            assert host.process is not None
            host.process.wait()
            self._started.remove(host.process)
            host.process = None
            # The kernel takes the cable away with the last process.
            assert eventually(lambda pid=host.pid: not Path(f"/proc/{pid}").exists())
            host.pid = 0
        links = [f" p{host.index}@" for host in hosts]

        def are_gone() -> bool:
            shown = sh("nsenter", "-t", str(self.switch), "-n", "ip", "-o", "link")
            return not any(link in shown for link in links)

        assert eventually(are_gone)

    def boot(self, host: TestHost) -> None:
        """Start a host that was killed, by the files in its directory."""
        host.process = self._begin(host, UNSHARE)
        host.pid = host.reaper = self._child_of(host.process)
        mine = os.readlink("/proc/self/ns/net")
        assert eventually(lambda: os.readlink(f"/proc/{host.pid}/ns/net") != mine)
        self._connect(host)

    def _take_network(self) -> str:
        """Take a network that nothing here uses, and no lab of another process; return its first two numbers.

        Labs look and take one at a time. Two that look together would take the same one.
        """
        mine = os.readlink("/proc/self/ns/net")
        if not eventually(lambda: os.readlink(f"/proc/{self.switch}/ns/net") != mine):
            raise LabError("unshare -n did not start")
        with Path(tempfile.gettempdir(), "mesh-lab.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken = sh("ip", "-4", "-o", "addr")
            free = (
                number
                for number in range(80 + os.getpid() % 100, 250)
                if number != KUBERNETES_NETWORK and f" 10.{number}." not in taken
            )
            number = next(free, None)
            if number is None:
                raise LabError("no free network")
            sh(
                *("ip", "-batch", "-"),
                text=f"link add {self.link} type veth peer name up0 netns {self.switch}\n"
                f"addr add 10.{number}.0.1/16 dev {self.link}\nlink set {self.link} up\n",
            )
        return f"10.{number}"

    def _connect_all(self) -> None:
        lines = ["link add br0 type bridge", "link set br0 up", "link set up0 master br0 up"]
        for host in self.hosts:
            lines += self._cable(host)
        self.in_switch("ip", "-batch", "-", text="\n".join(lines) + "\n")
        for host in self.hosts:
            self._address(host)

    def _connect(self, host: TestHost) -> None:
        """Give a host its cable and its address."""
        self.in_switch("ip", "-batch", "-", text="\n".join(self._cable(host)) + "\n")
        self._address(host)

    def _cable(self, host: TestHost) -> list[str]:
        # An address keeps its link address, so that a machine that is made anew there is found without a wait for ARP.
        link = f"02:00:00:00:{host.index // 256:02x}:{host.index % 256:02x}"
        lines = [f"link add p{host.index} type veth peer name eth0 address {link} netns {host.pid}"]
        return [*lines, f"link set p{host.index} master br0 up"]

    def _address(self, host: TestHost) -> None:
        own = f"link set lo up\naddr add {host.address}/16 dev eth0\nlink set eth0 up\n"
        sh("nsenter", "-t", str(host.pid), "-n", "ip", "-batch", "-", text=own)

    def _spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        self._started.append(process)
        return process

    def _child_of(self, process: subprocess.Popen[bytes]) -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        found: list[str] = []

        def has_one() -> bool:
            with contextlib.suppress(FileNotFoundError):
                found[:] = children.read_text().split()
            return bool(found)

        if not eventually(has_one):
            raise LabError((self.directory / "log").read_text() or "unshare started nothing")
        return int(found[0])


class PlainHost:
    """One sshd of this user on a loopback address."""

    def __init__(self, directory: Path, address: str, port: int) -> None:
        self.directory, self.address, self.port = directory, address, port
        self.name = address
        self.home = directory / "home"
        self.process: subprocess.Popen[bytes] | None = None


class PlainLab:
    """Hosts that need no privilege: sshd on 127.0.0.x, high ports, each with a HOME of its own."""

    def __init__(self, count: int, *, sshd: Sequence[str] = ()) -> None:
        if SSHD is None:
            raise LabError("needs sshd")
        self._sshd = sshd
        self.directory = Path(tempfile.mkdtemp(prefix="mesh-lab-"))
        self.identity = self.directory / "id"
        self.user = getpass.getuser()
        self.hosts = [PlainHost(self.directory / f"h{n}", f"127.0.0.{n + 2}", 0) for n in range(count)]

    def __enter__(self) -> PlainLab:
        make_key(self.identity, "lab")
        if not os.geteuid():
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it when root starts it
        for host in self.hosts:
            self.start(host)
        return self

    def start(self, host: PlainHost) -> None:
        host.home.mkdir(parents=True, exist_ok=True)
        if not (host.directory / "host_key").exists():
            make_key(host.directory / "host_key", "host")
        if not host.port:
            with socket.socket() as probe:
                probe.bind((host.address, 0))
                host.port = probe.getsockname()[1]
        config = host.directory / "sshd_config"
        own = f"Port {host.port}\nListenAddress {host.address}\nHostKey {host.directory}/host_key\n"
        own += f"AuthorizedKeysFile {self.identity}.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        own += f"SetEnv HOME={host.home}\n"
        config.write_text("".join(f"{line}\n" for line in self._sshd) + own + SSHD_CONFIG)
        assert SSHD is not None
        with (host.directory / "log").open("ab") as log:
            host.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log)
        wait_for_sshd(host.address, host.port)

    def stop(self, host: PlainHost) -> None:
        if host.process is not None:
            host.process.terminate()
            host.process.wait()
            host.process = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self.hosts:
            self.stop(host)
        shutil.rmtree(self.directory, ignore_errors=True)

    def cluster_yaml(self, name: str = "pod", *more: str) -> str:
        listed = "".join(f'    - "{host.address}:{host.port}"\n' for host in self.hosts)
        settings = "".join(f"  {line}\n" for line in more)
        return f"{name}:\n  user: {self.user}\n  identity_file: {self.identity}\n{settings}  hosts:\n{listed}"
