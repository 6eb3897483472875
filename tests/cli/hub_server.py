"""A hub on this machine: the part of the Hugging Face API that a download uses, with its ways to fail."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO, GATED, PRIVATE = "someone/tiny-diffusion", "someone/gated", "someone/private"
WEIGHTS = "model.safetensors"


class Hub:
    """Serves one folder as `REPO`. `requests` holds (method, path, Range header).

    `cut` ends a first answer that carries weights after so many bytes, `failing` answers them with 500, `stalling`
    stops sending in the middle.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut: int | None = None
        self.failing = self.stalling = False
        self.stalled, self.released = threading.Event(), threading.Event()
        hub = self

        class Handler(_Handler):
            served = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def fetched(self) -> list[str]:
        """The files whose bytes were asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append((self.command, path, self.headers.get("Range")))
        words = path.strip("/").split("/")
        api = words[:2] == ["api", "models"]
        repo = "/".join(words[2:4] if api else words[:2])
        if repo == GATED and not api:
            self._fail(403, "GatedRepo")
        elif repo == PRIVATE:
            self._fail(401, None)
        elif repo not in (REPO, GATED):
            self._fail(404, "RepoNotFound")
        elif api:
            self._api(words[4:], repo)
        elif words[2] == "resolve" and words[3] in ("main", COMMIT):
            self._file("/".join(words[4:]))
        else:
            self._fail(404, "RevisionNotFound")

    def _api(self, words: list[str], repo: str) -> None:
        files = sorted(path for path in self.served.folder.iterdir() if path.is_file())
        if len(words) > 1 and words[1] not in ("main", COMMIT):
            self._fail(404, "RevisionNotFound")
        elif words[:1] == ["tree"]:
            self._json(
                [{"type": "file", "path": each.name, "size": each.stat().st_size, "oid": _etag(each)} for each in files]
            )
        else:
            siblings = [{"rfilename": each.name} for each in files]
            self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False})

    def _file(self, name: str) -> None:
        path = self.served.folder / name
        if not path.is_file():
            self._fail(404, "EntryNotFound")
            return
        if self.command == "GET" and name == WEIGHTS and self.served.failing:
            self._fail(500, None)
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{_etag(path)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "GET":
            self._send(name, data[start:])

    def _send(self, name: str, data: bytes) -> None:
        if name == WEIGHTS and self.served.cut is not None:
            self.wfile.write(data[: self.served.cut])
            self.served.cut = None
            self.close_connection = True
        elif name == WEIGHTS and self.served.stalling:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.served.stalled.set()
            self.served.released.wait(60)
            self.close_connection = True
        else:
            self.wfile.write(data)

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _fail(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _entry(path: Path) -> dict[str, object]:
    return {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _etag(path)}
