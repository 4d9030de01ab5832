"""The console under attack: strangers, other sites' pages, names that lead elsewhere, hostile directories."""

import asyncio
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote

import pytest
import uvicorn
from starlette.testclient import TestClient

from pagefl.console.app import application
from pagefl.console.guard import HEADERS, LARGEST_BODY, Keys

SPEC = (
    'rounds = 100\nseed = 3\n[task]\nname = "synthetic"\n[algorithm]\nname = "a"\n[players]\nname = "page"\n'
)
HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)> & "quotes" 'n' $name ${title}"""
HERE = "http://127.0.0.1:8765"


def run_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(SPEC)
    return path


class Desk:
    """Stands for the helper process, which would take seconds to start."""

    async def ask(self, question: str, **details: object) -> object:
        return {"uses_demand": True, "rows": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_directory(tmp_path / "root" / "a")
    run_directory(tmp_path / "outside")
    return tmp_path / "root"


@pytest.fixture
def keys() -> Keys:
    return Keys(None)


@pytest.fixture
def visitor(root: Path, keys: Keys) -> Iterator[TestClient]:
    app = application(root, keys)
    app.state.console.helper = Desk()
    with TestClient(app, base_url=HERE) as client:
        yield client


def test_a_page_asks_for_another_ratio_as_the_command_line_does(visitor, keys, root):
    found = re.search(r'name="csrf" content="([^"]+)"', visitor.get("/runs/a").text)
    assert found is not None
    assert unescape(found[1]) == keys.page
    answer = visitor.post("/runs/a/bias", data={"ratio": "10:1", "csrf": keys.page}, headers={"origin": HERE})
    assert (answer.status_code, answer.json()) == (200, {"bias": "10:1"})
    assert (root / "a" / "bias.request").read_text() == "10:1"


FORGED = [
    ({}, {}, 403),
    ({"csrf": "x"}, {}, 403),
    ({"csrf": ""}, {"origin": HERE}, 403),
    ({"csrf": "OWN"}, {"origin": "https://evil.example"}, 403),
    ({"csrf": "OWN"}, {"origin": "http://127.0.0.1:9999"}, 403),
    ({"csrf": "OWN"}, {"origin": "null"}, 403),
    ({"csrf": "OWN"}, {"sec-fetch-site": "cross-site"}, 403),
    ({"csrf": "OWN"}, {"sec-fetch-site": "same-site"}, 403),
    ({"csrf": "OWN"}, {"host": "evil.example"}, 421),
    ({"csrf": "OWN"}, {"host": "127.0.0.1.evil.example:8765"}, 421),
    ({"csrf": "OWN"}, {"host": "evil.example@127.0.0.1.example"}, 421),
    ({"csrf": "OWN", "ratio": "1:" + "1" * LARGEST_BODY}, {}, 413),
    ({"csrf": "OWN", **{f"x{i}": "" for i in range(600)}}, {}, 400),
]


@pytest.mark.parametrize(("fields", "headers", "status"), FORGED)
@pytest.mark.parametrize("action", ["bias", "stop", "resume"])
def test_forged_requests_change_nothing(visitor, keys, root, fields, headers, status, action):
    fields = {"ratio": "10:1", **fields, **({"csrf": keys.page} if fields.get("csrf") == "OWN" else {})}
    before = sorted(os.listdir(root / "a"))
    assert visitor.post(f"/runs/a/{action}", data=fields, headers=headers).status_code == status
    assert sorted(os.listdir(root / "a")) == before


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(visitor, method):
    answer = visitor.request(method, "/runs/a/bias")
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


def test_a_get_changes_nothing(visitor, root):
    for action in ("bias", "stop", "resume"):
        assert visitor.get(f"/runs/a/{action}?ratio=10:1").status_code == 404
    assert sorted(os.listdir(root / "a")) == ["spec.toml"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1.nip.io", "", "[", "localhost.evil.example", "0.0.0.0"],
)
def test_another_name_for_this_machine_reaches_nothing(visitor, host):
    """DNS rebinding: a stranger's page whose domain is made to point here."""
    for path in ("/", "/events", "/runs/a", "/rounds/a"):
        assert visitor.get(path, headers={"host": host}).status_code == 421


PLACES = [
    "../outside",
    "..",
    "a/../../outside",
    "/etc/passwd",
    "a/spec.toml",
    "link",
    ".console/x",
    "a\0",
    "../root/a",
]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    "quoted",
    [lambda name: quote(name, safe="").replace(".", "%2e"), lambda name: quote(name).replace(".", "%2e")],
)
def test_no_address_leads_out_of_the_folder(visitor, keys, root, name, quoted):
    (root / "link").symlink_to(root.parent / "outside")
    for prefix in ("/runs/", "/rounds/", "/clients/", "/settings/", "/assets/"):
        answer = visitor.get(prefix + quoted(name))
        assert answer.status_code == 404, (prefix, answer.text)
        assert "synthetic" not in answer.text
    for action in ("bias", "stop", "resume"):
        fields = {"ratio": "10:1", "csrf": keys.page}
        assert visitor.post(f"/runs/{quoted(name)}/{action}", data=fields).status_code == 404
    assert visitor.get("/comparison", params={"run": name}).status_code == 404
    assert sorted(os.listdir(root.parent / "outside")) == ["spec.toml"]


def test_every_answer_is_strict(visitor, keys):
    answers = [
        visitor.get(path)
        for path in ("/", "/runs/a", "/start", "/compare", "/assets/run.js", "/nowhere", "/runs/x")
    ]
    answers += [visitor.post("/runs/a/stop", data={"csrf": keys.page}), visitor.post("/runs/a/stop")]
    for answer in answers:
        for name in HEADERS.keys() - {"cache-control"}:
            assert answer.headers[name] == HEADERS[name]
    policy = HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    for path in ("/", "/runs/a", "/start", "/compare"):  # nothing inline, which the policy would block
        assert not re.search(
            r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]* src=)", visitor.get(path).text
        )


def test_assets_read_no_markup():
    """Text from records goes into pages as text."""
    import pagefl.console

    for script in (Path(pagefl.console.__file__).parent / "assets").glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/2000/svg)",
            script.read_text(),
        ), script


def test_hostile_names_are_escaped_and_hostile_records_are_numbers(visitor, root):
    path = run_directory(root / HOSTILE.replace("/", "∕"))
    values = {
        "round": 1,
        "global_accuracy": HOSTILE,
        "bias": HOSTILE,
        "__proto__": {"x": 1},
        "seconds": 1e308,
    }
    (path / "rounds.jsonl").write_text(json.dumps(values) + "\n")
    (path / "clients.jsonl").write_text(
        json.dumps({"round": 1, "local_accuracy": [HOSTILE], "lr": [HOSTILE]}) + "\n"
    )
    (path / "problem.txt").write_text(HOSTILE)
    address = quote(path.name, safe="")
    page = visitor.get(f"/runs/{address}")
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img src=x" not in page.text
    found = re.search(r'name="run" content="([^"]*)"', page.text)
    assert found is not None
    assert unescape(found[1]) == path.name
    told = visitor.get(f"/rounds/{address}")
    assert told.headers["content-type"] == "application/json"
    assert told.json()["columns"] == {"round": [1.0]}
    assert visitor.get(f"/clients/{address}?metric=lr").json()["columns"] == []
    assert visitor.get(f"/clients/{address}", params={"metric": HOSTILE}).status_code == 400


def test_a_token_is_asked_for_once_and_kept_as_a_cookie(root):
    keys = Keys("the-token")
    with TestClient(application(root, keys, loopback=False), base_url="http://lab.example:8765") as visitor:
        for path in ("/", "/events", "/runs/a", "/assets/run.js", "/?token=", "/?token=wrong"):
            answer = visitor.get(path)
            assert answer.status_code == 401, path
            assert "the-token" not in answer.text
        assert visitor.post("/runs/a/stop", data={"csrf": keys.page}).status_code == 401
        answer = visitor.get("/runs/a?token=the-token&x=1", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs/a?x=1")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        headers = {"cookie": cookie.partition(";")[0]}
        assert visitor.get("/runs/a", headers=headers).status_code == 200
        assert visitor.post("/runs/a/stop", data={}, headers=headers).status_code == 403


def test_the_token_is_in_a_file_that_only_its_owner_reads(tmp_path, monkeypatch, capsys):
    from pagefl.console import server

    made: list[Keys] = []
    monkeypatch.setattr(
        server, "application", lambda root, keys, **rest: made.append(keys) or application(root, keys)
    )

    def run(self: uvicorn.Server) -> None:
        path = tmp_path / "runs" / ".console" / "token"
        if made[-1].token is None:
            return
        assert path.read_text() == made[0].token
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700

    monkeypatch.setattr(uvicorn.Server, "run", run)
    said: list[str] = []
    server.serve(tmp_path / "runs", "0.0.0.0", 8765, said.append)
    assert made[0].token is not None
    assert made[0].token not in "".join(said) + "".join(capsys.readouterr())
    assert not (tmp_path / "runs" / ".console" / "token").exists()
    server.serve(tmp_path / "runs", "127.0.0.1", 8765, said.append)
    assert made[1].token is None


@pytest.mark.slow
def test_ten_thousand_listeners_come_and_go_and_leave_nothing(root):
    """Each opens the events and drops the connection. Then as few files are open as before."""
    app = application(root, Keys(None))
    console = app.state.console
    config = uvicorn.Config(app, port=0, log_level="warning", log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        request = f"GET /events/a HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        before, most = len(os.listdir("/proc/self/fd")), 0
        for batch in range(100):
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
            for one in opened:
                one.sendall(request)
            if batch % 10 == 0:  # some wait for the answer, others are gone before it
                assert opened[0].recv(100).startswith(b"HTTP/1.1 ")
            most = max(most, console.watchers.now)
            for one in opened:
                one.close()
        end = monotonic() + 300
        while (console.watchers.now or len(os.listdir("/proc/self/fd")) > before) and monotonic() < end:
            sleep(0.05)
        assert console.watchers.now == 0
        assert 0 < most <= console.watchers.most
        assert len(os.listdir("/proc/self/fd")) <= before
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(request)
            assert one.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.mark.slow
def test_the_helper_answers_again_after_it_has_died():
    from pagefl.console.desk_process import Helper

    async def asked() -> list[str]:
        helper, found = Helper(), []
        for _ in range(2):
            checked = await helper.ask("check", fields={"lr": "-1"}, text="")
            found.append(checked["field"])
            assert helper.process is not None
            helper.process.kill()
            await helper.process.wait()
        return found

    assert asyncio.run(asked()) == ["lr", "lr"]


def test_nobody_waits_for_a_helper_when_the_console_ends():
    from pagefl.console.desk_process import Helper

    async def ended() -> list[str]:
        helper = Helper()
        asked = [asyncio.create_task(helper.ask("form")) for _ in range(2)]
        while helper.process is None:
            await asyncio.sleep(0.01)
        helper.close()
        return [str(answer) for answer in await asyncio.gather(*asked, return_exceptions=True)]

    first, second = asyncio.run(ended())
    assert "gave no answer" in first
    assert "the console is ending" in second
