"""The shell text around the command of a task: its repository, its environment and its directory on a host.

The command itself travels as a word of its own, so that no quoting changes it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from mesh.core.run import SHELL
from mesh.core.tasks import TaskSpec

COMMIT = re.compile(r"[0-9a-f]{40}")
LS_REMOTE_TIMEOUT_S = 60.0
# A clone is made beside its place and renamed, so that two ranks of a host do not disturb each other, and one that
# was cut off is never used. What an attempt leaves in it is there for the next one.
CLONE = """\
commit={commit}
export GIT_TERMINAL_PROMPT=0
[ -n "$commit" ] || commit=$(git ls-remote {url} {branch} | cut -f 1 | head -n 1)
[ -n "$commit" ] || {{ echo "mesh: "{url}": no branch or commit "{branch} >&2; exit 128; }}
place=$PWD/tasks/{task}/$(printf %.12s "$commit")
if [ ! -d "$place" ]; then
  mkdir -p "$PWD/tasks/{task}" && new=$(mktemp -d "$place.XXXXXX") || exit 128
  git clone -q {url} "$new/clone" >&2 && git -C "$new/clone" checkout -q --detach "$commit" >&2 || exit 128
  mv -T "$new/clone" "$place" 2>/dev/null
  rm -rf "$new"
fi
cd "$place" || exit 128
"""
ENVIRONMENT = """\
name={name}
if [ "${{VIRTUAL_ENV##*/}}" = "$name" ] || [ "$CONDA_DEFAULT_ENV" = "$name" ]; then :
elif [ -f "$HOME/$name/bin/activate" ]; then . "$HOME/$name/bin/activate"
else
  for base in "$HOME/miniconda3" "$HOME/miniconda" "$HOME/miniforge3" "$HOME/anaconda3" /opt/conda; do
    if [ -d "$base/envs/$name" ]; then . "$base/etc/profile.d/conda.sh" && conda activate "$name" && break; fi
  done
  if [ "$CONDA_DEFAULT_ENV" != "$name" ] && [ -z "$VIRTUAL_ENV" ]; then
    echo "mesh: no environment $name: neither ~/$name nor one of conda" >&2; exit 127
  fi
fi
"""
DIRECTORY = """\
cd {workdir} 2>/dev/null || cd "$HOME"/{workdir} || exit 127
"""
RUN = 'exec bash -c "$1"'


def words_of(task: TaskSpec, commit: str = "") -> tuple[str, ...]:
    """Return the words for execve of a task. commit: of its repository; "": the host looks it up

    >>> words_of(TaskSpec(id="a", run="echo '$X'", accelerator="v4-8"))
    ('bash', '-c', "echo '$X'")
    """
    text = ""
    if task.url:
        url, branch = shlex.quote(task.url), shlex.quote(task.branch or "HEAD")
        text += CLONE.format(commit=shlex.quote(commit), url=url, branch=branch, task=task.id)
    elif task.workdir:
        text += DIRECTORY.format(workdir=_path(task.workdir))
    if task.environment:
        text += ENVIRONMENT.format(name=shlex.quote(task.environment))
    return (*SHELL, text + RUN, f"task-{task.id}", task.run) if text else (*SHELL, task.run)


def _path(path: str) -> str:
    """Return a path as a word of a shell in which ~ is the home directory."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:]) if path[1:] else ""}'
    return shlex.quote(path)


def commit_of(task: TaskSpec) -> str:
    """Return the commit of a task's repository, so that all hosts have the same one; "" if it cannot be asked here."""
    if not task.url or COMMIT.fullmatch(task.branch):
        return task.branch if task.url else ""
    try:
        found = subprocess.run(
            ["git", "ls-remote", "--", task.url, task.branch or "HEAD"],
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LS_REMOTE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first = found.stdout.partition("\t")[0].strip()
    return first if COMMIT.fullmatch(first) else ""
