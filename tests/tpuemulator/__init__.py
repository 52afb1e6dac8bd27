"""A stand-in for the Cloud TPU API that makes and deletes machines. Nothing here is Google's service.

    python -m tests.tpuemulator DIRECTORY [--lab HOSTS | --hosts DIRECTORY]

It is a process of its own, so that clients that are killed do not matter to it. It serves v2alpha1 by gRPC, and v2 (the
list of nodes) by REST, at one port. Tests control it by HTTP at the same port. `journal.jsonl` has every creation and
deletion that took effect, and is the oracle of the tests: nothing that a client reports counts.

``cloud``    nodes, queued resources, quota, time and preemption; no network
``faults``   answers that fail, are lost after the work was done, have holes, or are from the future
``service``  gRPC, REST and control at one port
``hosts``    machines behind addresses: namespaces with sshd, or directories
``client``   what tests hold: start it, set it, preempt, read the journal
"""
