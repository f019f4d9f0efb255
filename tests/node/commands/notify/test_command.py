"""`volery notify` posts one notice, and says what happened to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.notify.command import post_one
from node.runtime.errors import RunError, UsageError
from tests.support.reward_servers import Reply, nobody, serving

SWARM = '[swarm]\nname = "words"\n[model]\ndirectory = "model"\n[task]\nspec = "reverse"\n[learn]\nsteps = 3\n'


def write(path: Path, text: str, url: str) -> Path:
    path.write_text(f'{text}[notify]\nurl = "{url}"\n', encoding="utf-8")
    return path


async def test_a_learners_file_and_a_nodes(tmp_path: Path) -> None:
    with serving(lambda number, heard: Reply(status=204, body=b"")) as server:
        swarm = await post_one(write(tmp_path / "swarm.toml", SWARM, f"{server.url}/hook/secret"))
        node = await post_one(write(tmp_path / "node.toml", 'name = "attic"\n', f"{server.url}/hook/secret"))
    assert [heard.value["title"] for heard in server.heard] == ["words: a test", "attic: a test"]
    assert swarm.text == (
        f"Posted a notice to {server.url}/*** as JSON: look whether it is there. A run posts these kinds: alarm, ban, "
        "standstill, nodes, certificate, trouble, end."
    )
    assert node.text.endswith("A run posts these kinds: trouble, end.")


async def test_what_goes_wrong_is_told_with_what_to_do(tmp_path: Path) -> None:
    with serving(lambda number, heard: Reply(status=403, body=b"invalid token")) as server:
        file = write(tmp_path / "swarm.toml", SWARM, f"{server.url}/hook/secret")
        with pytest.raises(RunError, match=r"/\*\*\* has not accepted the notice: HTTP 403: invalid token\. Compare"):
            await post_one(file)
    assert len(server.heard) == 1
    with pytest.raises(RunError, match="has not accepted the notice"):
        await post_one(write(tmp_path / "swarm.toml", SWARM, nobody()))


async def test_a_file_without_a_url_says_where_to_write_it(tmp_path: Path) -> None:
    file = tmp_path / "swarm.toml"
    file.write_text(SWARM, encoding="utf-8")
    with pytest.raises(UsageError, match=r"\[notify\] names no URL"):
        await post_one(file)
    with pytest.raises(UsageError, match="no such file"):
        await post_one(tmp_path / "none.toml")
