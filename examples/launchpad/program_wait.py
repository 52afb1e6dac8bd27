"""Four ways to notice the end of a program, and a launch that waits for it.

MESH_CLUSTER=pod python3 program_wait.py
"""

import sys
import threading
import time

from mesh import launchpad as lp


def looks():
    while not lp.wait_for_stop(0.1):
        pass
    print("looks: stopped", flush=True)


def waits():
    lp.wait_for_stop()
    print("waits: stopped", flush=True)


def event():
    lp.stop_event().wait()
    print("event: stopped", flush=True)


def handler():
    stopped = threading.Event()
    lp.register_stop_handler(stopped.set)
    stopped.wait()
    print("handler: stopped", flush=True)


def stops():
    time.sleep(2)
    lp.stop()


def main():
    program = lp.Program("program_wait")
    for function in (looks, waits, event, handler, stops):
        program.add_node(lp.CourierNode(function), label=function.__name__)
    controller = lp.launch(program, launch_type=sys.argv[1] if sys.argv[1:] else None)
    controller.wait()
    print("Program finished.", flush=True)


if __name__ == "__main__":
    main()
