"""Reader of task files: repositories, defaults, and tasks by accelerator. All problems of a file are found at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mesh.config import yamlfile
from mesh.config.interpolation import resolved
from mesh.config.project import VARIABLE
from mesh.config.section import Section
from mesh.config.yamlfile import Problems
from mesh.core.job import PRIORITY_LIMIT
from mesh.core.naming import is_name
from mesh.core.tasks import USUAL_BACKOFF_S, USUAL_MAX_JOBS, USUAL_MAX_RETRIES, TaskList, TaskSpec

KEYS = ("repos", "defaults", "accelerators")
REPO_KEYS = ("url", "branch")
# Each may stand in `defaults:`, beside `tasks:` of an accelerator, and in a task; the nearest one holds.
SHARED_KEYS = ("env", "repo", "branch", "workdir", "zone", "workers", "max_jobs", "max_retries", "backoff", "priority")
TASK_KEYS = ("id", "run", *SHARED_KEYS, "depends_on", "hide")
LARGEST_COUNT = 1_000_000
NEW_HERE = ("zone", "workers", "backoff", "priority")  # beside `tasks:`; JOBMAN reads the others there too
EFFECT = "holds for every task of this accelerator, which JOBMAN did not do"
MISPLACED = "its tasks are not read; an accelerator stands below `accelerators:`, and not below `defaults:`"
FIRST_HOST = (0,)
WORKERS = "all, or numbers of hosts such as 0 or [0, 2]"


class Repository(Struct, frozen=True, kw_only=True):
    """An entry of ``repos:``."""

    url: str
    branch: str = ""


def read_tasks(path: Path) -> TaskList:
    """Return the tasks of a file. Raises UsageError with all problems."""
    node, problems = yamlfile.load(path)
    notices: list[str] = []
    if isinstance(node, MappingNode):
        node = resolved(node, problems)
    keys = Section(node, "", KEYS, problems, "the keys of a task file")
    repos = _repos(keys, problems)
    defaults = _defaults(keys, problems, notices)
    groups = _mapping(keys, "accelerators", "tasks by accelerator, as v4-8: {tasks: [...]}", problems)
    tasks: list[TaskSpec] = []
    marks: dict[str, Node] = {}
    for name, (_, value) in groups.items():
        if isinstance(value, ScalarNode) and not value.value:
            continue  # a group whose tasks are all comments
        where = f"accelerators.{name}"
        group = Section(value, where, ("tasks", *SHARED_KEYS), problems, "a mapping with tasks:")
        if "tasks" not in group:
            problems.add(value, where, "has no tasks:")
            continue
        notices += [_notice(problems, group.keys[key][0], f"{where}.{key}", EFFECT) for key in NEW_HERE if key in group]
        for place, item in _items(group.node("tasks"), f"{where}.tasks", problems):
            section = Section(item, place, TASK_KEYS, problems, "a mapping with id: and run:")
            task = _Reader(section, [section, group, defaults], repos).task(name)
            if task is None:
                continue
            if task.id in marks:
                first = marks[task.id].start_mark.line + 1
                section.add("id", f"{task.id} is there twice; the first one is in line {first}")
                continue
            marks[task.id] = item
            tasks.append(task)
    _check_dependencies(tasks, marks, problems)
    problems.check()
    return TaskList(path=path, tasks=tuple(tasks), accelerators=tuple(groups), notices=tuple(notices))


def _notice(problems: Problems, node: Node, where: str, text: str) -> str:
    return f"{problems.path}:{node.start_mark.line + 1}: {where}: {text}"


def _mapping(keys: Section, key: str, expected: str, problems: Problems) -> dict[str, tuple[Node, Node]]:
    if key not in keys:
        return {}
    node = keys.node(key)
    if isinstance(node, ScalarNode) and not node.value:
        return {}
    return yamlfile.mapping(node, key, problems, expected)


def _items(node: Node, where: str, problems: Problems) -> list[tuple[str, Node]]:
    if isinstance(node, ScalarNode) and not node.value:
        return []
    return yamlfile.items(node, where, problems, "a list of tasks")


def _repos(keys: Section, problems: Problems) -> dict[str, Repository]:
    found = {}
    for name, (_, value) in _mapping(keys, "repos", "repositories by name", problems).items():
        where = f"repos.{name}"
        if isinstance(value, MappingNode):
            section = Section(value, where, REPO_KEYS, problems, "a mapping with url:")
            if "url" not in section:
                problems.add(value, where, "has no url:")
            found[name] = Repository(url=section.text("url"), branch=section.text("branch"))
        else:
            found[name] = Repository(url=yamlfile.scalar(value, where, problems, "the address of a git repository"))
    return found


def _defaults(keys: Section, problems: Problems, notices: list[str]) -> Section:
    """Return the keys of ``defaults:``. A mapping with tasks there is an accelerator at the wrong place: a notice."""
    if "defaults" not in keys or (isinstance(keys.node("defaults"), ScalarNode) and not keys.node("defaults").value):
        return Section(None, "defaults", SHARED_KEYS, problems, "a mapping")
    node = keys.node("defaults")
    if not isinstance(node, MappingNode):
        return Section(node, "defaults", SHARED_KEYS, problems, "a mapping")
    kept = []
    for key, value in node.value:
        if isinstance(value, MappingNode) and any(str(inner.value) == "tasks" for inner, _ in value.value):
            notices.append(_notice(problems, key, f"defaults.{key.value}", MISPLACED))
        else:
            kept.append((key, value))
    node = MappingNode(node.tag, kept, node.start_mark, node.end_mark)
    return Section(node, "defaults", SHARED_KEYS, problems, "a mapping")


class _Reader:
    """The keys of one task, each from the nearest section that has it."""

    def __init__(self, own: Section, nearest: Sequence[Section], repos: Mapping[str, Repository]) -> None:
        self._own, self._nearest, self._repos = own, nearest, repos

    def task(self, accelerator: str) -> TaskSpec | None:
        """Return the task; None without a usable id."""
        own = self._own
        for key in ("id", "run"):
            if own.keys and key not in own:
                first = next(iter(own.keys.values()))[0]
                own.problems.add(first, own.where(key), "is missing")
        name = own.text("id", "the id of a task")
        if name and not is_name(name):
            own.unexpected("id", "up to 64 letters, digits, dots, dashes and underscores")
        repo = self._repo()
        if not name:
            return None
        return TaskSpec(
            id=name,
            run=own.text("run", "text for bash"),
            accelerator=accelerator,
            zone=self._at("zone").text("zone", "the name of a zone"),
            workers=read_workers(self._at("workers"), "workers"),
            variables=self._variables(),
            environment=self._environment(),
            url=repo.url,
            branch=self._branch(repo),
            workdir=self._at("workdir").text("workdir", "a directory on the hosts"),
            max_jobs=self._at("max_jobs").integer("max_jobs", USUAL_MAX_JOBS, 1, LARGEST_COUNT),
            max_retries=self._at("max_retries").integer("max_retries", USUAL_MAX_RETRIES, 0, LARGEST_COUNT),
            backoff=self._at("backoff").backoff("backoff", USUAL_BACKOFF_S),
            depends_on=self._depends_on(),
            priority=self._at("priority").integer("priority", 0, -PRIORITY_LIMIT, PRIORITY_LIMIT),
            is_hidden=own.flag("hide"),
        )

    def _at(self, key: str) -> Section:
        """Return the nearest section that has a key."""
        return next((section for section in self._nearest if key in section), self._own)

    def _environment(self) -> str:
        section = self._at("env")
        is_name_ = "env" in section and isinstance(section.node("env"), ScalarNode)
        return section.text("env", "the name of an environment, or variables") if is_name_ else ""

    def _variables(self) -> dict[str, str]:
        """Return the variables of every level: those of the task win."""
        found: dict[str, str] = {}
        for section in reversed(self._nearest):
            if "env" in section and not isinstance(section.node("env"), ScalarNode):
                found |= section.environment("env")
        for name in found:
            if not VARIABLE.fullmatch(name):
                self._at("env").add("env", f"{name!r} is no name of a variable")
        return found

    def _repo(self) -> Repository:
        section = self._at("repo")
        name = section.text("repo", "a name of `repos:`")
        if not name or name in self._repos:
            return self._repos.get(name, Repository(url=""))
        if "/" in name:  # an address of its own
            return Repository(url=name)
        section.add("repo", f"there is no {name} in `repos:`{yamlfile.did_you_mean(name, list(self._repos))}")
        return Repository(url="")

    def _branch(self, repo: Repository) -> str:
        """Return the branch of the task, its accelerator, the repository, or the defaults: the first that there is."""
        near = [section.text("branch") for section in self._nearest[:-1] if "branch" in section]
        default = self._nearest[-1]
        return next(iter([*near, *([repo.branch] if repo.branch else [])]), default.text("branch"))

    def _depends_on(self) -> tuple[str, ...]:
        own = self._own
        if "depends_on" not in own:
            return ()
        node = own.node("depends_on")
        if isinstance(node, ScalarNode):
            return (own.text("depends_on", "ids of tasks"),) if node.value else ()
        return tuple(dict.fromkeys(own.texts("depends_on", "a list of ids of tasks")))


def read_workers(section: Section, key: str, usual: tuple[int, ...] = FIRST_HOST) -> tuple[int, ...]:
    """Return the indexes of the hosts that a key names; () means all of them."""
    if key not in section:
        return usual
    node = section.node(key)
    if isinstance(node, ScalarNode) and str(node.value) == "all":
        return ()
    found = tuple(dict.fromkeys(section.integers(key, WORKERS)))
    if isinstance(node, SequenceNode) and not node.value:
        section.unexpected(key, WORKERS)
    return found


def _check_dependencies(tasks: Sequence[TaskSpec], marks: Mapping[str, Node], problems: Problems) -> None:
    """Note dependencies on tasks that there are not, and circles."""
    known = {task.id: task for task in tasks}
    for task in tasks:
        for other in task.depends_on:
            if other not in known:
                near = yamlfile.did_you_mean(other, list(known)) if len(known) > 1 else ""
                problems.add(marks[task.id], f"{task.id}.depends_on", f"there is no task {other}{near}")
    done: set[str] = set()
    for task in tasks:
        circle = _circle(task.id, known, done)
        if circle:
            problems.add(marks[circle[0]], f"{circle[0]}.depends_on", f"is a circle: {' -> '.join(circle)}")


def _circle(start: str, known: Mapping[str, TaskSpec], done: set[str]) -> list[str]:
    """Return the tasks of a circle that begins behind a task; [] without one. done: tasks that are in none"""
    path: list[str] = []
    waiting: list[tuple[str, int]] = [(start, 0)]
    while waiting:
        name, depth = waiting.pop()
        done.update(path[depth:])
        del path[depth:]
        if name in path:
            circle = [*path[path.index(name) :], name]
            done.update(path)
            return circle
        if name in done or name not in known:
            continue
        path.append(name)
        waiting += [(other, depth + 1) for other in known[name].depends_on]
    done.update(path)
    return []
