"""TLaunch's net: every host has a transmit node, and every worker sends to all of them.

python3 net_type.py   # after the names of your hosts have been put in
"""

import time

from mesh.launchpad import lp_ssh

HOSTS = ["host1", "host2"]


class Worker:
    """Sends to all hosts, and reads from its own until it has seen every host."""

    def __init__(self, host, clients, finished):
        self.host, self.clients, self.finished = host, clients, finished

    def run(self):
        seen = set()
        while not lp_ssh.wait_for_stop(0):
            for client in self.clients.values():
                client.send_info({self.host: 1})
            seen |= set(self.clients[self.host].get_info())
            if seen == set(HOSTS):
                self.finished.send_info({self.host: sorted(seen)})
            time.sleep(0.05)


class Root:
    """Waits until every host has seen all others, and stops the program."""

    def __init__(self, finished):
        self.finished = finished

    def run(self):
        found = {}
        while set(found) != set(HOSTS):
            found.update(self.finished.get_info())
        for host, seen in sorted(found.items()):
            print(host, "has seen", seen, flush=True)
        lp_ssh.stop()


def main():
    program = lp_ssh.Program("net_type")
    clients = {host: program.add_node(lp_ssh.TransmitNode().to_host(host), label=host) for host in HOSTS}
    finished = program.add_node(lp_ssh.TransmitNode().to_host(HOSTS[0]), label="finished")
    program.add_node(lp_ssh.SSHNode(Root, finished).to_host(HOSTS[0]), label="root")
    for host in HOSTS:
        node = lp_ssh.SSHNode(Worker, host, clients, finished).to_host(host)
        program.add_node(node, label=host + "_worker")
    lp_ssh.launch(program)


if __name__ == "__main__":
    main()
