"""TLaunch's run_cmd: every host runs a command and sends its output to the first one, as for the state of GPUs.

python3 run_cmd.py   # after the names of your hosts have been put in
"""

import subprocess
import time

from mesh.launchpad import lp_ssh

HOSTS = ["host1", "host2"]
COMMAND = ["sh", "-c", "command -v nvidia-smi >/dev/null && nvidia-smi || echo no GPUs"]


class Worker:
    """Sends the output of the command until the program is stopped."""

    def __init__(self, host, client):
        self.host, self.client = host, client

    def run(self):
        output = subprocess.run(COMMAND, stdout=subprocess.PIPE, text=True, check=True).stdout
        while not lp_ssh.wait_for_stop(0):
            self.client.send_info({self.host: output.strip()})
            time.sleep(0.05)


class Master:
    """Prints the output of every host, and stops the program."""

    def __init__(self, client):
        self.client = client

    def run(self):
        found = {}
        while set(found) != set(HOSTS):
            found.update(self.client.get_info())
        for host, output in sorted(found.items()):
            print(f"{host}: {output}", flush=True)
        lp_ssh.stop()


def main():
    program = lp_ssh.Program("run_cmd")
    client = program.add_node(lp_ssh.TransmitNode().to_host(HOSTS[0]), label="transmit")
    program.add_node(lp_ssh.SSHNode(Master, client).to_host(HOSTS[0]), label="master")
    for host in HOSTS:
        program.add_node(lp_ssh.SSHNode(Worker, host, client).to_host(host), label=host + "_worker")
    lp_ssh.launch(program)


if __name__ == "__main__":
    main()
