"""Launchpad's first example with another import line: a node that prints a line.

python3 hello_world.py                    # in a thread of this process
MESH_CLUSTER=pod python3 hello_world.py   # on a host of the cluster
"""

import sys

from mesh import launchpad as lp


class HelloWorld:
    """Prints a line and ends."""

    def run(self):
        print("Hello World!!!", flush=True)


def main():
    program = lp.Program("hello_world")
    program.add_node(lp.PyClassNode(HelloWorld), label="hello_printer")
    lp.launch(program, launch_type=sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
