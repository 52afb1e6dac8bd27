"""The rows of the option table for ``mesh jobman ...``."""

from __future__ import annotations

from mesh.cli.option import COMMAND, FILES, HOSTS, OTHER, AnyOption, Option, switch, text

STAGES = ("gcsfuse", "docker", "conda", "venv")  # beside ssh, which may log in
STAGE_COMMANDS = ("jobman ssh", *(f"jobman {stage}" for stage in STAGES))
FORCED = ("jobman run", "jobman reboot", *STAGE_COMMANDS)

CREATE_FILE = text("file", ("jobman create",), COMMAND, "FILE", "a job file", is_place=True)
CREATE_CONFIG = text("config", ("jobman create",), COMMAND, "FILE", "the same, as the first version has it")
CREATE_CLUSTER = text("cluster", ("jobman create",), HOSTS, "CLUSTER", "run on its hosts; tpu: of the file is not read")
CREATE_PLAN = switch("dry-run", ("jobman create",), OTHER, "print what would be submitted, and submit nothing")
CMD_ONLY = switch("cmd-only", ("jobman run",), COMMAND, "run the command alone, and set up nothing")
FORCE_SETUP = switch("force", FORCED, COMMAND, "set up what is in place as well")
FORCE_PREFIX = switch("force-prefix", ("jobman run", "jobman reboot"), COMMAND, "run prefix entries again")
CLEAN_ALL = switch("all", ("jobman clean",), OTHER, "all jobs of yours that have ended")
STORAGE_ALL = switch("all", ("job storage", "jobman storage"), FILES, "all buckets of the project")

TABLE: list[AnyOption] = [entry for entry in list(globals().values()) if isinstance(entry, Option)]
