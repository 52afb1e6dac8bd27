"""Commands that run something on every host, or bring files there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from json import dumps

from msgspec.structs import asdict

from mesh import api
from mesh.cli import dailyoptions as d
from mesh.cli import options as o
from mesh.cli.command import COMMANDS, Takes, command
from mesh.cli.options import Given
from mesh.cli.reports import explained, listed
from mesh.cli.speech import complain, say, show
from mesh.config.settings import given_command
from mesh.core.errors import MeshError, UsageError

GROUP = "Run"


@command(
    "run",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(
        ("mesh run local python3 train.py", "two ranks here"),
        ("mesh run -d pod python3 train.py --lr 1e-3", "later words are yours; `mesh attach` comes back"),
        ("mesh run --hosts 'tpu-[0-3]' pod 'make && ./train'", "quote patterns; one word is for bash"),
        ("mesh run --role 'a@tpu-0: ./actor' --role 'b@tpu-[1-3]: ./learner' pod", "commands by hosts"),
    ),
)
def run(given: Given) -> int:
    """Run a command on every rank, in a copy of this directory."""
    silent = given.look().terse or given[o.JSON]
    return _start(given, partial(api.run, report=(lambda text: None) if silent else say))


@command(
    "exec",
    GROUP,
    "CLUSTER COMMAND [ARG ...]",
    takes=Takes.COMMAND,
    examples=(
        ("mesh exec pod nvidia-smi", "on every host, whatever runs there"),
        ("mesh exec pod 'df -h / | tail -1'", "one word with spaces is for bash"),
        ("mesh exec --diff pod pip freeze", "which hosts have something else than most"),
        ("mesh exec -- nvidia-smi", "on MESH_CLUSTER, else `default:` of mesh.yaml"),
    ),
)
def execute(given: Given) -> int:
    """Run a command without sync, prerun and lock: safe beside a run."""
    return _start(given, api.exec)


def _shown_while_on(given: Given, options: api.Options) -> str:
    """Return --output: with --diff nothing is shown before the end. Raises UsageError."""
    if not given[d.DIFF]:
        return given[o.SHOWN]
    others = {"--json": given[o.JSON], "--detach": options.detach, "--output": given[o.SHOWN]}
    if other := next((flag for flag, is_given in others.items() if is_given), ""):
        raise UsageError(f"--diff shows output once all ranks have ended: leave out {other}")
    return "none"


def _show_differences(result: api.RunResult) -> None:
    """Show how the output of ranks differs from that of most. Raises MeshError if it cannot be read."""
    from mesh.core.outcome import Cause
    from mesh.rundir.differing import differences, groups_of, summary

    if result.cause in (Cause.OUTPUT_CLOSED, Cause.SIGNAL):
        return
    try:
        groups = groups_of(result.ranks)
        show(differences(groups))
    except OSError as error:
        raise MeshError(f"cannot read the logs of run {result.run}: {error}", hint=str(result.directory)) from error
    say(summary(groups))


def _start(given: Given, function: Callable[..., api.RunResult]) -> int:
    options = given.options()
    output = _shown_while_on(given, options)
    words: Sequence[str] = given.words
    if not options.roles:
        if not given.words:
            from mesh.cli.habits import cluster_left_out  # only for mistakes

            if meant := cluster_left_out(given):
                raise meant
        words = given_command(given.words, COMMANDS[given.command].usage, launcher=options.launcher)
    if given[o.DRY_RUN]:
        show(api.plan(words, cluster=given[o.CLUSTER], options=options, clusters_file=given[o.CLUSTERS]))
        return 0
    look = given.look()
    if given.typed and not given[o.JSON] and not options.roles and not look.terse:
        from mesh.api.choosing import default_cluster, masked
        from mesh.cli.habits import notices

        for notice in notices(given.typed, given[o.CLUSTER] or default_cluster()[0]):
            say(masked(notice, options.env_files))
    result = function(
        words,
        cluster=given[o.CLUSTER],
        options=options,
        clusters_file=given[o.CLUSTERS],
        output=output,
        fold=given[o.FOLD],
        label=given[o.LABEL],
        json=given[o.JSON],
        look=look,
        typed=given.typed,
    )
    if given[d.DIFF]:
        _show_differences(result)
    if options.detach and not given[o.JSON]:
        _show_detached(result)
    return result.exit_code


def _show_detached(result: api.RunResult) -> None:
    """Print the id of a run that goes on without its client, for scripts."""
    from mesh.core.outcome import Cause

    if result.cause is Cause.DETACHED:
        show([result.run])


@command(
    "setup",
    "Hosts",
    "CLUSTER",
    examples=(
        ("mesh setup pod", "on every host of pod"),
        ("mesh setup --force pod:3", "one host, and what `unless` would skip too"),
        ("mesh setup --undo pod", "remove keys, mounts and environments that modules have set up"),
    ),
)
def setup(given: Given) -> int:
    """Prepare hosts by the `commands:` and modules of mesh.yaml."""
    result = api.setup(
        cluster=given[o.CLUSTER],
        options=given.options(),
        force=given[o.FORCE],
        undo=given[o.UNDO],
        clusters_file=given[o.CLUSTERS],
        json=given[o.JSON],
        look=given.look(),
    )
    return result.exit_code


@command(
    "push",
    "Files",
    "CLUSTER [--watch] | --list | --explain PATH",
    examples=(
        ("mesh push pod --watch", "again whenever a file changes, until Ctrl-C"),
        ("mesh push --list", "what would be sent, the biggest first"),
        ("mesh push --explain data/x.bin", "why a path is sent or not"),
    ),
)
def push(given: Given) -> int:
    """Send the working directory to every host, and start nothing."""
    if (given[o.EXPLAIN] != "") + given[o.LIST] + given[o.WATCH] > 1:
        raise UsageError("--list, --explain and --watch are three things: name one of them")
    json, where = given[o.JSON], given[o.CLUSTER]
    if path := given[o.EXPLAIN]:
        found = api.explain(path)
        show([dumps(asdict(found))] if json else explained(path, found))
        return 0
    if given[o.LIST]:
        files = api.list_workspace()
        show([dumps([asdict(file) for file in files])] if json else listed(files))
        return 0
    options, file, look = given.options(), given[o.CLUSTERS], given.look()
    if given[o.WATCH]:
        notice = (lambda text: None) if look.terse else say
        return api.watch(
            cluster=where, options=options, clusters_file=file, json=json, look=look, say=notice, complain=complain
        )
    return api.sync(
        cluster=where, options=options, clusters_file=file, json=json, look=look, typed=given.typed
    ).exit_code


@command(
    "pull",
    "Files",
    "CLUSTER|RUN PATH ...",
    takes=Takes.PATHS,
    examples=(
        ("mesh pull pod 'checkpoints/*.pt' train.log", "into pulled/rank-0000/ and so on"),
        ("mesh pull pod '~/profile' --into /data/run7", "paths outside of the workspace come whole"),
        ("mesh pull lr3 checkpoints", "from the hosts and the workspace of a run"),
    ),
)
def pull(given: Given) -> int:
    """Bring files back from every host."""
    result = api.pull(
        given.words,
        cluster=given[o.CLUSTER],
        into=given[o.INTO],
        options=given.options(),
        clusters_file=given[o.CLUSTERS],
        json=given[o.JSON],
        look=given.look(),
        typed=given.typed,
    )
    return result.exit_code
