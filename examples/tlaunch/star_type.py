"""TLaunch's star: the workers of all hosts send to one transmit node, from which the root reads.

python3 star_type.py   # after the names of your hosts have been put in
"""

import time

from mesh.launchpad import lp_ssh

HOSTS = ["host1", "host2"]


class Worker:
    """Sends the name of its host until the program is stopped."""

    def __init__(self, host, client):
        self.host, self.client = host, client

    def run(self):
        while not lp_ssh.wait_for_stop(0):
            self.client.send_info({self.host: 1})
            time.sleep(0.05)


class Root:
    """Reads until it has seen every host, and stops the program."""

    def __init__(self, client, wanted):
        self.client, self.wanted = client, wanted

    def run(self):
        seen = set()
        while seen != self.wanted:
            seen |= set(self.client.get_info())
        print("root has seen", sorted(seen), flush=True)
        lp_ssh.stop()


def main():
    program = lp_ssh.Program("star_type")
    client = program.add_node(lp_ssh.TransmitNode().to_host(HOSTS[0]), label="transmit")
    program.add_node(lp_ssh.SSHNode(Root, client, set(HOSTS)).to_host(HOSTS[0]), label="root")
    for host in HOSTS:
        program.add_node(lp_ssh.SSHNode(Worker, host, client).to_host(host), label=host + "_worker")
    lp_ssh.launch(program)


if __name__ == "__main__":
    main()
