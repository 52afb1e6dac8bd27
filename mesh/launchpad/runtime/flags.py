"""Launchpad's flags and launch types. absl's flags have them too where absl is installed."""

from __future__ import annotations

import enum
import sys
from typing import Union

TERMINATION_NOTICE_S = 10
SESSION_NAME = "launchpad"


class LaunchType(enum.Enum):
    """Where the nodes of a program run."""

    LOCAL_MULTI_THREADING = "local_mt"
    LOCAL_MULTI_PROCESSING = "local_mp"
    TEST_MULTI_PROCESSING = "test_mp"
    TEST_MULTI_THREADING = "test_mt"
    LOCAL_DOCKER = "local_docker"
    VERTEX_AI = "vertex_ai"
    MESH = "mesh"  # on the hosts of a cluster


LOCAL = (LaunchType.LOCAL_MULTI_THREADING, LaunchType.LOCAL_MULTI_PROCESSING)
TEST = (LaunchType.TEST_MULTI_THREADING, LaunchType.TEST_MULTI_PROCESSING)


class _Values:
    """The values of the flags where absl is not installed: the defaults."""

    lp_launch_type = LaunchType.LOCAL_MULTI_THREADING.value
    lp_termination_notice_secs = TERMINATION_NOTICE_S
    tmux_open_window: "str | None" = None
    tmux_session_name = SESSION_NAME

    def is_parsed(self) -> bool:
        """Return True: there is nothing to parse."""
        return True

    def __call__(self, argv: "list[str]", known_only: bool = False) -> "list[str]":
        """Return the words that are not flags of ours: all of them."""
        return list(argv)


FLAGS: "_Values" = _Values()


class _LaunchTypeFlag:
    """The flag ``lp_launch_type``."""

    name = "lp_launch_type"
    default = LaunchType.LOCAL_MULTI_THREADING.value

    @property
    def value(self) -> str:
        """The launch type as the command line has it."""
        return parsed().lp_launch_type


LAUNCH_TYPE = _LaunchTypeFlag()


def define() -> None:
    """Define Launchpad's flags for absl, if it is installed and has none of them yet."""
    global FLAGS
    try:
        from absl import flags  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return
    FLAGS = flags.FLAGS  # type: ignore[assignment, unused-ignore]
    if "lp_launch_type" in FLAGS:  # type: ignore[operator]
        return
    types = [one.value for one in LaunchType]
    flags.DEFINE_enum("lp_launch_type", types[0], types, "where lp.launch() starts the nodes", allow_override=True)
    notice = "seconds from the request to stop to SIGKILL; negative: 10, as mesh leaves nothing"
    flags.DEFINE_integer("lp_termination_notice_secs", TERMINATION_NOTICE_S, notice)
    flags.DEFINE_string("tmux_open_window", None, "has no effect")
    flags.DEFINE_string("tmux_session_name", SESSION_NAME, "the name of the tmux session")


def parsed() -> "_Values":
    """Return the flags, parsed from the command line if the program has not done so."""
    if not FLAGS.is_parsed():
        FLAGS(list(sys.argv), known_only=True)
    return FLAGS


def is_local_launch(launch_type: "Union[LaunchType, str]") -> bool:
    """Return True for threads and processes of this machine. Raises ValueError for an unknown type."""
    return LaunchType(launch_type) in LOCAL


def is_local_launch_or_test(launch_type: "Union[LaunchType, str]") -> bool:
    """Return True for threads and processes of this machine, in a test or not. Raises ValueError."""
    return LaunchType(launch_type) in LOCAL + TEST
