"""Pages that follow runs: they show what is in the log, write nothing, and answer this machine only."""

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import anyk
from anyk.cli import main
from anyk.runs.log.fates import tasks_of
from anyk.runs.log.following import Following
from anyk.runs.log.log_writer import LogWriter
from anyk.runs.log.schema import TABLES
from anyk.views import Watch, watching
from anyk.views.page.figures import kinds

pytestmark = pytest.mark.slow

PROBLEM = anyk.problems.from_recipe({"data": "synthetic:rows=240,features=5"})
STEPS = 12
SEALS = re.compile(r'"live": ?("[^"]*")')


class Writer:
    """Writes the log of a run that has ended into its folder again, up to one step after the other."""

    def __init__(self, folder, strategy="frc:load=3", **more):
        fleet = anyk.cluster("simulated:partition=0.05", workers=6, delays="exp:mean=1", seed=3)
        with anyk.train(PROBLEM, strategy, fleet, steps=STEPS, out=folder, **more) as run:
            self.rows = {name: run.log.rows(f"SELECT * FROM {name}") for name in TABLES}
        for file in folder.glob("*.safetensors"):
            file.unlink()
        (folder / "log.sqlite").unlink()
        self.log = LogWriter(folder / "log.sqlite")
        self.written = dict.fromkeys(TABLES, 0)

    def upto(self, step):
        """All that had happened when a step was taken; after the last step also the end."""
        seq = next((row[-1] for row in self.rows["updates"] if row[1] == step + 1), float("inf"))
        for name, all_rows in self.rows.items():
            column = 1 if name == "evaluations" else 0 if name == "events" else -1
            limit = step if name == "evaluations" else seq - 1
            if name in ("works", "partitions"):
                limit = float("inf")
            due = [
                row for row in all_rows if row[column] is None or isinstance(row[column], str) or row[column] <= limit
            ]
            self.log._rows[name].extend(due[self.written[name] :])
            self.written[name] = len(due)
        self.log.flush()


@pytest.fixture
def served(tmp_path):
    """A watch of a folder of runs, in a thread."""
    watch = Watch([tmp_path])
    thread = threading.Thread(target=watch.serve)
    thread.start()
    yield watch
    watch.close()
    thread.join()


def ask(watch, path, method="GET", **headers):
    """Status, text and headers of an answer."""
    link = http.client.HTTPConnection("127.0.0.1", int(watch.url.rsplit(":")[-1].strip("/")), timeout=60)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    response = answer.status, answer.read().decode(), dict(answer.getheaders())
    link.close()
    return response


def stand(folder):
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in folder.iterdir()
    }


def test_the_state_tells_when_a_page_is_to_be_made_again(tmp_path, served):
    writer = Writer(tmp_path / "run")

    def seals():
        return json.loads(ask(served, "/0/state")[1])["seals"], json.loads(SEALS.search(ask(served, "/0")[1])[1])

    writer.upto(5)
    newest, displayed = seals()
    assert newest == displayed == writer.log.seal
    writer.upto(9)
    assert seals() == (writer.log.seal, writer.log.seal) and writer.log.seal != newest
    writer.log.truncate(writer.rows["updates"][1][-1])  # cut back, as when it is resumed from a checkpoint
    assert seals() == (writer.log.seal, writer.log.seal)
    state = json.loads(ask(served, "/0/state")[1])
    assert state["state"][0] in ("running", "silent") and not state["due"]  # it has just been made
    writer.upto(STEPS)
    writer.log.flush()
    writer.log.close()
    assert json.loads(ask(served, "/0/state")[1])["due"]  # what has ended is shown immediately
    shutil.rmtree(tmp_path / "run")
    assert json.loads(ask(served, "/0/state")[1])["state"][0] == "silent"


def test_only_this_machine_may_ask_and_only_read(tmp_path, served):
    name = "<img src=x onerror=alert(1)>"
    anyk.train(PROBLEM, "uncoded", anyk.cluster("simulated", workers=2), steps=1, out=tmp_path / name).close()
    host = served.url.removeprefix("http://").strip("/")
    assert served.url.startswith("http://127.0.0.1:")
    status, page, headers = ask(served, "/", Host=host)
    assert status == 200 and "<img" not in page and "&lt;img src=x" in page
    assert "default-src 'none'" in headers["Content-Security-Policy"] and "Access-Control-Allow-Origin" not in headers
    for foreign in ("evil.example", f"evil.example:{host.split(':')[1]}", "127.0.0.1", "127.0.0.1:1", ""):
        for path in ("/", "/0", "/0/state", "/page.js"):
            status, page, _ = ask(served, path, Host=foreign)
            assert status == 403 and "img" not in page
    for path in ("/1", "/-1", "/0/other", "/..%2f..%2fetc/passwd", "/../../etc/passwd", "/run.toml", "//evil.example/"):
        assert ask(served, path)[0] == 404
    assert ask(served, "/", method="POST")[0] == 501 and ask(served, "/0", method="DELETE")[0] == 501


def test_a_race_and_runs_that_have_not_begun(tmp_path, served):
    assert "No run has started yet" in ask(served, "/")[1]
    with anyk.race(PROBLEM, ["uncoded", "frc:load=3"], workers=6, cluster="simulated", steps=3, seeds=2,
                   out=tmp_path / "race") as race:  # fmt: skip
        titles = [race.title(run) for run in race.runs]
    for name in ("frc-load=3", "frc-load=3_seed=1", "uncoded_seed=1"):
        shutil.move(tmp_path / "race" / name, tmp_path.parent / f"{tmp_path.name}-{name}")
    body = ask(served, "/")[1]
    assert "race of 4 runs" in body and "run 1 of 4, uncoded: 3 steps" in body
    status, page, _ = ask(served, "/0")
    assert status == 200 and f"not begun yet: {', '.join(titles[1:])}" in page
    (tmp_path / "race" / "race.toml").write_text("format = 1")
    assert "race.toml" in ask(served, "/0")[1] and ask(served, "/")[0] == 200


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_the_command_ends_with_a_signal_and_leaves_nothing(tmp_path, ending):
    (tmp_path / "runs").mkdir()
    (tmp_path / "copies").mkdir()
    anyk.train(PROBLEM, "uncoded", anyk.cluster("simulated", workers=2), steps=1, out=tmp_path / "runs" / "a").close()
    before = stand(tmp_path / "runs" / "a")
    script = (  # interrupts may be ignored where these tests run
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from anyk.__main__ import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "watch", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "copies")},
    ) as process:  # fmt: skip
        said = process.stdout.readline()
        port = int(re.search(r"watching runs at http://127\.0\.0\.1:(\d+)/", said)[1])
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        link.request("GET", "/")
        assert 'href="/0"' in link.getresponse().read().decode()
        link.request("GET", "/0")
        assert link.getresponse().status == 200 and list((tmp_path / "copies").iterdir())
        link.close()
        taken = CliRunner().invoke(main, ["watch", str(tmp_path), "--port", str(port)])
        process.send_signal(ending)
        assert process.wait(250) == 0 and process.stderr.read() == ""
    assert list((tmp_path / "copies").iterdir()) == [] and stand(tmp_path / "runs" / "a") == before
    assert taken.exit_code == 2 and f"cannot be served at 127.0.0.1:{port}" in taken.output
    for words, sentence in ((["none"], "no folder 'none' to watch"), (["--port", "70000", "."], "from 0 to 65535")):
        refused = CliRunner().invoke(main, ["watch", *words])
        assert refused.exit_code == 2 and sentence in refused.output


def test_copies_of_a_killed_process_are_removed_by_the_next(tmp_path, monkeypatch):
    """And no others: neither those of a process that lives, nor what a link with such a name leads to."""
    runs, copies, mine = tmp_path / "runs", tmp_path / "copies", tmp_path / "mine"
    for folder in (runs, copies, mine):
        folder.mkdir()
    anyk.train(PROBLEM, "uncoded", anyk.cluster("simulated", workers=2), steps=1, out=runs / "a").close()
    (mine / "file").touch()
    (copies / "anyk-copy-link").symlink_to(mine)
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    script = (
        "import os, sys; from anyk.runs import Following; followed = Following(sys.argv[1]); followed.run(); "
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, runs / "a"], env=os.environ | {"TMPDIR": str(copies)})
    assert killed.returncode == -signal.SIGKILL
    with Following(runs / "a") as followed:
        followed.run()
        (copy,) = {*copies.iterdir()} - {copies / "anyk-copy-link"} - {Path(followed._place.name)}
        assert (copy / "log.sqlite").is_file()
        Watch([runs]).close()
        assert {*copies.iterdir()} == {copies / "anyk-copy-link", Path(followed._place.name)}
        assert followed.run().steps == 1
    assert [*copies.iterdir()] == [copies / "anyk-copy-link"] and (mine / "file").exists()


def test_live_numbers_move(tmp_path, served, opened):
    folder = tmp_path / "run"
    writer = Writer(folder)
    writer.upto(3)
    live_page = opened(f"{served.url}0")
    page = live_page.page

    def moved(step):
        """The page tells of a step, soon after it was taken; it may load itself anew for what has no figure yet."""
        with Following(folder) as followed:
            run = followed.run()
            tasks = tasks_of(run)
            state = {
                "counts": [int(kinds(tasks)[kind][0].sum()) for kind in ("used", "cut")],
                "end": float(tasks.end.max()),
                "loss": run.history["loss"][: step + 1].tolist(),
                "step": step,
                "used": [one[0] for one in run.receipt(step).used],
            }
        page.wait_for_function(
            """({counts, end, loss, step, used}) => {
                if (document.documentElement.dataset.ready !== "yes") return false;
                const model = (name) => Bokeh.documents[0].get_model_by_name(name);
                const drawn = model("curve 1").renderers.find((one) => one.tags[0] === "steps").data_source.data;
                document.getElementById("run0-step").value = step;
                document.querySelector("#run0-ask button").click();
                const receipt = document.querySelector("#run0-receipt table");
                const workers = receipt && [...receipt.tBodies[0].rows].map((row) => Number(row.cells[0].textContent));
                return document.querySelector("#cards b").textContent === String(step)
                    && ["used", "cut"].every((kind, i) => model(`run0 ${kind}`)?.data.start.length === counts[i])
                    && model("run0 steps").data.step.at(-1) === step
                    && Math.abs(model("run0 timeline").x_range.end - end) < 1e-9
                    && JSON.stringify([...drawn.y]) === JSON.stringify(loss)
                    && JSON.stringify(workers) === JSON.stringify(used)
                    && document.getElementById("run0-receipt").textContent.includes("All 6 partitions counted with weight 1.");
            }""",
            arg=state,
            timeout=120_000,
        )

    assert re.match("(running: |no news for .* after )3 steps", page.inner_text("#state"))  # the latter if it took long
    for step in (4, 9):
        writer.upto(step)
        moved(step)
    writer.upto(STEPS)
    writer.log.flush()
    writer.log.close()
    before = stand(folder)
    page.wait_for_function(  # the whole page has been read again
        """wide => document.documentElement.dataset.ready === "yes"
            && document.getElementById("state").textContent === "ended"
            && Bokeh.documents[0].get_model_by_name("run0 heat").renderers[0].data_source.data.dw[0] === wide""",
        arg=STEPS,
        timeout=120_000,
    )
    assert f"{STEPS} steps" in page.inner_text(".verdict") and "The final model" in page.inner_text(".verdict")
    page.click("nav a")
    page.wait_for_selector("td.ended", timeout=120_000)
    assert stand(folder) == before
    assert live_page.complaints == []
    assert all(url.startswith((served.url, "data:", "blob:")) for url in live_page.requests)


WRONG = [
    "UPDATE updates SET time = 'x'",
    "UPDATE updates SET version = 'x'",
    "UPDATE summary SET value = 'x' WHERE name = 'loss'",
    "UPDATE summary SET value = '{}'",
    "UPDATE summary SET value = '\"a\"'",
    "UPDATE notes SET text = x'00ff'",
    "UPDATE evaluations SET loss = x'00'",
    "DROP TABLE updates",
]


@pytest.mark.parametrize("sql", WRONG)
def test_one_bad_run_does_not_take_the_list_away(sql, tmp_path):
    for name in ("bad", "good"):
        anyk.train(PROBLEM, "uncoded", anyk.cluster("simulated", workers=2), steps=1, out=tmp_path / name).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "bad" / "log.sqlite")) as log:
        log.execute(sql)
        log.commit()
    watch = Watch([tmp_path])
    try:
        for path in ("/", "/0/", "/1/", "/0/state", "/1/state"):
            _, page = watch._answer(path)
            assert page
            if path == "/":
                assert ">good</a>" in page and ">bad</a>" in page
    finally:
        watch.close()


def test_a_client_that_sends_byte_by_byte_keeps_nothing_alive(tmp_path):
    watch = Watch([tmp_path])
    thread = threading.Thread(target=watch.serve)
    thread.start()
    with socket.create_connection(("127.0.0.1", int(watch.url.rsplit(":")[-1].strip("/")))) as client:
        client.sendall(b"GET / HTTP/1.0\r\nHos")
        while not watch._server.asking:
            time.sleep(0.01)
        watch.close()  # returns although the request is not complete
        thread.join()


def test_a_request_that_takes_too_long_is_not_waited_for(tmp_path, served, monkeypatch):
    monkeypatch.setattr(watching, "_REQUEST", 0.3)
    with socket.create_connection(("127.0.0.1", int(served.url.rsplit(":")[-1].strip("/")))) as client:
        client.settimeout(30)
        with contextlib.suppress(ConnectionError):
            while not served._server.asking:
                time.sleep(0.01)
            for _ in range(600):  # every byte comes in time
                client.sendall(b"G")
                time.sleep(0.05)
                if not served._server.asking:
                    break
        assert not served._server.asking
