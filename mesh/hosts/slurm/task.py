"""The program on each node of an allocation, as text: it has a node of the switchboard in it."""

# Runs on each node, as a task of the step: reads addresses, key and program from its standard input.
TASK = """\
import base64, json, os, shutil, socket, stat, sys
given = json.loads(sys.stdin.readline())
if not given["watches"]:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
held = os.memfd_create("switchboard")
os.write(held, base64.b64decode(given["program"]))
sys.path.insert(0, "/proc/self/fd/%d" % held)
name, first = os.environ["SLURMD_NODENAME"], os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
job = os.environ.get("SLURM_JOB_ID", "")
link = given["local"]
base = os.environ.get("SLURM_TMPDIR", "") if link else ""
own = os.path.join(base, "mesh") if base else link
def is_mine(path):
    found = os.lstat(path)
    return found.st_uid == os.getuid() and (stat.S_ISLNK(found.st_mode) or stat.S_IMODE(found.st_mode) == 0o700)
if link:
    if os.path.lexists(link) and is_mine(link):
        os.unlink(link) if os.path.islink(link) else shutil.rmtree(link)
    os.makedirs(own, 0o700, exist_ok=bool(base))
if base:
    os.symlink(own, link)
for one in [one for one in os.environ if one.startswith(tuple(given["hidden"]))]:
    del os.environ[one]
os.environ["HOSTNAME"] = socket.gethostname()
from mesh.agent.switchboard.node import Node
from mesh.agent.switchboard.watch import Watch
from mesh.agent.switchboard.ranks import signal_ranks
addresses = [(one, given["port"]) for one in [first] + given["addresses"] if one]
node = Watch(name, job) if given["watches"] else Node(addresses, name, given["key"])
def act(text):
    word, _, rest = text.partition(" ")
    if word == "signal":
        signal_ranks(int(rest), os.getpid())
    elif word == "begin":
        node.begin(**json.loads(rest))
node.on_notice = act
try:
    node.run()
finally:
    if base:
        os.unlink(link)
    if link:
        shutil.rmtree(own, ignore_errors=True)
"""
