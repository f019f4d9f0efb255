"""Dockerfile, compose.yaml and recipes: what each image promises; YAML and shell of a recipe can be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.commands.service.service_spec import STOP_S
from node.engine.vllm_install import VLLM_VERSION
from tests.support.paths import ROOT

DOCKERFILE = ROOT / "Dockerfile"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
IMAGES = ("node", "node-cuda", "learner")
RECIPES = sorted((ROOT / "docs" / "operate").glob("on-*.md"))


def stages() -> dict[str, tuple[str, list[str]]]:
    """Each stage's base, and its instructions without comments, one a line."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    found: dict[str, tuple[str, list[str]]] = {}
    lines: list[str] = []
    for line in filter(None, text.splitlines()):
        if header := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            lines = []
            found[header[2]] = (header[1], lines)
        else:
            lines.append(" ".join(line.split()))
    return found


def whole(stage: str) -> list[str]:
    """The instructions of a stage after those of the stages that it begins with."""
    base, lines = stages()[stage]
    return [*(whole(base) if base in stages() else []), *lines]


def last(lines: list[str], instruction: str) -> str:
    return [line.removeprefix(f"{instruction} ") for line in lines if line.startswith(f"{instruction} ")][-1]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_special_and_is_watched(image: str) -> None:
    lines = whole(image)
    assert last(lines, "USER") == "1000:1000"
    assert last(lines, "VOLUME") == "/data"
    assert last(lines, "ENTRYPOINT") == '["volery"]'
    assert last(lines, "STOPSIGNAL") == "SIGTERM"
    assert [line for line in lines if line.startswith("HEALTHCHECK ")]
    (copied,) = [line for line in lines if line.startswith("COPY --from=")]
    assert copied == f"COPY --from={image}-environment /opt/volery /opt/volery"
    assert not [line for line in lines if "gmp-dev" in line], "what compiles stays in the stage that builds"


def test_environments_ask_for_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = [re.findall(r"\.whl\)\[([\w,]+)\]", line) for image in IMAGES for line in whole(f"{image}-environment")]
    names = {name for found in asked for one in found for name in one.split(",")}
    assert names == {"transformers", "vllm", "learner", "tasks"}
    assert names <= set(extras)


def test_vllm_is_the_release_that_the_worker_is_written_for() -> None:
    assert f'"vllm=={VLLM_VERSION}"' in last(whole("node-cuda-environment"), "RUN")


def test_the_wheel_is_built_from_the_packages_alone() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert "*" in lines
    sent = {line[1:] for line in lines if line.startswith("!")}
    texts = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert sent == {*packages["wheel"]["packages"], "examples", *texts}, "the packages have a link to the examples"


@pytest.mark.parametrize(("doing", "code"), [("at work", 0), ("not running", 1), ("", 1)])
def test_the_health_check_asks_what_the_program_does(doing: str, code: int, tmp_path: Path) -> None:
    told = json.dumps({"role": "rollout", "doing": doing, "reach": None}, indent=2) if doing else ""
    (tmp_path / "told").write_text(told)
    fake = tmp_path / "volery"
    fake.write_text(f'#!/bin/sh\n[ "$*" = "status --json" ] && cat {tmp_path}/told\n')
    fake.chmod(0o755)
    command = json.loads(last(whole("base"), "HEALTHCHECK").partition("CMD ")[2])
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert done.returncode == code


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("name", IMAGES)
def test_a_container_may_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["build"]["target"] == name
    assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [volume.rpartition(":")[2] for volume in service["volumes"]] == ["/data"]
    assert service["stop_grace_period"] == f"{STOP_S['learner' if name == 'learner' else 'node']}s"
    assert ("deploy" in service) == (name != "node")
    assert service["profiles"] == [name], "a plain `docker compose up` starts nothing by mistake"


# Recipes


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_there_is_a_page_for_each_place() -> None:
    assert [page.stem for page in RECIPES] == ["on-runpod", "on-skypilot", "on-slurm", "on-vast"]


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_the_shell_of_a_recipe_can_be_read(page: Path) -> None:
    scripts = blocks(page, "sh")
    assert scripts
    for script in scripts:
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.stderr == ""


def test_the_task_for_skypilot_is_one() -> None:
    (text,) = blocks(ROOT / "docs" / "operate" / "on-skypilot.md", "yaml")
    task = yaml.safe_load(text)
    assert set(task) == {"name", "resources", "secrets", "setup", "run"}
    assert task["resources"]["use_spot"] is True
    assert all(isinstance(count, int) for count in task["resources"]["accelerators"].values())
    for part in ("setup", "run"):
        assert not subprocess.run(["sh", "-n"], input=task[part], text=True, check=False).returncode
    assert "$VOLERY_INVITE" in task["run"]
    assert set(task["secrets"]) == {"VOLERY_INVITE"}


def test_the_job_for_slurm_hands_the_signal_on(tmp_path: Path) -> None:
    """The node, here a stand-in, gets SIGTERM alone, the job waits for it, and leaves nothing on the machine."""
    script = blocks(ROOT / "docs" / "operate" / "on-slurm.md", "sh")[0]
    program = tmp_path / ".local" / "bin" / "volery"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        "trap 'echo returned > \"$HOME/work\"; exit 130' TERM\n"
        'mkdir -p "$5"; echo "$*" > "$HOME/started"; mkfifo "$5/never"\n'
        'read -r line < "$5/never"\n'
    )
    program.chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp"),
        "SLURM_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "7",
    }  # fmt: skip
    (tmp_path / "tmp").mkdir()
    os.mkfifo(tmp_path / "started")
    job = subprocess.Popen(["sh", "-c", script], env=environment)
    started = (tmp_path / "started").read_text()  # waits until the program writes it
    assert re.fullmatch(rf"join {tmp_path}/invite --plain --state {tmp_path}/tmp/volery-42 --name \S+-7\n", started)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 130
    assert (tmp_path / "work").read_text() == "returned\n"
    assert list((tmp_path / "tmp").iterdir()) == []
