"""Keys between hosts: three test hosts with real sshd, and the real ssh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from mesh.app.keys import new_key_pair
from mesh.core.cluster import Host
from mesh.core.module import Identity, Ssh
from mesh.modules.ssh import SshModule
from tests import host_steps as steps
from tests.conftest import Home
from tests.host_steps import Place
from tests.lab import Lab, TestHost

pytestmark = pytest.mark.root
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CONFIG = "Host elsewhere\n    Port 2222\nHost *\n    ServerAliveInterval 7"  # without a newline at its end
REACH = 'echo $(for host; do ssh -o BatchMode=yes "$host" hostname || exit; done)\n'
BOTH_FILES = "AuthorizedKeysFile /etc/ssh/authorized_keys .ssh/authorized_keys"


@pytest.fixture(scope="module")
def three() -> Iterator[Lab]:
    with Lab(3, sshd=[BOTH_FILES]) as lab:
        yield lab


@pytest.fixture
def hosts(three: Lab) -> Iterator[Sequence[TestHost]]:
    yield three.hosts
    three.reset()


def place(host: TestHost) -> Place:
    enter = ("nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--")
    return Place(host.path(host.home), {"PATH": PATH}, enter, host.home)


def cluster(hosts: Sequence[TestHost]) -> list[Host]:
    return [Host(name=f"node-{host.index}", address=host.address) for host in hosts]


def module(*identities: Identity, name: str = "pod", **contents: bytes) -> SshModule:
    files = {f"/keys/{key}": data for key, data in contents.items()}
    return SshModule(Ssh(identities=identities), cluster=name, key=new_key_pair(), contents=files)


def set_up(hosts: Sequence[TestHost], made: SshModule) -> int:
    """Carry out both rounds; return how many hosts got new keys."""
    facts = []
    for node, host in enumerate(hosts):
        done = [steps.settle(place(host), step) for step in made.steps(cluster(hosts), node)]
        assert all(ran.status == 0 for ran in done), done
        facts.append([ran.fact for ran in done])
    further = made.join(cluster(hosts), facts)
    for host, second in zip(hosts, further, strict=False):
        for step in second:
            done = [steps.settle(place(host), step)]
            assert done[0].status == 0, done
    return len(further)


def undo(hosts: Sequence[TestHost], made: SshModule) -> None:
    for node, host in enumerate(hosts):
        for step in reversed(made.steps(cluster(hosts), node)):
            done = steps.undo(place(host), step)
            assert done.status == 0, done
            assert not done.err, done


def found(host: TestHost) -> str:
    """All files of the home with their modes and contents."""
    return host.script("find . -printf '%p %m %y %l\\n' | sort; find . -type f | sort | xargs -r sha256sum")


def reach(host: TestHost, word: str) -> str:
    return host.script(f"ssh -o BatchMode=yes {word} hostname").strip()


def assert_all_reach_all(hosts: Sequence[TestHost]) -> None:
    for host in hosts:
        for other in hosts:
            for word in (f"node-{other.index}", other.name, other.address):
                assert reach(host, word) == other.name


def assert_each_reaches_each(hosts: Sequence[TestHost]) -> None:
    """Try one of the three names of each host from each: none of a host's names and of its partners' is left out."""
    for number, host in enumerate(hosts):
        for index, other in enumerate(hosts):
            word = (f"node-{other.index}", other.name, other.address)[(number + index) % 3]
            assert reach(host, word) == other.name


def test_every_host_reaches_every_other_and_afterwards_nothing_is_left(hosts: Sequence[TestHost]) -> None:
    hosts[0].script(f"mkdir -m 700 .ssh; printf '%s' '{CONFIG}' >.ssh/config; printf '# mine' >.ssh/authorized_keys")
    hosts[1].script("mkdir -m 700 .ssh")
    before = [found(host) for host in hosts]
    assert set_up(hosts, module()) == 3
    assert_all_reach_all(hosts)
    # The key is good for these hosts alone, and strictly checked hosts for their keys alone.
    assert "StrictHostKeyChecking yes" in hosts[0].script("cat .ssh/config.d/mesh-pod")
    assert 'from="' in hosts[0].script("head -n 1 .ssh/authorized_keys")
    assert hosts[0].script("ssh -G node-1").count("serveraliveinterval 7") == 1
    state = [found(host) for host in hosts]
    assert set_up(hosts, module()) == 0
    assert [found(host) for host in hosts] == state
    assert set_up(hosts[:2], module()) == 0  # some of the hosts have all that they need
    undo(hosts, module())
    assert [found(host) for host in hosts] == before
    assert hosts[0].path("/root/.ssh/config").read_text() == CONFIG
    undo(hosts, module())
    assert [found(host) for host in hosts] == before


def test_the_key_is_refused_from_elsewhere(hosts: Sequence[TestHost], three: Lab) -> None:
    set_up(hosts[:2], module())
    key = hosts[0].script("cat .ssh/mesh-pod-????????")
    hosts[2].script("mkdir -m 700 .ssh; umask 077; cat >.ssh/stolen <<'END'\n" + key + "END\n")
    options = "-i .ssh/stolen -o BatchMode=yes -o StrictHostKeyChecking=no"
    assert "Permission denied" in hosts[2].script(f"ssh {options} {hosts[0].address} true 2>&1 || true")
    assert reach(hosts[1], hosts[0].address) == hosts[0].name


def test_a_key_of_the_user_that_works_does_not_hide_one_that_does_not() -> None:
    with Lab(1) as lab:  # its sshd reads no file of the home
        [host] = lab.hosts
        host.script("mkdir -m 700 .ssh; umask 077; cat >.ssh/id_ed25519 <<'END'\n" + lab.identity.read_text() + "END\n")
        assert reach(host, f"-o StrictHostKeyChecking=no {host.address}") == host.name
        made = module()
        done = steps.check(place(host), made.steps(cluster(lab.hosts), 0)[0])
        [[step]] = made.join(cluster(lab.hosts), [[done.fact]])
        done = steps.apply(place(host), step)
        assert done.status == 1
        assert "does not log in to h00 itself" in done.err.splitlines()[-1]
        undo(lab.hosts, made)


DAMAGES = (
    "rm .ssh/config",
    "sed -i 1,2d .ssh/config.d/mesh-pod",
    ": >.ssh/authorized_keys",
    "rm .ssh/mesh-pod-????????",
    "sed -i 1d .ssh/mesh-pod-*.known_hosts",
    "rm -r .mesh",
)


def test_damaged_keys_are_made_anew(hosts: Sequence[TestHost]) -> None:
    """After each damage all hosts have new keys; the host that was damaged reaches all, and is reached by all."""
    pair = hosts[:2]
    before = found(pair[0])
    set_up(pair, module())
    for damage in DAMAGES:
        pair[1].script(damage)
        assert set_up(pair, module()) == 2, damage
        assert_each_reaches_each(pair)
        assert pair[0].script("ls .ssh/mesh-pod-????????").count("\n") == 1
    undo(pair, module())
    assert found(pair[0]) == before


def test_a_new_host_key_and_a_new_host_make_new_keys(hosts: Sequence[TestHost]) -> None:
    assert set_up(hosts[:2], module()) == 2
    assert set_up(hosts, module()) == 3
    assert_each_reaches_each(hosts)
    hosts[1].new_host_key()
    try:
        assert set_up(hosts, module()) == 3
        assert_each_reaches_each(hosts)
    finally:
        hosts[1].old_host_key()


def test_two_clusters_with_the_same_hosts(hosts: Sequence[TestHost]) -> None:
    pair = hosts[:2]
    before = [found(host) for host in pair]
    assert set_up(pair, module()) == 2
    one = [found(host) for host in pair]
    assert set_up(pair, module(name="pod-b")) == 2
    assert set_up(pair, module()) == 0
    undo(pair, module(name="pod-b"))
    assert [found(host) for host in pair] == one
    assert_each_reaches_each(pair)
    undo(pair, module())
    assert [found(host) for host in pair] == before


def test_identities_are_copied_and_said(hosts: Sequence[TestHost]) -> None:
    before = [found(host) for host in hosts]
    entry = "Host git.example\n    IdentityFile ~/.ssh/for_git\n    User git\n"
    identity = Identity(private_key="/keys/id", public_key="/keys/pub", config_entry=entry)
    made = module(identity, id=b"secret\n", pub=b"public\n")
    done = [steps.apply(place(host), made.steps(cluster(hosts), node)[1]) for node, host in enumerate(hosts)]
    assert [ran.out for ran in done] == ["your private key id is on 3 hosts\n", "", ""]
    assert set_up(hosts, made) == 3
    assert (
        hosts[2].script("stat -c '%a %n' .ssh/for_git .ssh/for_git.pub") == "600 .ssh/for_git\n644 .ssh/for_git.pub\n"
    )
    shown = hosts[1].script("ssh -G git.example")
    assert "identityfile ~/.ssh/for_git\n" in shown
    assert "user git\n" in shown
    assert set_up(hosts, made) == 0
    undo(hosts, made)
    assert [found(host) for host in hosts] == before


def test_another_file_of_the_name_is_not_overwritten(hosts: Sequence[TestHost]) -> None:
    made = module(Identity(private_key="/keys/id_rsa"), id_rsa=b"mine\n")
    hosts[0].script("mkdir -m 700 .ssh; echo theirs >.ssh/id_rsa")
    hosts[1].script("mkdir -m 700 .ssh; umask 077; echo mine >.ssh/id_rsa")
    step = made.steps(cluster(hosts), 0)[1]
    done = steps.settle(place(hosts[0]), step)
    assert done.status == 1
    assert "~/.ssh/id_rsa on h00" in done.err.splitlines()[-1]
    assert hosts[0].script("cat .ssh/id_rsa") == "theirs\n"
    assert steps.check(place(hosts[1]), step).status == 0
    undo(hosts, made)
    assert hosts[1].script("cat .ssh/id_rsa") == "mine\n"
    assert hosts[0].script("cat .ssh/id_rsa") == "theirs\n"


def test_hosts_that_share_a_home() -> None:
    with Lab(2, sshd=[BOTH_FILES], shared_home=True) as lab:
        before = found(lab.hosts[0])
        assert set_up(lab.hosts, module()) == 2
        assert_all_reach_all(lab.hosts)
        assert set_up(lab.hosts, module()) == 0
        undo(lab.hosts, module())
        assert found(lab.hosts[0]) == before


def test_a_plain_user_and_another_port() -> None:
    with Lab(2, sshd=[BOTH_FILES, "Port 22", "Port 2200"], user="someone") as lab:
        assert lab.hosts[0].user == "someone"
        user = [_as_user(host) for host in lab.hosts]
        made, facts = module(), []
        for host in user:
            done = steps.check(host, made.steps(cluster(lab.hosts), 0)[0])
            assert done.status == 0, done
            facts.append([done.fact])
        assert all("port 2200" in fact and "user someone" in fact for [fact] in facts), facts
        for host, [step] in zip(user, made.join(cluster(lab.hosts), facts), strict=True):
            steps.write(host, step.files)
            lab.hosts[user.index(host)].run("chown", "-R", "someone:someone", "/home/someone")
            done = steps.run(host, step.apply)
            assert done.status == 0, done
            assert steps.check(host, step).status == 0
        shown = steps.run(user[0], "ssh -o BatchMode=yes node-1 'id -un; hostname; echo $SSH_CONNECTION'")
        assert shown.out.split()[:2] == ["someone", "h01"]
        assert shown.out.split()[-1] == "2200"


def _as_user(host: TestHost) -> Place:
    enter = ("nsenter", "-t", str(host.pid), "-m", "-u", "-i", "-n", "-p", "-w", "--")
    become = ("setpriv", "--reuid=someone", "--regid=someone", "--clear-groups", "--")
    variables = {"PATH": PATH, "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 2200"}
    return Place(host.path(host.home), variables, (*enter, *become), host.home)


# ---- through mesh


def test_mesh_sets_up_keys_once_and_undoes_them(home: Home, three: Lab, hosts: Sequence[TestHost]) -> None:
    home.clusters(three.cluster_yaml())
    home.trust(three)
    hosts[0].script(f"mkdir -m 700 .ssh; printf '%s' '{CONFIG}' >.ssh/config")
    home.files(mesh__yaml="modules: [ssh]\nssh: {}\n", reach__sh=REACH)
    done = home.mesh("setup", "pod")
    assert done.status == 0, done.err
    state = [found(host).count("mesh-pod-") for host in hosts]
    keys = [host.script("cat .ssh/mesh-pod-????????") for host in hosts]
    assert len(set(keys)) == 1
    done = home.mesh(
        "run", "pod", "bash", "reach.sh", *(host.address for host in hosts), *(host.name for host in hosts)
    )
    assert done.status == 0, done.err
    assert {line.partition(" ")[2] for line in done.lines} == {"h00 h01 h02 h00 h01 h02"}, done
    assert home.mesh("run", "pod:0-1", "true").status == 0
    assert [host.script("cat .ssh/mesh-pod-????????") for host in hosts] == keys
    assert [found(host).count("mesh-pod-") for host in hosts] == state
    undone = home.mesh("setup", "--undo", "pod")
    assert undone.status == 0, undone.err
    for host in hosts:
        assert "mesh-pod" not in found(host)
        assert not host.path("/root/.mesh/ssh").exists()
    assert hosts[0].path("/root/.ssh/config").read_text() == CONFIG
    assert not hosts[1].path("/root/.ssh").exists()


def test_mesh_copies_identities_and_names_them(home: Home, three: Lab, hosts: Sequence[TestHost]) -> None:
    home.clusters(three.cluster_yaml())
    home.trust(three)
    (home.path / ".ssh/id_demo").write_bytes(b"secret\n")
    home.files(mesh__yaml="modules: [ssh]\nssh: {identities: [{private_key: ~/.ssh/id_demo}]}\n")
    done = home.mesh("setup", "pod")
    assert done.status == 0, done.err
    assert hosts[2].script("cat .ssh/id_demo; stat -c %a .ssh/id_demo") == "secret\n600\n"
    assert "your private key id_demo is on 3 hosts" in done.out.decode() + done.err + _logs(home)
    assert "secret" not in _logs(home)
    assert home.mesh("setup", "--undo", "pod").status == 0
    assert not any(host.path("/root/.ssh").exists() for host in hosts)


def _logs(home: Home) -> str:
    files = [file for file in home.path.rglob("logs/ssh-*.log") if file.is_file()]
    return "".join(file.read_text() for file in files)
