"""`install.sh`: what it asks uv for, which torch it picks, and what it says next. uv and the machine are stubs here.

`tests/e2e/test_wheel.py` installs a wheel with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "install.sh"
INSTALLER = "https://example.invalid/volery/install.sh"

UV = """\
#!/bin/sh
case "$*" in
    --version) echo "uv 9.9.9" ;;
    "tool install --help") echo "      --torch-backend <TORCH_BACKEND>" ;;
    "tool dir --bin") echo "$STUB/bin" ;;
    "tool dir") echo "$STUB/tools" ;;
    "tool install"*)
        echo "$*" >"$STUB/asked"
        while [ $# -gt 1 ]; do
            case $1 in --overrides | --constraints) cp "$2" "$STUB/$(echo "$1" | tr -d -)" ;; esac
            shift
        done
        [ -z "${UV_SAYS:-}" ] || { echo "$UV_SAYS"; exit 2; }
        [ -z "${UV_HANGS:-}" ] || exec cat "$STUB/never" ;;
esac
"""

VOLERY = """\
#!/bin/sh
case "$1" in
    --version) echo "volery 9.9" ;;
    doctor) echo "doctor looked"; exit "${DOCTOR_STATUS:-0}" ;;
    *) echo "$*" >"$STUB/volery-asked" ;;
esac
"""

TOOLS = (
    "sh", "basename", "cat", "chmod", "cp", "curl", "cut", "dirname", "grep", "mkdir", "mktemp", "rm", "sed", "sleep",
    "tail", "tr", "uname",
)  # fmt: skip


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A home directory, and a PATH with few programs: a uv that notes what it is asked, a volery, no NVIDIA driver."""
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found, name
        (tmp_path / "bin" / name).symlink_to(found)
    program(tmp_path / "bin" / "uv", UV)
    program(tmp_path / "bin" / "volery", VOLERY)
    disk(tmp_path, free_mb=20_000)
    (tmp_path / "home").mkdir()
    return tmp_path


def disk(stub: Path, *, free_mb: int) -> None:
    """A `df` that says how much is free."""
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on"
    row = f"/dev/vda 99999999 1 {-(-free_mb * 1_000_000 // 1024)} 50% /"
    program(stub / "bin" / "df", f"#!/bin/sh\necho '{head}'; echo '{row}'\n")


def receipt(stub: Path, extras: str) -> None:
    """What uv leaves of an earlier installation."""
    tool = stub / "tools" / "volery"
    tool.mkdir(parents=True, exist_ok=True)
    (tool / "uv-receipt.toml").write_text(f'[tool]\nrequirements = [{{ name = "volery"{extras} }}]\n')


def run(stub: Path, *arguments: str, pins: str | None = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """As people do it: the script comes through a pipe."""
    environment = {"PATH": str(stub / "bin"), "HOME": str(stub / "home"), "STUB": str(stub), "TMPDIR": str(stub)}
    if pins is not None:
        environment["VOLERY_PINS"] = pins
    with SCRIPT.open() as script:
        return subprocess.run(
            ["sh", "-s", "--", *arguments],
            stdin=script, cwd=stub, env={**environment, **variables}, capture_output=True, text=True,
        )  # fmt: skip


def asked(stub: Path) -> str:
    return (stub / "asked").read_text().strip()


def test_a_volunteer_gets_the_engine_that_works_everywhere_and_reads_the_next_line(stub: Path) -> None:
    done = run(stub)
    assert done.returncode == 0, done.stderr
    assert asked(stub).endswith(" --torch-backend cpu volery[transformers]")
    assert "--python >=3.11,<3.14" in asked(stub)
    assert (stub / "overrides").read_text() == "fastecdsa>=3,<4\n"
    assert "doctor looked" in done.stdout
    assert done.stdout.splitlines()[-1] == "    volery join INVITE"
    assert not list(stub.glob("tmp.*"))  # nothing is left behind


def test_a_gpu_gets_torch_for_cuda_and_hears_of_vllm(stub: Path) -> None:
    program(stub / "bin" / "nvidia-smi", "#!/bin/sh\n")
    done = run(stub)
    assert "--torch-backend auto" in asked(stub)
    assert done.stdout.splitlines()[-1] == "    volery engines install vllm"


def test_macos_takes_torch_as_the_index_has_it(stub: Path) -> None:
    (stub / "bin" / "uname").unlink()
    program(stub / "bin" / "uname", "#!/bin/sh\necho Darwin\n")
    assert run(stub).returncode == 0
    assert "--torch-backend" not in asked(stub)


def test_windows_is_told_of_wsl(stub: Path) -> None:
    (stub / "bin" / "uname").unlink()
    program(stub / "bin" / "uname", "#!/bin/sh\necho MINGW64_NT-10.0\n")
    done = run(stub)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].strip() == "wsl --install"
    assert not (stub / "asked").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [(["learner", "tasks"], "volery[learner,tasks]"), (["base"], "volery"), (["vllm"], "volery")],
)
def test_extras_are_handed_on(stub: Path, arguments: list[str], wanted: str) -> None:
    assert run(stub, *arguments).returncode == 0
    assert asked(stub).split()[-1] == wanted
    assert ("--torch-backend" in asked(stub)) == (wanted != "volery")  # without torch nothing is picked
    assert (stub / "volery-asked").exists() == (arguments == ["vllm"])


def test_vllm_is_built_by_volery_itself(stub: Path) -> None:
    run(stub, "vllm")
    assert (stub / "volery-asked").read_text().strip() == "engines install vllm"


def test_what_is_no_extra_is_refused_before_anything_is_fetched(stub: Path) -> None:
    done = run(stub, "--help")
    assert done.returncode == 1
    assert "'--help' is no extra" in done.stderr
    assert not (stub / "asked").exists()


def test_a_wheel_and_an_index_may_be_named(stub: Path) -> None:
    (stub / "my wheels").mkdir()
    run(stub, VOLERY_FROM="my wheels/volery.whl", VOLERY_INDEX="http://127.0.0.1:1/simple", VOLERY_TORCH="")
    assert asked(stub).endswith(
        f"--index http://127.0.0.1:1/simple volery[transformers] @ file://{stub}/my wheels/volery.whl"
    )
    assert "--torch-backend" not in asked(stub)
    run(stub, VOLERY_FROM="https://example.invalid/volery.whl")
    assert asked(stub).endswith("volery[transformers] @ https://example.invalid/volery.whl")


def test_a_checkout_brings_its_own_pins(stub: Path) -> None:
    checkout = stub / "a checkout"
    checkout.mkdir()
    (checkout / "constraints.txt").write_text("fastecdsa==2.3.2\ntorch==2.13.0\n")
    done = run(stub, pins=None, VOLERY_FROM=f"{checkout}/")
    assert done.returncode == 0, done.stderr
    assert (stub / "constraints").read_text() == "torch==2.13.0\n"
    assert asked(stub).endswith(f"volery[transformers] @ file://{checkout}")


def test_pins_that_cannot_be_read_are_told(stub: Path) -> None:
    done = run(stub, pins="file:///nowhere/constraints.txt")
    assert done.returncode == 1
    assert "the tested versions cannot be read from file:///nowhere/constraints.txt" in done.stderr
    assert done.stderr.splitlines()[-2:] == ["    export VOLERY_PINS=", "    curl -LsSf " + INSTALLER + " | sh"]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("error: command 'cc' failed: No such file or directory", "As root, run"),
        ("Failed to build `fastecdsa==2.3.2`", "As root, run"),
        ("write error: No space left on device", "the disk is full"),
        ("No interpreter found for Python >=3.11", "uv could not fetch one. As root, run the first line"),
        ("client error (Connect)", "Check the network"),
    ],
)
def test_a_failure_ends_with_what_to_do(stub: Path, said: str, advice: str) -> None:
    done = run(stub, UV_SAYS=said)
    assert done.returncode == 1
    assert said in done.stderr
    assert advice in done.stderr
    assert done.stderr.splitlines()[-1] == f"    curl -LsSf {INSTALLER} | sh"


def test_a_compiler_is_asked_for_as_the_system_installs_it(stub: Path) -> None:
    program(stub / "bin" / "apt-get", "#!/bin/sh\n")
    done = run(stub, UV_SAYS="error: command 'gcc' failed")
    assert "    sudo apt-get update && sudo apt-get install -y gcc libc6-dev libgmp-dev python3-dev\n" in done.stderr


def test_what_the_doctor_misses_decides_the_exit_status(stub: Path) -> None:
    done = run(stub, DOCTOR_STATUS="1")
    assert done.returncode == 1
    assert "something is missing (above)" in done.stdout
    assert "join INVITE" not in done.stdout


def test_uv_is_fetched_where_there_is_none_and_commands_are_told_with_their_place(stub: Path) -> None:
    (stub / "bin" / "uv").rename(stub / "uv")
    (stub / "home" / ".local" / "bin").mkdir(parents=True)
    (stub / "bin" / "volery").rename(stub / "home" / ".local" / "bin" / "volery")
    program(stub / "uv", UV.replace('"$STUB/bin"', '"$STUB/home/.local/bin"'))
    program(stub / "uv-installer.sh", '#!/bin/sh\nmkdir -p "$UV_INSTALL_DIR" && cp "$STUB/uv" "$UV_INSTALL_DIR/uv"\n')
    done = run(stub, VOLERY_UV=f"file://{stub}/uv-installer.sh")
    assert done.returncode == 0, done.stderr
    place = f"{stub}/home/.local/bin"
    assert done.stdout.splitlines()[-4:] == [
        "volery: So that `volery` is found, in this terminal and in new ones:",
        f'    {place}/uv tool update-shell; export PATH={place}:"$PATH"',
        "volery: To join a swarm, with the invite that its operator gave you:",
        "    volery join INVITE",
    ]


@pytest.mark.parametrize("installer", ["file:///nowhere/uv.sh", "file:///dev/null"])
def test_without_uv_it_ends_with_the_place_that_explains_how_to_get_it(stub: Path, installer: str) -> None:
    (stub / "bin" / "uv").unlink()
    done = run(stub, VOLERY_UV=installer)
    assert done.returncode == 1
    assert "https://docs.astral.sh/uv/getting-started/installation/" in done.stderr


def test_a_learner_reads_how_to_start_a_swarm(stub: Path) -> None:
    told = run(stub, "learner").stdout.splitlines()
    line = "    volery init my-swarm --example reverse"
    assert told[-5:-2] == ["volery: ready.", "volery: To start a small swarm on this machine:", line]


@pytest.mark.parametrize(
    ("held", "arguments", "wanted"),
    [
        (', extras = ["learner", "tasks"]', [], "volery[learner,tasks]"),
        (', extras = ["learner"], path = "/w.whl"', ["tasks", "learner"], "volery[tasks,learner]"),
        (', extras = ["learner"]', ["vllm"], "volery[learner]"),
        (', extras = ["learner"]', ["base"], "volery"),
        ("", [], "volery"),
    ],
)
def test_a_second_run_removes_no_extra(stub: Path, held: str, arguments: list[str], wanted: str) -> None:
    receipt(stub, held)
    assert run(stub, *arguments).returncode == 0
    assert asked(stub).split()[-1] == wanted


@pytest.mark.parametrize(("arguments", "needed"), [([], "1300 MB"), (["learner"], "1500 MB"), (["base"], "400 MB")])
def test_a_disk_that_is_too_small_is_told_before_the_download(stub: Path, arguments: list[str], needed: str) -> None:
    disk(stub, free_mb=300)
    done = run(stub, *arguments)
    assert done.returncode == 1
    assert f"300 MB are free at {stub}, and this takes {needed}.\n" in done.stderr
    assert not (stub / "asked").exists()


def test_an_upgrade_asks_for_no_space(stub: Path) -> None:
    receipt(stub, ', extras = ["transformers"]')
    disk(stub, free_mb=300)
    assert run(stub).returncode == 0


def test_a_disk_that_says_nothing_is_tried(stub: Path) -> None:
    program(stub / "bin" / "df", "#!/bin/sh\necho df: error\n")
    assert run(stub).returncode == 0


def test_the_line_to_run_again_is_the_one_that_was_typed(stub: Path) -> None:
    checkout = stub / "a checkout"
    checkout.mkdir()
    shutil.copy(SCRIPT, checkout)
    environment = {"PATH": str(stub / "bin"), "HOME": str(stub / "home"), "STUB": str(stub), "VOLERY_PINS": ""}
    done = subprocess.run(
        ["sh", f"{checkout}/install.sh", "learner"],
        env={**environment, "VOLERY_FROM": f"{checkout}/", "UV_SAYS": "no"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == f"    VOLERY_FROM='{checkout}/' sh '{checkout}/install.sh' learner"
    done = run(stub, "learner", "tasks", UV_SAYS="no", VOLERY_FROM="https://example.invalid/volery.whl")
    again = f"curl -LsSf {INSTALLER} | VOLERY_FROM=https://example.invalid/volery.whl sh -s -- learner tasks"
    assert done.stderr.splitlines()[-1] == f"    {again}"
    (stub / "bin" / "curl").unlink()
    assert run(stub, UV_SAYS="no").stderr.splitlines()[-1] == f"    wget -qO- {INSTALLER} | sh"


def test_a_home_with_spaces_is_quoted_where_it_is_to_be_typed(stub: Path) -> None:
    place = stub / "it's home" / "bin"
    program(place / "volery", VOLERY)
    uv = (stub / "bin" / "uv").read_text().replace('"$STUB/bin"', f'"{place}"')
    program(stub / "bin" / "uv", uv)
    line = run(stub).stdout.split("new ones:\n")[1].splitlines()[0]
    script = f"uv() {{ :; }}; {line}; exec volery --version"
    done = subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.stdout == "volery 9.9\n", done.stderr
    assert shlex.split(line)[-1] == f"PATH={place}:$PATH"


def test_a_script_that_was_cut_off_does_nothing(stub: Path) -> None:
    text = SCRIPT.read_text()
    end = len(text.rstrip())
    environment = {"PATH": str(stub / "bin"), "HOME": str(stub / "home"), "STUB": str(stub)}
    for cut in (end // 3, end // 2, *range(end - 60, end)):
        done = subprocess.run(["sh"], input=text[:cut], env=environment, cwd=stub, capture_output=True, text=True)
        assert done.stdout == "", text[cut - 20 : cut]
    assert not (stub / "asked").exists()


def test_an_interruption_says_how_to_go_on(stub: Path) -> None:
    os.mkfifo(stub / "never")
    environment = {"PATH": str(stub / "bin"), "HOME": str(stub / "home"), "STUB": str(stub), "TMPDIR": str(stub)}
    with (stub / "told").open("w") as told:  # no pipe: what shows the progress may outlive the script by two seconds
        script = subprocess.Popen(
            ["sh", str(SCRIPT), "base"],
            env={**environment, "VOLERY_PINS": "", "UV_HANGS": "1"},
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=told,
        )  # fmt: skip
        with (stub / "never").open("w"):  # waits until uv, a `cat` here, reads from it
            os.killpg(script.pid, signal.SIGINT)
            assert script.wait(60) == 130
    assert (stub / "told").read_text().splitlines()[-2:] == [
        "volery: stopped. What was downloaded is kept. To go on, run this again:",
        f"    sh {SCRIPT} base",
    ]
    assert not list(stub.glob("tmp.*"))


@pytest.mark.parametrize(
    ("said", "advice"),
    [("cp: error writing 'uv': No space left on device", "the disk is full"), ("curl: (18)", "Check the network")],
)
def test_an_installer_of_uv_that_fails_ends_with_what_to_do(stub: Path, said: str, advice: str) -> None:
    (stub / "bin" / "uv").unlink()
    program(stub / "uv-installer.sh", f'echo "{said}"; exit 1\n')
    done = run(stub, VOLERY_UV=f"file://{stub}/uv-installer.sh")
    assert done.returncode == 1
    assert advice in done.stderr
    assert done.stderr.splitlines()[-1] == f"    curl -LsSf {INSTALLER} | sh"


@pytest.mark.parametrize("script", ["install.sh", "tools/bootstrap.sh"])
def test_scripts_are_clean(script: str) -> None:
    subprocess.run(["sh", "-n", str(ROOT / script)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
