"""Serve as much of Hugging Face's hub as an upload takes, from memory.

The answers follow huggingface_hub 2.4.0: repos/create, models/REPO, validate-yaml, preupload, LFS batch and upload,
resolve, commit. `refuse`: the status with which the next requests fail, by the end of their path.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_a-token-of-a-test"


@dataclass
class Repository:
    """One repository: its files by name, whether it is private, and the messages of its commits."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b""})
    commits: list[str] = field(default_factory=lambda: ["initial commit"])

    @property
    def head(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()


@dataclass
class Hub:
    """The server's data. `large`: contents by their SHA-256. `asked`: the requests so far, with their tokens."""

    url: str = ""
    repos: dict[str, Repository] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    refuse: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def uploads(self) -> int:
        """Return how often a large file was sent."""
        return sum(path.startswith("/upload/") for _, path, _ in self.asked)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Yield a hub on this machine, gone when the block ends."""
    hub = Hub()

    class Handler(_Handler):
        kept = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    kept: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = (
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "chunked" not in str(self.headers.get("Transfer-Encoding"))
            else self._chunks()
        )
        token = str(self.headers.get("Authorization") or "")
        self.kept.asked.append((self.command, path, token))
        for end, status in self.kept.refuse.items():
            if path.endswith(end):
                return self._answer({"error": "the server refuses this in a test"}, status)
        if not path.startswith("/upload/") and token != f"Bearer {TOKEN}":
            return self._answer({"error": "Invalid username or password."}, 401)
        return self._answered(path, body)

    def _answered(self, path: str, body: bytes) -> None:
        match path.strip("/").split("/"):
            case ["api", "repos", "create"]:
                return self._create(json.loads(body))
            case ["api", "validate-yaml"]:
                return self._answer({"errors": [], "warnings": []})
            case ["upload", oid]:
                self.kept.large[oid] = body
                return self._answer({})
            case ["api", "models", organization, name, *rest]:
                repo = self.kept.repos.get(f"{organization}/{name}")
                return self._of_repo(repo, rest, body) if repo else self._answer({"error": "no such repository"}, 404)
            case [organization, git, "info", "lfs", "objects", "batch"] if git.endswith(".git"):
                return self._batch(json.loads(body))
            case [organization, name, "resolve", _, file]:
                return self._file(self.kept.repos[f"{organization}/{name}"], file)
        return self._answer({"error": f"nothing is known of {path}"}, 404)

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.kept.repos:
            return self._answer({"error": "You already created this", "url": f"{self.kept.url}/{name}"}, 409)
        private = asked.get("private") or asked.get("visibility") == "private"
        self.kept.repos[name] = Repository(private=bool(private))
        return self._answer({"url": f"{self.kept.url}/{name}"})

    def _of_repo(self, repo: Repository, rest: list[str], body: bytes) -> None:
        match rest:
            case [] | ["revision", _]:
                siblings = [{"rfilename": name} for name in sorted(repo.files)]
                return self._answer({"id": "x/y", "sha": repo.head, "private": repo.private, "siblings": siblings})
            case ["preupload", _]:
                files = [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for one in json.loads(body)["files"]
                ]
                return self._answer({"files": files})
            case ["commit", _]:
                return self._commit(repo, [json.loads(line) for line in body.splitlines()])
        return self._answer({"error": "what?"}, 404)

    def _commit(self, repo: Repository, lines: list[dict[str, Any]]) -> None:
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repo.head):
            return self._answer({"error": "A commit has happened since. Please refresh and try again."}, 412)
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    repo.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    repo.files[value["path"]] = self.kept.large[value["oid"]]
                case "deletedFile":
                    del repo.files[value["path"]]
        repo.commits.append(header["summary"])
        return self._answer({"commitUrl": f"{self.kept.url}/x/y/commit/{repo.head}", "commitOid": repo.head})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for one in asked["objects"]:
            found = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.kept.large:
                found["actions"] = {"upload": {"href": f"{self.kept.url}/upload/{one['oid']}"}}
            objects.append(found)
        return self._answer({"transfer": "basic", "objects": objects})

    def _file(self, repo: Repository, name: str) -> None:
        data = repo.files.get(name)
        if data is None:
            return self._answer({"error": "Entry not found"}, 404)
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", repo.head)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return None

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _answer(self, value: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
