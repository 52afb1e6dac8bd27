"""TLaunch's tree: leaves send to the transmit node of a middle host, which sends on to the root.

python3 tree_type.py   # after the names of your hosts have been put in
"""

import time

from mesh.launchpad import lp_ssh

ROOT, MIDDLE, LEAVES = "host1", "host2", ["host3", "host4"]


class Worker:
    """Sends the name of its host until the program is stopped."""

    def __init__(self, host, client):
        self.host, self.client = host, client

    def run(self):
        while not lp_ssh.wait_for_stop(0):
            self.client.send_info({self.host: 1})
            time.sleep(0.05)


class Middle:
    """Sends on to the root what its own transmit node has."""

    def __init__(self, own, root):
        self.own, self.root = own, root

    def run(self):
        while not lp_ssh.wait_for_stop(0):
            self.root.send_info(self.own.get_info())


class Root:
    """Reads until it has seen every leaf, and stops the program."""

    def __init__(self, client, wanted):
        self.client, self.wanted = client, wanted

    def run(self):
        seen = set()
        while seen != self.wanted:
            seen |= set(self.client.get_info())
        print("root has seen", sorted(seen), flush=True)
        lp_ssh.stop()


def main():
    program = lp_ssh.Program("tree_type")
    root = program.add_node(lp_ssh.TransmitNode().to_host(ROOT), label=ROOT)
    middle = program.add_node(lp_ssh.TransmitNode().to_host(MIDDLE), label=MIDDLE)
    program.add_node(lp_ssh.SSHNode(Root, root, set(LEAVES)).to_host(ROOT), label=ROOT)
    program.add_node(lp_ssh.SSHNode(Middle, middle, root).to_host(MIDDLE), label=MIDDLE)
    for leaf in LEAVES:
        program.add_node(lp_ssh.SSHNode(Worker, leaf, middle).to_host(leaf), label=leaf)
    lp_ssh.launch(program)


if __name__ == "__main__":
    main()
