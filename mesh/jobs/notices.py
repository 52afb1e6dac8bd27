"""Notices: which notifications a change of a job calls for, and how one is sent.

They are written to the store in the transaction of the change, so that none is lost when the steward is killed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, json
from msgspec.structs import asdict

from mesh.core.job import Format, NotifySpec
from mesh.core.notify import Moment
from mesh.core.sending import Sending, post
from mesh.jobs.events import AnyEvent, CostSeen, StraysSeen
from mesh.jobs.overdue import overdue
from mesh.jobs.values import Job, State

NOTICE_TIMEOUT_S = 10.0
NOTICE_TRIES = 3
MOMENTS = {
    State.SUCCEEDED: (Moment.END, Moment.DONE),
    State.FAILED: (Moment.END, Moment.FAILED),
    State.STOPPED: (Moment.END,),
    State.HELD: (Moment.HELD,),
}


class News(Struct, frozen=True, kw_only=True):
    """The change that a notification reports: the JSON that a command or webhook gets."""

    job: int
    name: str
    state: str
    before: str
    reason: str
    attempt: int
    exit_code: int | None
    user: str
    time: float
    cost: float | None = None  # of its machines, with news about the cost

    @property
    def text(self) -> str:
        """The change in one line.

        >>> News(job=4, name="lr", state="held", before="queued", reason="full disk", attempt=1, exit_code=None,
        ...     user="me", time=0.0).text
        'mesh: job 4 lr: held (full disk)'
        """
        return f"mesh: job {self.job} {self.name}: {self.state}{f' ({self.reason})' if self.reason else ''}"


class Notice(Struct, frozen=True, kw_only=True):
    """A notification that is to be sent."""

    to: NotifySpec
    news: News


def notices(before: Job, job: Job, event: AnyEvent) -> list[Notice]:
    """Return the notifications that a change of a job calls for. A preemption is one in whatever state it leaves it."""
    moments = MOMENTS.get(job.state, ()) if before.state is not job.state else ()
    if job.preemptions > before.preemptions:
        moments = (*moments, Moment.PREEMPTED)
    cost = event.amount if isinstance(event, CostSeen) else None
    if job.is_warned and not before.is_warned:
        moments = (*moments, Moment.COST)
    is_late = sum(one.reports for one in job.generations) > sum(one.reports for one in before.generations)
    if is_late:
        moments = (*moments, Moment.STUCK)
    if set(job.strays) - set(before.strays):
        moments = (*moments, Moment.LEFT)
    news = News(
        job=job.id,
        name=job.spec.name,
        state=job.state.value,
        before=before.state.value,
        reason=_late_words(job, event.time) if is_late else _reason(job, event),
        attempt=job.attempt,
        exit_code=job.exit_code,
        user=job.spec.user,
        time=event.time,
        cost=cost,
    )
    return [Notice(to=to, news=news) for to in job.spec.notify if any(moment in moments for moment in to.on)]


def _reason(job: Job, event: AnyEvent) -> str:
    """Return what a notification is about: what is new beside the state, or the reason of the state."""
    match event:
        case CostSeen(amount=amount, is_reached=False):
            return f"{amount:.2f} of its cost limit {job.spec.cost_limit * job.allowances:g} is spent"
        case StraysSeen(names=names) if names:
            return f"{', '.join(names)} has no owner and may cost money: `mesh job audit` lists it"
    return job.reason


def _late_words(job: Job, time: float) -> str:
    late = overdue(job)
    listed, since = ", ".join(one.name for one in late), min(one.condemned for one in late)
    minutes = (time - since) / 60
    return f"{listed} is not gone {minutes:.0f} min after its deletion began; mesh serve repeats the deletion"


def send(notice: Notice, environ: Mapping[str, str], limit: float = NOTICE_TIMEOUT_S) -> str:
    """Send a notification; return why that failed, "" if it did not."""
    to, news = notice.to, notice.news
    body = json.encode({"text": news.text} if to.format is Format.SLACK else news)
    if to.command:
        words = [_filled(word, news) for word in to.command]
        problem = Sending().run(words, body, limit)
        return f"{words[0]}: {problem}" if problem else ""
    url = environ.get(to.url_env, "")
    problem = post(url, body, limit) if url else "is not set where the steward runs"
    return f"{to.url_env}: {problem}" if problem else ""


def _filled(word: str, news: News) -> str:
    """Return a word of a command with the fields in braces filled in; other braces stay.

    >>> news = News(job=4, name="lr", state="held", before="", reason="", attempt=1, exit_code=None, user="", time=0.0)
    >>> _filled("{job} {state} {other}", news)
    '4 held {other}'
    """
    for name, value in {**asdict(news), "text": news.text}.items():
        word = word.replace(f"{{{name}}}", "" if value is None else str(value))
    return word
