"""Push an export to Hugging Face's hub, or to a server that speaks like it (HF_ENDPOINT).

One commit has all files: the repository shows all of a push or nothing. Content that the hub has already is not sent
again, so a push that was cut short goes on where it was. The commit names the state that was looked at as its parent,
so what somebody else pushed meanwhile is never lost. The client is imported here and when it is used: it takes 0.3 s.

Invariants:
- The token comes from HF_TOKEN or from the login of the hub's client; no message shows it.
- What volery did not put there is never changed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Any

from node.commands.export.record import RECORD, ExportRecord, changes, read_record
from node.runtime.errors import NodeError, RunError, UsageError

MAX_SAID_CHARS = 300
"""Of what a server says in an error."""

LOG_IN = "Log in (hf auth login), or set HF_TOKEN to a token with write access (https://huggingface.co/settings/tokens)"


def require_hub(repo: str) -> None:
    """Find out before any work that a push to `repo` has a name and a token. Raises UsageError."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"--push {repo!r}: {_sentence(str(error))} {_how(repo)}") from None
    if repo.count("/") != 1:
        raise UsageError(f"--push {repo!r}: the hub calls a model ORG/NAME. {_how(repo)}")
    if not get_token():
        raise UsageError(f"--push {repo}: there is no token for the hub. {LOG_IN}.")


def _how(repo: str) -> str:
    return "Write ORG/NAME, or a directory as ./NAME or file:///PATH."


def push_to_hub(source: Path, record: ExportRecord, repo: str, *, private: bool) -> str:
    """Have the repository `repo` hold the export in `source`; return its address. Raises UsageError, RunError."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    token = get_token()
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token, library_name="volery", library_version=distribution_version("volery"))
    with _in_words(repo, source, token):
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        info = api.model_info(repo)
        if private and info.private is False:
            raise UsageError(
                f"--push {repo}: it is public already, and --private was asked for; nothing was pushed. Make it "
                "private in its settings, or push to another repository."
            )
        theirs = {one.rfilename for one in info.siblings or ()}
        found = changes(repo, theirs, _record_in(api, repo, theirs, info.sha), record)
        api.create_commit(
            repo,
            [
                *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=source / name) for name in found.put),
                *(CommitOperationDelete(path_in_repo=name) for name in found.remove),
            ],
            commit_message=f"Version {record.version}",
            parent_commit=info.sha,
        )
    return str(url)


def _record_in(api: Any, repo: str, theirs: set[str], revision: str | None) -> ExportRecord | None:
    """What the push before wrote down, if there was one."""
    if RECORD not in theirs:
        return None
    with tempfile.TemporaryDirectory(prefix="volery-") as place:
        return read_record(Path(api.hf_hub_download(repo, RECORD, revision=revision, local_dir=place)))


@contextmanager
def _in_words(repo: str, source: Path, token: str | None) -> Iterator[None]:
    """Raise UsageError or RunError for what goes wrong on the way to the hub."""
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    kept = f"The export is in {source}; the same command with --push {repo} goes on from there."
    try:
        yield
    except NodeError:
        raise
    except OfflineModeIsEnabled:
        raise UsageError(
            f"--push {repo}: HF_HUB_OFFLINE is set, so the hub's client asks nobody. Unset it. {kept}"
        ) from None
    except (HTTPError, OSError, RuntimeError, ValueError, LookupError) as error:
        said = _said(error).replace(token or "\0", "...")
        raise RunError(f"--push {repo}: {_why(error, repo)} ({said}). {kept}") from None


def _why(error: Exception, repo: str) -> str:
    """What went wrong, and what to do."""
    status = _status(error)
    if status == 401:
        return f"the hub did not accept the token. {LOG_IN}"
    if status == 403:
        return f"the token may not write to {repo}. Take one with write access, or a repository of your own"
    if status == 404:
        return f"the hub knows no {repo} that this token may see. Check the name, and {LOG_IN[0].lower()}{LOG_IN[1:]}"
    if status in (409, 412):
        return "somebody else changed the repository meanwhile, and nothing was replaced. Look at it, and push again"
    if status is not None and status >= 500:
        return "the hub is in trouble. Try again later"
    if status is not None:
        return "the hub refused it. Mend what it says"
    return "the hub could not be reached, or the connection broke. Check the network (and HF_ENDPOINT if it is set)"


def _status(error: BaseException | None) -> int | None:
    """The HTTP status in an error or in what caused it."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _said(error: BaseException) -> str:
    """What the server said, else what the innermost error says."""
    while not (words := getattr(error, "server_message", None)) and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(words or error or type(error).__name__).split())[:MAX_SAID_CHARS].rstrip(".")


def _sentence(text: str) -> str:
    return " ".join(text.split())[:MAX_SAID_CHARS].rstrip(".") + "."
