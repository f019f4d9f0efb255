"""Write a service as a scheduled task of Windows that runs a script in WSL2 at logon.

Windows ends WSL2 soon after the last program that it started there has ended, so a unit of systemd inside would be
ended as well. A task whose program is `wsl.exe` keeps WSL2 running for as long as the node runs. (Task Scheduler's
schema 1.2: https://learn.microsoft.com/windows/win32/taskschd/task-scheduler-schema.)

The task names a script by its path only, because `cmd`, `wsl.exe` and a shell each quote in their own way. The script
starts the program again after failures: a program's exit code is no failure to the Task Scheduler.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from xml.sax.saxutils import escape

from node.commands.service.service_spec import FIRST_PAUSE_S, LONGEST_PAUSE_S, STOPPED, USAGE, ServiceSpec

FOLDER = "Volery"
"""Folder of our tasks in the Task Scheduler."""

BELOW_NORMAL = 7
"""Priority of a task: 7 is Windows' own default for tasks, below programs that people use."""


def script_text(spec: ServiceSpec) -> str:
    """Return the script that the task runs in WSL2."""
    variables = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(spec.environment.items())]
    return f"""\
#!/bin/sh
# Written by `volery service install`. To change it: volery service uninstall, then install again.
# {spec.mark}
{"".join(variables)}pause={FIRST_PAUSE_S}
while :; do
    nice -n {spec.nice} {shlex.join(spec.command)}
    code=$?
    case $code in 0 | {USAGE} | {STOPPED}) exit $code ;; esac
    sleep $pause
    pause=$((pause * 2))
    [ $pause -le {LONGEST_PAUSE_S} ] || pause={LONGEST_PAUSE_S}
done
"""


def task_text(spec: ServiceSpec, *, script: PurePosixPath, distribution: str, owner: str) -> str:
    """Return the task as XML. `distribution`: WSL's name for this system. `owner`: a Windows user, as DOMAIN\\NAME."""
    arguments = f'-d "{distribution}" --exec /bin/sh "{script}"'
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>{escape(spec.description)}</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <UserId>{escape(owner)}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Owner">
      <UserId>{escape(owner)}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>true</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>true</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>{BELOW_NORMAL}</Priority>
  </Settings>
  <Actions Context="Owner">
    <Exec>
      <Command>wsl.exe</Command>
      <Arguments>{escape(arguments)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def task_name(service: str) -> str:
    """Return the task's name, as schtasks takes it."""
    return f"{FOLDER}\\{service}"
