"""The spec of a job, which is in core."""

from __future__ import annotations

from mesh.core.job import UNLIMITED as UNLIMITED
from mesh.core.job import ArraySpec as ArraySpec
from mesh.core.job import Candidate as Candidate
from mesh.core.job import CommandSpec as CommandSpec
from mesh.core.job import Format as Format
from mesh.core.job import JobSpec as JobSpec
from mesh.core.job import MachinesSpec as MachinesSpec
from mesh.core.job import NotifySpec as NotifySpec
from mesh.core.job import RestartOn as RestartOn
from mesh.core.job import RestartSpec as RestartSpec
