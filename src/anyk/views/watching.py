"""Live pages about runs, served to this machine only."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyk.base import BadInput, ByName, as_bad_input, printable, remove_abandoned, typed
from anyk.runs import Following, Run, is_race
from anyk.runs.api import COPIES, LOG_FILE, RACE_FILE, log_state, newest_seal, read_race, run_folders
from anyk.views.exports.prometheus import Port
from anyk.views.page import bokeh_scripts, check_packages, page, render, script
from anyk.views.prose import count_steps, duration
from anyk.views.result_tables import number

_HOST = "127.0.0.1"
_LEAST, _SHARE = 1.0, 0.1  # least seconds between two renderings of a page, and their largest share of time
_REQUEST = 10.0  # seconds for a request to be sent
_SILENT = 10.0  # seconds without news after which a run is shown as silent
_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {  # of every answer
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_State = tuple[str, str]  # the class in the style sheet, and the state in words


class Watch(contextlib.AbstractContextManager["Watch"]):
    """Serves a live page for each run and race in some folders, at :attr:`url`.

    ``folders``: of runs, of races, or with such folders inside; runs that start later in them are added. A page is the
    report of :func:`anyk.report`. Its state follows the run twice a second; the report is rendered again when the log
    has grown, at most once a second and in at most 10 % of the time. It reads only the runs' logs
    (:class:`anyk.runs.Following`) and writes nothing to their folders, so other processes may run them, also on other
    machines if :class:`anyk.callbacks.Mirror` copies their logs.

    Only requests from this machine for its own names are answered, so that no page of another site reads the answers.
    ``port``: 0 takes a free port. Nothing is served before :meth:`serve`.

    Raises :class:`~anyk.BadInput` for a missing folder or a port that is in use, and
    :class:`~anyk.base.errors.MissingPackage` without Bokeh and Jinja2 (``anyk[report]``).
    """

    @typed
    def __init__(self, folders: Sequence[str | Path], *, port: Port = 0) -> None:
        check_packages()
        remove_abandoned(COPIES)
        self._folders = [Path(folder) for folder in folders]
        for folder in self._folders:
            if not folder.is_dir():
                raise BadInput(f"there is no folder '{folder}' to watch")
        self._pages: dict[Path, _Page] = {}
        self._lock = threading.Lock()
        self._scripts = {
            "/bokeh.js": "\n".join(bokeh_scripts()),
            "/page.js": script("page.js"),
            "/live.js": script("live.js"),
        }

        class Handler(_Handler):
            """Answers by this watch."""

            answer = staticmethod(self._answer)

        with as_bad_input(f"the page cannot be served at {_HOST}:{port}; --port 0 takes a free port"):
            self._server = _Server((_HOST, port), Handler)
        self.url = f"http://{_HOST}:{self._server.server_port}/"
        self._served = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self) -> None:
        """Answer until :meth:`close` is called in another thread, or Ctrl-C."""
        self._served = True
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop serving and remove all copies; safe to call twice."""
        if self._served:
            self._server.shutdown()
        self._server.server_close()
        for open_page in self._pages.values():
            open_page.close()

    # ------------------------------------------------------------------------------------------- answers

    def _answer(self, path: str) -> tuple[str, str] | None:
        """Return the content type and text for a path; None if there is no such page."""
        if path in self._scripts:
            return "text/javascript", self._scripts[path]
        with self._lock:
            self._find_runs()
            pages = list(self._pages.values())
        if path == "/":
            return "text/html", self._list(pages)
        first, _, page_part = path[1:].partition("/")
        if not first.isdecimal() or len(first) > 6 or int(first) >= len(pages) or page_part not in ("", "state"):
            return None
        wanted = pages[int(first)]
        if page_part:
            return "application/json", json.dumps(wanted.state())
        try:
            return "text/html", wanted.whole()
        except (BadInput, OSError) as error:
            return "text/html", render("list", title=wanted.name, message=str(error), entries=[])

    def _find_runs(self) -> None:
        """Add pages for runs and races that have started."""
        for folder in self._folders:
            inner = sorted(folder.iterdir()) if folder.is_dir() else []
            alone = (folder / "run.toml").is_file() or (folder / RACE_FILE).is_file()
            for candidate in [folder] if alone else [candidate for candidate in inner if candidate.is_dir()]:
                if candidate not in self._pages and ((candidate / "run.toml").is_file() or is_race(candidate)):
                    self._pages[candidate] = _Page(candidate)

    def _list(self, pages: Sequence[_Page]) -> str:
        lines = [listed.line() | {"number": i} for i, listed in enumerate(pages)]
        lines.sort(key=lambda line: (line["state"][0] == "ended", -line["number"]))
        watched = ", ".join(str(folder) for folder in self._folders)
        message = "" if lines else "No run has started yet; this page shows the first when it starts."
        return render("list", title=f"Runs in {watched}", message=message, entries=lines)


def _end_state(runs: Sequence[Run]) -> _State:
    """Return the state of runs that have all ended, which is the last run's."""
    if len(runs) > 1:
        return "ended", f"ended, {len(runs)} runs"
    kind = str((runs[-1].notes or [{}])[-1].get("kind"))
    return "ended", kind if kind in ("failed", "interrupted") else "ended"


class _Page:
    """The live page of a run or a race, and its line in the list."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name or str(folder)
        self._folder = folder
        self._followed: dict[Path, Following] = {}
        self._lock = threading.Lock()
        self._text: tuple[str, str] | None = None  # the seals of the logs that the page shows, and the page
        self._next = 0.0  # when the page may be made again
        self._answer: ByName = {"state": ("running", "the page is being made"), "seals": "", "due": False}
        self._line: tuple[list[object], ByName] | None = None  # the line of a run that has ended

    def close(self) -> None:
        """Remove the copies."""
        for followed in self._followed.values():
            followed.close()
        self._followed.clear()

    def _folders(self) -> tuple[list[Path], list[str]]:
        """Return the folders of the runs that have started, and the titles of the runs that have not."""
        if (self._folder / RACE_FILE).is_file():
            planned = [(self._folder / entry.folder, entry.title) for entry in read_race(self._folder).entries]
            waiting = [title for folder, title in planned if not (folder / LOG_FILE).is_file()]
            return [folder for folder, title in planned if title not in waiting], waiting
        return [self._folder] if (self._folder / "run.toml").is_file() else run_folders(self._folder), []

    def _read(self) -> tuple[list[Run], _State]:
        """Return the runs that have started, read from their logs as they are now, and their common state."""
        folders, waiting = self._folders()
        if not folders:
            raise BadInput(f"'{self._folder}' has no run that has started")
        for folder in folders:
            if folder not in self._followed:
                self._followed[folder] = Following(folder)
        followed = [self._followed[folder] for folder in folders]
        runs = [following.run() for following in followed]
        going = [i for i, following in enumerate(followed) if not following.ended]
        if not going and not waiting:
            return runs, _end_state(runs)
        last = runs[going[-1] if going else -1]
        planned = len(runs) + len(waiting)
        words = f"{count_steps(last.steps)} in {duration(last.seconds)}"
        if planned > 1:
            words = f"run {len(runs)} of {planned}, {last.config.strategy}: {words}"
        quiet = min(followed[i].quiet for i in going or range(len(runs)))
        if quiet > _SILENT:
            return runs, ("silent", f"no news for {duration(float(int(quiet)))}, after {words}")
        return runs, ("running", f"running: {words}")

    @contextlib.contextmanager
    def _in_one_sentence(self) -> Iterator[None]:
        """Turn what values that no run writes make of their readers into :class:`~anyk.BadInput`."""
        try:
            yield
        except (BadInput, OSError):
            raise
        except Exception as error:  # one run must not take the others' page away
            raise BadInput(
                f"'{self._folder}' has values that no run writes ({type(error).__name__}); anyk verify tells more"
            ) from None

    def line(self) -> ByName:
        """Return the line of the run or race in the list."""
        with self._lock:
            try:
                with self._in_one_sentence():
                    return self._current_line()
            except (BadInput, OSError) as error:
                return {"name": self.name, "state": ("silent", str(error)), "cells": [""] * 6}

    def _current_line(self) -> ByName:
        folders, waiting = self._folders()
        log_states: list[object] = [(folder, *log_state(folder / LOG_FILE)) for folder in folders]
        if self._line is not None and self._line[0] == log_states:
            return self._line[1]
        runs, state = self._read()
        last, planned = runs[-1], len(runs) + len(waiting)
        what = f"race of {planned} runs" if planned > 1 else last.config.strategy
        metric = (last.metric or {}).get("value")
        named = "" if metric is None else f"{last.metric_name} {number(metric)}"
        cells = [what, str(last.config.workers), f"{last.steps:,}", duration(last.seconds), number(last.loss), named]
        line = {"name": self.name, "state": state, "cells": cells}
        if state[0] == "ended":
            self._line = log_states, line
            self.close()  # copies are made again for the next request
        return line

    def whole(self) -> str:
        """Return the page, rendered again if the logs have changed."""
        with self._lock, self._in_one_sentence():
            runs, _ = self._read()
            seals = _seals(runs)
            if self._text is None or self._text[0] != seals:
                start = time.thread_time()
                self._text = seals, page(runs, self._folders()[1], live=seals)
                self._next = time.monotonic() + max(_LEAST, (time.thread_time() - start) / _SHARE)
            return self._text[1]

    def state(self) -> ByName:
        """Return the state in words, the newest seals, and whether the page may be made again.

        While the page is being made, which may take seconds, the last answer is returned.
        """
        if self._lock.acquire(blocking=False):
            try:
                with self._in_one_sentence():
                    runs, state = self._read()
                    due = state[0] == "ended" or time.monotonic() >= self._next
                    self._answer = {"state": state, "seals": _seals(runs), "due": due}
            except (BadInput, OSError) as error:  # the folder is gone
                self._answer = {"state": ("silent", str(error)), "seals": "", "due": False}
            finally:
                self._lock.release()
        return self._answer


def _seals(runs: Sequence[Run]) -> str:
    """Return the newest seals of the runs' logs, which change with every write."""
    return ",".join(newest_seal(run.log) for run in runs)


class _Server(ThreadingHTTPServer):
    """Ends with the answers that are under way, and waits for no request that arrives byte by byte."""

    daemon_threads = False

    def __init__(self, *life: Any) -> None:
        # connections whose request is not complete, since when; first, as a server without its port is closed at once
        self.asking: dict[socket.socket, float] = {}
        super().__init__(*life)

    def service_actions(self) -> None:
        """Hang up on requests that take too long; called ten times a second."""
        late = time.monotonic() - _REQUEST
        self._hang_up([asking for asking, since in list(self.asking.items()) if since < late])

    def server_close(self) -> None:
        """Hang up on incomplete requests, and wait for answers that are under way."""
        self._hang_up(list(self.asking))
        super().server_close()

    def _hang_up(self, connections: Sequence[socket.socket]) -> None:
        for connection in connections:
            self.asking.pop(connection, None)
            with contextlib.suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    """Answers requests from this machine."""

    server: _Server
    server_version = "anyk"
    sys_version = ""
    timeout = _REQUEST
    answer: Any

    def setup(self) -> None:
        """Note when the connection was made."""
        super().setup()
        self.server.asking[self.connection] = time.monotonic()

    def finish(self) -> None:
        """Forget the connection."""
        self.server.asking.pop(self.connection, None)
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().finish()

    def do_GET(self) -> None:
        self.server.asking.pop(self.connection, None)  # the request is complete
        port = self.connection.getsockname()[1]
        if self.headers.get("Host", "") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            # another site's name may resolve to this address; a page of that site could then read the answer
            self._send(HTTPStatus.FORBIDDEN, "text/plain", f"ask for http://{_HOST}:{port}/")
            return
        try:
            answer = self.answer(urlsplit(self.path).path)
        except Exception as error:  # one page must not end the others
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{type(error).__name__}: {error}")
            return
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page")
            return
        self._send(HTTPStatus.OK, *answer)

    def _send(self, status: HTTPStatus, kind: str, content: str) -> None:
        body = printable(content).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            **_HEADERS,
        }.items():
            self.send_header(name, value)
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client has gone
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
