"""Push an export to Hugging Face's hub, or to a server with the same API (HF_ENDPOINT).

One commit contains all files, so the repository shows all of a push or nothing. Content that the hub already has is not
sent again, so an interrupted push continues where it was. The commit names the revision that was examined as its
parent, so that another person's push in the meantime is never lost. The client is imported only when it is used, since
that takes 0.3 s.

Invariants:

- The token comes from HF_TOKEN or from the login of the hub's client, and no message shows it.
- Files that volery did not put there are never changed.
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
"""Most characters of a server's message in an error."""

LOG_IN = "Log in (hf auth login), or set HF_TOKEN to a token with write access (https://huggingface.co/settings/tokens)"


def require_hub(repo: str) -> None:
    """Check before any work that `repo` is a valid name and that there is a token. Raises UsageError."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"--push {repo!r}: {_sentence(str(error))} {_how(repo)}") from None
    if repo.count("/") != 1:
        raise UsageError(f"--push {repo!r}: a model's name on the hub is ORG/NAME. {_how(repo)}")
    if not get_token():
        raise UsageError(f"--push {repo}: there is no token for the hub. {LOG_IN}.")


def _how(repo: str) -> str:
    return "Write ORG/NAME, or a directory as ./NAME or file:///PATH."


def push_to_hub(source: Path, record: ExportRecord, repo: str, *, private: bool) -> str:
    """Make the repository `repo` hold the export in `source`; return its address. Raises UsageError, RunError."""
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
                f"--push {repo}: it is already public, but --private was given; nothing was pushed. Make it private in "
                "its settings, or push to another repository."
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
    """Return the record of the push before; None if there was none."""
    if RECORD not in theirs:
        return None
    with tempfile.TemporaryDirectory(prefix="volery-") as place:
        return read_record(Path(api.hf_hub_download(repo, RECORD, revision=revision, local_dir=place)))


@contextmanager
def _in_words(repo: str, source: Path, token: str | None) -> Iterator[None]:
    """Turn errors on the way to the hub into UsageError or RunError."""
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled  # type: ignore[attr-defined]

    kept = f"The export is in {source}; the same command with --push {repo} continues from there."
    try:
        yield
    except NodeError:
        raise
    except OfflineModeIsEnabled:
        raise UsageError(
            f"--push {repo}: HF_HUB_OFFLINE is set, so the hub's client makes no requests. Unset it. {kept}"
        ) from None
    except (HTTPError, OSError, RuntimeError, ValueError, LookupError) as error:
        said = _message_of(error).replace(token or "\0", "...")
        raise RunError(f"--push {repo}: {_why(error, repo)} ({said}). {kept}") from None


def _why(error: Exception, repo: str) -> str:
    """Return what went wrong, and what to do."""
    status = _status(error)
    if status == 401:
        return f"the hub did not accept the token. {LOG_IN}"
    if status == 403:
        return f"the token may not write to {repo}. Use one with write access, or a repository of your own"
    if status == 404:
        return f"this token can see no {repo} on the hub. Check the name, and {LOG_IN[0].lower()}{LOG_IN[1:]}"
    if status in (409, 412):
        return "somebody else changed the repository meanwhile, and nothing was replaced. Look at it, and push again"
    if status is not None and status >= 500:
        return "the hub reports an internal error. Try again later"
    if status is not None:
        return "the hub refused it. Correct what it says"
    return "the hub could not be reached, or the connection broke. Check the network (and HF_ENDPOINT if it is set)"


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status in an error or in its causes; None if there is none."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _message_of(error: BaseException) -> str:
    """Return the server's message, or else that of the innermost error."""
    while not (words := getattr(error, "server_message", None)) and error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(words or error or type(error).__name__).split())[:MAX_SAID_CHARS].rstrip(".")


def _sentence(text: str) -> str:
    return " ".join(text.split())[:MAX_SAID_CHARS].rstrip(".") + "."
