"""The actions that carry out the orders of the decisions, each by the part that can."""

from __future__ import annotations

import os
import time

from mesh.agent.base.errors import why
from mesh.agent.base.light import partial
from mesh.agent.process import cgroups
from mesh.agent.process.processes import descendants
from mesh.agent.run import orders
from mesh.agent.run.facts import CleanedUp, CleanUpFailed, Relayed
from mesh.protocol import answers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.base.background import Answer
    from mesh.agent.loop import Loop
    from mesh.agent.port import Port
    from mesh.agent.run.orders import Order
    from mesh.agent.run.parts import Parts


class Actions:
    """The actions, each for a class of orders."""

    def __init__(self, port: Port, loop: Loop, parts: Parts) -> None:
        """Take the parts that act."""
        self._port, self._loop, self._parts = port, loop, parts
        self.is_cleaning = False  # the clean-up is under way

    def table(self) -> dict[type[Order], Callable[..., None]]:
        """Return the action for each class of orders."""
        parts, processes = self._parts, self._parts.processes
        return {
            orders.SendSignal: lambda order: processes.signal(order.signal, order.grace),
            orders.NotifyNodes: self._notify_nodes,
            orders.ReportProgramStopped: self._report_program_stopped,
            orders.KillBy: lambda order: processes.kill_by(order.seconds),
            orders.BeginEnd: lambda order: processes.order(order.signal, order.grace),
            orders.ReleasePrerun: self._release_prerun,
            orders.RemoveScripts: self._remove_scripts,
            orders.CleanUp: self._clean_up,
            orders.ReportFailure: self._report_failure,
            orders.ReportStopped: lambda order: self._port.send_now(answers.Stopped(time=time.time())),
            orders.AnnounceEnd: self._announce_end,
            orders.ReportWait: self._report_wait,
            orders.ReleaseOutput: lambda order: parts.out.release(),
            orders.DropChannel: lambda order: parts.client.disconnect(),
            orders.Detach: lambda order: parts.detachment.detach(),
            orders.ConfirmDetached: self._confirm_detached,
            orders.StayAttached: self._stay_attached,
            orders.KeepJournal: lambda order: parts.detachment.keep(processes.is_empty()),
            orders.SendNews: lambda order: parts.peers.send(order.news),
            orders.ReportDone: lambda order: parts.peers.report_done(),
            orders.NoteSilence: lambda order: self._note_owner({"ends_by": time.time() + order.seconds}),
            orders.NoteReturn: lambda order: self._note_owner({}),
            orders.ClearRequests: lambda order: parts.requests.clear(),
            orders.StopSync: self._stop_sync,
            orders.CollectChildren: lambda order: self._loop.collect_children(),
            orders.DropSync: lambda order: parts.sync.drop(),
            orders.RelayRest: self._relay_rest,
            orders.Leave: self._leave,
        }

    # ---- reports

    def _report_failure(self, order: orders.ReportFailure) -> None:
        self._port.send(
            answers.Failed(
                step=order.step, message=order.message, hint=order.hint, time=time.time(), signal=order.killed_by
            )
        )

    def _report_program_stopped(self, order: orders.ReportProgramStopped) -> None:
        from mesh.protocol.nodes import ProgramStopped

        self._port.send_now(ProgramStopped(rank=order.rank, code=order.code, why=order.why, time=time.time()))

    def _notify_nodes(self, order: orders.NotifyNodes) -> None:
        if self._parts.nodes is not None:
            self._parts.nodes.stop(order.cause)

    def _announce_end(self, order: orders.AnnounceEnd) -> None:
        from mesh.protocol.journal import EndOrdered

        ended = EndOrdered(cause=order.cause, signal=order.signal, time=time.time())
        self._port.send(ended.replaced(**order.more))

    def _report_wait(self, order: orders.ReportWait) -> None:
        self._port.send_now(answers.Notice(text=order.text, seconds=order.seconds))

    # ---- a run without its client

    def _confirm_detached(self, order: orders.ConfirmDetached) -> None:
        from mesh.agent.detached.logins import ends_with, user_name

        self._port.send_now(answers.Detached(ends_with=ends_with(user_name())))

    def _stay_attached(self, order: orders.StayAttached) -> None:
        text = f"cannot go on by itself: {order.reason}"
        self._port.send_now(answers.Notice(text=text, seconds=0))
        self._port.send_now(answers.StaysAttached())

    def _note_owner(self, more: dict[str, object]) -> None:
        try:
            self._parts.locking.machine_lock.change_owner({**(self._parts.begin.owner or {}), **more})
        except OSError:  # it stays as it was
            pass

    # ---- the end

    def _release_prerun(self, order: orders.ReleasePrerun) -> None:
        if self._parts.prerun is not None:
            self._parts.prerun.release()

    def _remove_scripts(self, order: orders.RemoveScripts) -> None:
        self._parts.containers.stop(0.0)

    def _stop_sync(self, order: orders.StopSync) -> None:
        if not self._parts.requests.is_waiting:  # a process of the sync ends by the signal for all
            self._parts.sync.drop()

    def _clean_up(self, order: orders.CleanUp) -> None:
        parts = self._parts
        stop = partial(parts.containers.stop, order.grace)
        workspace = parts.state.workspaces if parts.share else ""
        work = partial(clean_up, stop, workspace, list(order.busy), order.patience)
        self.is_cleaning = True
        try:
            background = self._port.background(work, self._cleaned_up)
        except OSError as error:
            self._port.post(CleanUpFailed(why(error)))
        else:
            parts.processes.ours = background.pid

    def _cleaned_up(self, answer: Answer) -> None:
        left = answer.get("left", [answer.get("error")])
        assert isinstance(left, list)
        self._port.post(CleanedUp(tuple(map(str, left))))

    def _relay_rest(self, order: orders.RelayRest) -> None:
        self._parts.ranks.relay_rest()
        self._port.post(Relayed())

    def _leave(self, order: orders.Leave) -> None:
        parts = self._parts
        parts.locking.withdraw()
        left = list(order.left)
        stays = [process.described() for process in descendants(os.getpid())] if order.stays else []
        if parts.out.is_behind:
            self._port.send_now(answers.Clear(left=left, stays=stays))
        if order.is_reported:
            self._port.send(answers.Gone(left=left, stays=stays))
        cgroups.remove(parts.group.path)
        parts.locking.release()  # the client may fetch the rest of the output much later
        parts.client.flush()


def clean_up(
    stop_containers: Callable[[], list[str]], workspace: str, busy: list[str], patience: float
) -> dict[str, object]:
    """Stop containers, wait until devices are free, and remove the copy that a run had for itself."""
    left = stop_containers()
    if busy:
        from mesh.agent.run import devices

        left += devices.wait_until_free(busy, patience)
    if workspace:
        import shutil

        shutil.rmtree(workspace, ignore_errors=True)
        if os.path.exists(workspace):
            left.append(f"cannot remove {workspace}")
    return {"left": left}
