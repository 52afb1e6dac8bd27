"""A consumer that calls two producers at the same time, by futures, and stops the program.

MESH_CLUSTER=pod python3 consumer_producers.py
"""

import sys

from mesh import launchpad as lp


class Producer:
    """Squares a number."""

    def work(self, number):
        return number * number


class Consumer:
    """Asks each producer in turn, and waits for all results."""

    def __init__(self, producers):
        self._producers = producers

    def run(self):
        futures = [self._producers[number % len(self._producers)].futures.work(number) for number in range(10)]
        print("Results:", [future.result() for future in futures], flush=True)
        lp.stop()


def main():
    program = lp.Program("consumer_producers")
    with program.group("producer"):
        producers = [program.add_node(lp.CourierNode(Producer)) for _ in range(2)]
    program.add_node(lp.CourierNode(Consumer, producers=producers), label="consumer")
    lp.launch(program, launch_type=sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
