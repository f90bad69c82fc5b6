"""The pages, asked through the application without a socket."""

import json
from dataclasses import fields
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from hone.view.records import Filter, RunState
from hone.view.web import access
from hone.view.web.links import page_path
from hone.view.web.query import BadQuery, read_filter, write_filter
from hone.view.web.server import LOOPBACK_HOSTS, make_view_app
from tests.view.samples import SCRIPT, TASK, HandMade

TOKEN = "a-token-of-the-test"
PAGES = [
    "/",
    "/runs/first",
    "/runs/evaluated",
    "/runs/first/rollouts",
    "/runs/first/rollouts/r-0",
    "/runs/first/rollouts/r-0/tokens",
    page_path("runs", "first", "groups", "group/x"),
    page_path("runs", "first", "tasks", TASK),
    "/compare?run=first&run=second",
    "/compare?run=evaluated&run=again",
]


def client(library: HandMade | None = None, *, token: str = "", host: str = "localhost") -> TestClient:
    app = make_view_app(library or HandMade(), token=token, hosts=LOOPBACK_HOSTS)
    return TestClient(app, base_url=f"http://{host}", follow_redirects=False, raise_server_exceptions=False)


class Elements(HTMLParser):
    """Every element of a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts = ""
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts += data


@pytest.mark.parametrize("path", PAGES)
def test_hostile_text_makes_no_element_script_or_style(path: str):
    page = client().get(path)
    assert page.status_code == 200
    found = Elements(page.text)
    assert SCRIPT not in page.text
    shown = page.text.replace(found.scripts, "")  # the script of the token view shows its data as text
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "{{ 7*7 }}" in page.text
    for tag, attributes in found.elements:
        assert tag != "img"
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        if tag == "script":
            assert attributes.get("type") == "application/json" or attributes["src"].startswith("/assets/")
        assert not (attributes.get("href") or "").lower().startswith(("javascript:", "data:"))
    if found.scripts:
        assert json.loads(found.scripts)["nodes"][1]["texts"][2] == "</script>"


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_also_json(path: str):
    path = "/api/runs" if path == "/" else f"/api{path}"
    answer = client().get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()


@pytest.mark.parametrize("path", [*PAGES, "/nothing", "/assets/hone.css"])
def test_every_answer_forbids_foreign_scripts(path: str):
    headers = client().get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_every_link_of_a_page_leads_to_a_page():
    asked = client()
    followed: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        followed.add(path)
        page = asked.get(path)
        assert page.status_code == 200, path
        if "?" in path:  # the links of a filtered table are those of the whole one with another filter
            continue
        if "/files/" in path:
            assert page.headers["content-type"] == "text/plain; charset=utf-8"  # never a page of its own
            continue
        for _, attributes in Elements(page.text).elements:
            target = (attributes.get("href") or attributes.get("src") or "").partition("#")[0]
            if target and target not in followed and target not in waiting:
                waiting.append(target)
    assert len(followed) > 20


def test_a_foreign_host_name_is_refused():
    assert client(host="evil.example").get("/").status_code == 403
    assert client(host="localhost:8420").get("/").status_code == 200


def test_without_the_token_nothing_of_a_run_is_answered():
    asked = client(token=TOKEN)
    for path in PAGES:
        page = asked.get(path)
        assert page.status_code == 303
        assert page.headers["location"].startswith("/login?next=")
        assert "rollout" not in page.text
    assert asked.get("/api/runs").status_code == 401
    assert asked.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert asked.get("/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_login_sets_a_cookie_that_scripts_and_sites_cannot_use():
    asked = client(token=TOKEN)
    wrong = asked.post("/login?next=/runs/first", data={"token": "wrong"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    right = asked.post("/login?next=/runs/first", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/runs/first")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert asked.get("/runs/first").status_code == 200


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example"])
def test_login_goes_to_no_other_site(target: str):
    assert access.local_path(target) == "/"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(method: str):
    assert client().request(method, "/runs/first").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/..%2fserver.py",
        "/assets/%2e%2e/server.py",
        "/runs/..%2f..%2fetc/rollouts/passwd",
        "/runs/first/rollouts/..%2f..%2fr-0",
        "/runs/first/rollouts/none",
        "/nothing",
    ],
)
def test_what_does_not_exist_is_404_in_a_sentence(path: str):
    page = client().get(path)
    assert page.status_code == 404
    assert Elements(page.text).elements
    if not path.startswith("/assets"):
        error = client().get(f"/api{path}")
        assert error.status_code == 404
        assert error.json()["error"].endswith(".")


def test_a_filter_that_does_not_exist_is_named():
    page = client().get("/api/runs/first/rollouts?outcom=resolved")
    assert page.status_code == 400
    assert "'outcom'" in page.json()["error"]
    assert client().get("/runs/first/rollouts?step=many").status_code == 400
    assert client().get("/compare?run=first").status_code == 400


def test_filters_survive_the_query_string():
    shown = Filter(
        task="a b&c=d#",
        outcome="resolved",
        disposition="trained",
        step=3,
        group="g/1",
        tampered=False,
        signals=True,
        forks=None,
        min_reward=-0.5,
        max_reward=1.0,
        min_tokens=10,
        max_tokens=None,
        sort="reward",
    )
    library = HandMade()
    client(library).get(f"/runs/first/rollouts?{write_filter(shown)}&first=2")
    assert library.asked == [(shown, 2, 100)]
    assert write_filter(Filter()) == ""
    assert {field.name for field in fields(Filter)} >= set(
        dict(item.split("=") for item in write_filter(shown).split("&"))
    )


@pytest.mark.parametrize("query", [{"sort": "secret"}, {"tampered": "true"}, {"min_reward": "nan"}])
def test_bad_values_of_filters_are_refused(query: dict[str, str]):
    with pytest.raises(BadQuery):
        read_filter(query)


def test_a_page_stops_being_live_when_its_run_ends():
    library = HandMade()
    assert "<body data-live>" in client(library).get("/runs/first").text
    library.state = RunState.FINISHED
    assert "data-live>" not in client(library).get("/runs/first").text


def test_an_unchanged_page_is_not_sent_again():
    asked = client()
    tag = asked.get("/runs/second").headers["etag"]
    assert asked.get("/runs/second", headers={"if-none-match": tag}).status_code == 304
