"""Read how the program was installed, and say which line adds an extra. Environments are files alone here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from node.installation.install_line import CPU_TORCH, Installation, Way, line_for, look

METADATA = """\
Metadata-Version: 2.4
Name: volery
Version: 9.0
Project-URL: Repository, https://example.invalid/volery
Project-URL: Installer, https://example.invalid/volery/install.sh
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages that has Volery's metadata, and is searched before all others."""
    info = tmp_path / "site" / "volery-9.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(info.parent))
    return info


def receipt(prefix: Path, wanted: str, more: str = "") -> None:
    (prefix / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{wanted}]\n{more}\n")


def made(prefix: Path) -> Installation:
    return look(Path("/env/bin/python"), prefix)


def test_an_installation_of_uv_keeps_its_extras(site: Path, tmp_path: Path) -> None:
    receipt(tmp_path, '{ name = "volery", extras = ["transformers"] }')
    assert line_for("tasks", made(tmp_path)) == "uv tool install 'volery[tasks,transformers]'"


def test_a_wheel_is_named_again(site: Path, tmp_path: Path) -> None:
    receipt(tmp_path, '{ name = "volery", path = "/wheels/volery.whl" }')
    (site / "direct_url.json").write_text(json.dumps({"url": "file:///wheels/volery.whl", "archive_info": {}}))
    assert line_for("tasks", made(tmp_path)) == "uv tool install 'volery[tasks] @ file:///wheels/volery.whl'"


def test_the_installer_is_known_by_what_it_overrides(site: Path, tmp_path: Path) -> None:
    receipt(
        tmp_path,
        '{ name = "volery", extras = ["transformers"] }',
        'overrides = [{ name = "fastecdsa", specifier = ">=3,<4" }]',
    )
    line = "curl -LsSf https://example.invalid/volery/install.sh | sh -s -- learner transformers"
    assert line_for("learner", made(tmp_path)) == line


@pytest.mark.parametrize("is_checkout", [True, False])
def test_the_installer_is_given_the_same_source_again(site: Path, tmp_path: Path, is_checkout: bool) -> None:
    receipt(tmp_path, '{ name = "volery" }', 'overrides = [{ name = "fastecdsa", specifier = ">=3,<4" }]')
    (site / "direct_url.json").write_text(json.dumps({"url": f"file://{tmp_path}", "dir_info": {}}))
    if is_checkout:
        (tmp_path / "install.sh").touch()
        line = f"VOLERY_FROM={tmp_path}/ sh {tmp_path}/install.sh tasks"
    else:
        line = f"curl -LsSf https://example.invalid/volery/install.sh | VOLERY_FROM=file://{tmp_path} sh -s -- tasks"
    assert line_for("tasks", made(tmp_path)) == line


def test_a_damaged_receipt_is_still_one_of_uv(site: Path, tmp_path: Path) -> None:
    (tmp_path / "uv-receipt.toml").write_text("[tool")
    assert line_for("tasks", made(tmp_path)) == "uv tool install 'volery[tasks]'"


def test_torch_is_picked_for_the_machine(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt(tmp_path, '{ name = "volery" }')
    monkeypatch.setattr(sys, "platform", "linux")
    assert line_for("transformers", made(tmp_path)) == "uv tool install --torch-backend auto 'volery[transformers]'"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert line_for("transformers", made(tmp_path)) == "uv tool install 'volery[transformers]'"


def test_uvx_is_given_the_same_command_again(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["volery", "samples", "my swarm"])
    prefix = tmp_path / "uv" / "archive-v0" / "x7"
    prefix.mkdir(parents=True)
    assert line_for("tasks", made(prefix)) == "uvx --from 'volery[tasks]' volery samples 'my swarm'"


def test_pipx_adds_to_its_environment(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert line_for("tasks", made(tmp_path)) == "pipx runpip volery install 'volery[tasks]'"


@pytest.mark.parametrize(("has_driver", "index"), [(True, ""), (False, CPU_TORCH)])
def test_without_a_gpu_pip_takes_torch_for_cpus(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_driver: bool, index: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("node.installation.install_line.NVIDIA_DRIVER", tmp_path if has_driver else tmp_path / "none")
    assert line_for("learner", made(tmp_path)) == f"/env/bin/python -m pip install {index}'volery[learner]'"
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert line_for("learner", made(tmp_path)) == f"pipx runpip volery install {index}'volery[learner]'"


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("pip\n", "/env/bin/python -m pip install 'volery[gguf]'"),
        ("uv", "uv pip install --python /env/bin/python 'volery[gguf]'"),
    ],
)
def test_elsewhere_the_program_that_installed_it_adds_to_it(site: Path, tmp_path: Path, by: str, line: str) -> None:
    (site / "INSTALLER").write_text(by)
    assert line_for("gguf", made(tmp_path)) == line


def test_a_checkout_is_named_with_its_script(site: Path, tmp_path: Path) -> None:
    url = "file:///home/me/my%20volery"
    (site / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    line = "sh '/home/me/my volery/tools/bootstrap.sh' /env learner"
    assert line_for("learner", look(Path("/env/bin/python"), Path("/env"))) == line


def test_this_installation_is_known() -> None:
    assert look().python == Path(sys.executable)
    assert look().way in Way
