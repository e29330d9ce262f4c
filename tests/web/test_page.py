"""The page's server: answers are the certificate's, strangers are refused, nobody waits for ever."""

import base64
import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bronet.certificates import certified_radius
from bronet.certificates.run import certify_run
from bronet.data import load_images
from bronet.errors import BronetError
from bronet.pretrained import find_network, unpack
from bronet.recipe import named_recipe
from bronet.report.figures import step_curve
from bronet.run.certificate import RECORDED_UNITS, read_certificate_rows, recorded
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from bronet.web import answers
from bronet.web.app import PAGE, PLACES, Question
from bronet.web.served import read_cards, read_ordinary
from bronet.web.server import MAX_BYTES
from certificates import edit_certificate
from serving import HOST, SAMPLES, Json, Site, make_colour_run, serving
from tiny_run import train_tiny_run
from web_files import encoded, noise_image

pytestmark = pytest.mark.usefixtures("one_thread")
DIGITS, COLOURS = "/api/runs/0", "/api/runs/1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a certified run on the digits, and one that is neither trained nor certified, without its data set."""
    folder = tmp_path_factory.mktemp("runs")
    digits = train_tiny_run(folder / "digits")
    certify_run(digits, limit=SAMPLES)
    return [digits, make_colour_run(folder / "colours")]


@pytest.fixture(scope="module")
def site(runs: list[Path]) -> Iterator[Site]:
    with serving(runs) as site:
        yield site


def attacked(site: Site, sample: int, eps: float, restarts: int = 1) -> Json:
    """Attack a sample and return the result, the last line of the answer."""
    answer = site.ask(f"{DIGITS}/attack", {"sample": sample, "eps": eps, "restarts": restarts})
    assert answer.status == 200, answer.json
    result: Json = answer.lines[-1]["result"]
    return result


def test_what_is_shown_of_a_sample_is_its_row_of_the_certificate(site: Site, runs: list[Path]) -> None:
    for row in read_certificate_rows(runs[0] / "certificate.csv")[:5]:
        shown = site.ask(f"{DIGITS}/proof", {"sample": row.index}).json
        assert shown["prediction"] == row.prediction
        # Alone or in a batch, an image is rounded differently; the proof counts both.
        assert shown["radius"] == pytest.approx(row.radius, abs=1.5 / RECORDED_UNITS)
        assert shown["margin"] == pytest.approx(row.margin, rel=1e-9)
        assert [rival["radius"] for rival in shown["rivals"]] == sorted(rival["radius"] for rival in shown["rivals"])
        assert shown["rivals"][0]["radius"] == shown["radius"]
        assert min(rival["margin"] for rival in shown["rivals"]) == shown["margin"]
        assert sorted([row.prediction, *(rival["class"] for rival in shown["rivals"])]) == list(range(10))


def test_an_attack_inside_the_radius_fails(site: Site) -> None:
    for sample in range(5):
        radius = site.ask(f"{DIGITS}/proof", {"sample": sample}).json["radius"]
        result = attacked(site, sample, 0.99 * radius)
        assert not result["success"]
        assert result["found"] == result["prediction"]
        assert result["distance"] <= 0.99 * radius


def test_an_attack_far_beyond_the_radius_finds_an_image_between_radius_and_budget(site: Site) -> None:
    for sample in range(5):
        result = attacked(site, sample, 4.0)
        assert result["success"]
        assert not result["refutes"]
        assert result["found"] != result["prediction"]
        assert result["radius"] <= result["distance"] < 4.0
        assert result["picture"] != result["noise"]


def test_an_upload_is_proved_like_any_other_image(site: Site, runs: list[Path]) -> None:
    image = noise_image((3, 8, 8))
    shown = site.ask(f"{COLOURS}/upload", encoded(image, "PNG")).json
    run = open_run(runs[1])
    model = load_model(run)
    assert shown["radius"] == recorded(float(certified_radius(model, image[None].double() / 255)))
    # The page keeps the picture and sends it back to attack the same pixels.
    again = site.ask(f"{COLOURS}/proof", {"image": shown["picture"].partition(",")[2]}).json
    assert again == shown


@pytest.mark.parametrize("content", [b"hello", b"", encoded(noise_image((3, 40, 40)), "PNG")[:700]])
def test_a_file_that_is_no_image_gets_a_sentence(site: Site, content: bytes) -> None:
    answer = site.ask(f"{DIGITS}/upload", content)
    assert answer.status == 400
    assert answer.json["message"].startswith(("this file is", "this image is"))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(site: Site) -> None:
    connection = http.client.HTTPConnection(HOST, site.port, timeout=10)
    connection.putrequest("POST", f"{DIGITS}/upload")
    connection.putheader("content-length", str(MAX_BYTES + 1))
    connection.endheaders()  # and nothing is sent
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["message"] == "this file is too large: at most 8 MB"
    connection.close()


def test_a_request_of_unknown_length_is_refused(site: Site) -> None:
    connection = http.client.HTTPConnection(HOST, site.port, timeout=10)
    # The headers alone: the server need not wait for the rest, and may have closed before it comes.
    connection.putrequest("POST", f"{DIGITS}/upload")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", ""])
def test_a_foreign_name_for_this_machine_is_refused(site: Site, host: str) -> None:
    assert site.ask("/", host=host).status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8017", "[::1]:1"])
def test_the_names_of_this_machine_are_served(site: Site, host: str) -> None:
    assert site.ask("/", host=host).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_another_web_site_is_refused(site: Site, origin: str) -> None:
    assert site.ask(f"{DIGITS}/proof", {"sample": 0}, origin=origin).status == 403


def test_a_server_for_others_answers_to_any_name(runs: list[Path]) -> None:
    with serving(runs, local=False) as site:
        assert site.ask("/", host="machine.example").status == 200
        assert site.ask("/", host="machine.example", origin="https://evil.example").status == 403


def test_the_page_is_whole_and_nothing_else_may_run_in_it(site: Site) -> None:
    answer = site.ask("/")
    text = answer.content.decode()
    assert text == PAGE
    assert "<style></style>" not in text
    assert "<script></script>" not in text
    assert not any(word in text for word in ("https:", '<link rel="stylesheet', ' src="', "@import"))
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for path in ("/", "/api/runs", "/nowhere"):
        assert site.ask(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/api/runs/2", "/api/runs/-1", "/api/runs/x"])
def test_what_is_not_there_is_one_line(site: Site, path: str) -> None:
    answer = site.ask(path)
    assert answer.status in (404, 422)
    assert set(answer.json) == {"message"}


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        ({"sample": 0, "eps": 0}, "eps: "),
        ({"sample": 0, "eps": -1}, "eps: "),
        ({"sample": 0, "eps": 1e9}, "eps: "),
        ({"sample": 0, "eps": 0.1, "restarts": 10**6}, "restarts: "),
        ({"sample": 0, "eps": 0.1, "steps": 10**6}, "steps: "),
        ({"eps": 0.1}, "give either sample or image"),
        ({"sample": 0, "image": "", "eps": 0.1}, "give either sample or image"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line(site: Site, request_body: Json, words: str) -> None:
    answer = site.ask(f"{DIGITS}/attack", request_body)
    assert answer.status == 422
    assert words in answer.json["message"]


@pytest.mark.parametrize(
    "chosen", [{"sample": SAMPLES}, {"sample": -1}, {"image": "!"}, {"image": "é"}, {"image": "aGVsbG8="}]
)
def test_an_image_that_is_not_there_is_one_line(site: Site, chosen: Json) -> None:
    assert site.ask(f"{DIGITS}/proof", chosen).status == 400
    *_, line = site.ask(f"{DIGITS}/attack", chosen | {"eps": 0.1}).lines
    assert set(line) == {"message"}


def test_who_finds_all_places_taken_is_told_so_at_once(runs: list[Path]) -> None:
    with serving(runs) as site:
        go = threading.Event()
        waiting = [site.worker.ask(lambda _: go.wait()) for _ in range(PLACES)]
        for path, body in ((f"{DIGITS}/proof", {"sample": 0}), (f"{DIGITS}/attack", {"sample": 0, "eps": 0.1})):
            answer = site.ask(path, body)
            assert answer.status == 503
            assert "waiting" in answer.json["message"]
        assert site.ask("/api/runs").status == 200  # the page itself is never blocked
        go.set()
        assert all(question.result() for question in waiting)
        assert site.ask(f"{DIGITS}/proof", {"sample": 0}).status == 200


def test_who_leaves_ends_the_attack(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STEPS", 10**7)  # hours
    with serving(runs) as site:
        connection = http.client.HTTPConnection(HOST, site.port, timeout=10)
        body = json.dumps({"sample": 0, "eps": 0.1})
        connection.request("POST", f"{DIGITS}/attack", body, {"content-type": "application/json"})
        response = connection.getresponse()
        assert "share" in json.loads(response.readline())
        response.close()
        connection.close()
        assert site.ask(f"{DIGITS}/proof", {"sample": 0}).status == 200


def test_a_server_that_ends_does_not_wait_for_an_attack(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STEPS", 10**7)
    with serving(runs) as site:
        connection = http.client.HTTPConnection(HOST, site.port, timeout=10)
        body = json.dumps({"sample": 0, "eps": 0.1})
        connection.request("POST", f"{DIGITS}/attack", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.readline()
    *_, last = response.read().splitlines()
    assert json.loads(last) == {"message": "the server is stopping"}
    connection.close()


def test_work_is_done_in_turn_and_given_up_when_nobody_waits(site: Site) -> None:
    go, order = threading.Event(), []

    def slow(question: Question) -> None:
        go.wait()
        order.append("first")

    first = site.worker.ask(slow)
    second = site.worker.ask(lambda _: order.append("second"))
    third = site.worker.ask(lambda _: order.append("third"))
    second.give_up()
    go.set()
    third.result()
    assert first.done()
    assert order == ["first", "third"]


def test_a_run_without_data_is_served_for_uploads(site: Site) -> None:
    shown = site.ask(COLOURS).json
    assert shown["labels"] == []
    assert shown["sheet"] is None
    assert "mine must be the folder" in shown["remark"]
    assert shown["classes"] == ["class 0", "class 1", "class 2"]


def test_a_network_is_shown_with_all_its_bounds(site: Site, runs: list[Path]) -> None:
    shown = site.ask(DIGITS).json
    facts = json.loads((runs[0] / "certificate.json").read_text(encoding="utf-8"))
    assert [layer["lipschitz"] for layer in shown["layers"]] == [layer["lipschitz"] for layer in facts["layers"]]
    assert len(shown["labels"]) == SAMPLES
    assert base64.b64decode(shown["sheet"]["picture"].partition(",")[2]).startswith(b"\x89PNG")


def test_the_curve_is_that_of_the_rows_or_says_why_there_is_none(runs: list[Path], tmp_path: Path, site: Site) -> None:
    digits, colours = site.ask("/api/runs").json["runs"]
    rows = read_certificate_rows(runs[0] / "certificate.csv")
    certified = sum(row.correct and row.radius > 0 for row in rows) / len(rows)
    assert digits["curve"][0] == [0, pytest.approx(certified, abs=1e-6)]
    assert colours["curve"] == []
    assert colours["remark"] == f"not certified yet: bronet certify {runs[1]}"
    stale = tmp_path / "stale"
    shutil.copytree(runs[0], stale)
    for key in ("weights_sha256", "recipe_sha256"):
        edit_certificate(stale / "certificate.json", **{key: "other"})
        assert "other weights" in read_cards([str(stale)])[0].remark


def test_runs_of_the_same_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    twin = shutil.copytree(runs[0], tmp_path / "digits")
    names = [card.name for card in read_cards([str(path) for path in (*runs, twin)])]
    assert names == [str(runs[0]), "colours", str(twin)]


def test_a_run_that_cannot_be_served_is_refused(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BronetError, match="`bronet quickstart` makes it"):
        read_cards([])
    untrained = shutil.copytree(runs[0], tmp_path / "untrained")
    (untrained / "model.safetensors").unlink()
    with pytest.raises(BronetError, match="train and certify this run first"):
        read_cards([str(untrained)])


def test_the_quick_start_is_served_by_default(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs[0], tmp_path / "runs" / "quickstart")
    assert [card.name for card in read_cards([])] == ["quickstart"]


def test_a_drawn_change_has_its_length_and_inside_the_radius_changes_nothing(site: Site) -> None:
    radius = site.ask(f"{DIGITS}/proof", {"sample": 0}).json["radius"]
    change = [[0.0] * 4 for _ in range(4)]
    change[1][2], change[2][2], change[3][0] = 1.0, -1.0, 0.5
    before = site.ask(f"{DIGITS}/proof", {"sample": 0}).json
    for eps in (0.99 * radius, 40.0):
        answer = site.ask(f"{DIGITS}/drawing", {"sample": 0, "eps": eps, "change": change}).json
        assert 0 < answer["distance"] <= eps * (1 + 1e-12)
        assert answer["margin_before"] == before["margin"]
        if answer["distance"] < radius:
            assert answer["prediction"] == before["prediction"]
            assert answer["margin"] > 0
    assert answer["distance"] <= 8  # cut to pixels in [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([[0.0, 0.0]], "draw something first"),
        ([[1.0], [1.0, 0.0]], "every row must have the same number of cells"),
        ([[1.0] * 65], "every row must have the same number of cells"),
        ([[2.0]], "less than or equal to 1"),
        ([], "at least 1 item"),
    ],
)
def test_a_drawing_that_is_none_is_one_line(site: Site, change: list[list[float]], words: str) -> None:
    answer = site.ask(f"{DIGITS}/drawing", {"sample": 0, "eps": 0.1, "change": change})
    assert answer.status == 422
    assert words in answer.json["message"]


def test_the_curve_of_a_published_network_is_known_before_anything_is_certified(tmp_path: Path) -> None:
    run = unpack(find_network("bronet-digits/digits"), tmp_path / "digits")
    (card,) = read_cards([str(run.path)])
    assert card.evidence is None
    assert card.published is not None
    shown = answers.card_answer(card)
    assert shown["images"] == "all 500 test images, as published"
    certify_run(run)
    rows = read_certificate_rows(run.certificate().rows)
    radii = np.sort([row.radius if row.correct else 0.0 for row in rows])
    assert bool((card.published <= radii).all())
    assert bool((card.published > radii - 1.1e-4).all())


def test_a_part_of_the_test_images_is_called_a_part(site: Site) -> None:
    assert site.ask("/api/runs").json["runs"][0]["images"] == f"the first {SAMPLES} test images only"


def test_an_ordinary_network_of_equal_accuracy_falls_where_the_certified_one_cannot(tmp_path: Path) -> None:
    with serving([unpack(find_network("bronet-digits/digits"), tmp_path / "digits").path]) as site:
        shown = site.ask(DIGITS).json["comparison"]
        assert abs(shown["ordinary"]["accuracy"] - shown["accuracy"]) <= 0.005
        assert 0.5 < shown["beaten"] < 1
        fallen = 0
        for sample in range(10):
            radius = site.ask(f"{DIGITS}/proof", {"sample": sample}).json["radius"]
            answer = site.ask(f"{DIGITS}/comparison", {"sample": sample, "eps": radius})
            result = answer.lines[-1]["result"]
            assert not result["certified"]["success"]
            fallen += result["ordinary"]["success"]
            assert result["ordinary"]["distance"] <= radius
        assert fallen > 5


def test_the_ordinary_network_is_the_one_that_its_file_describes() -> None:
    (network, found), images = read_ordinary(), load_images(named_recipe("digits/quickstart").data, "test")
    right = network(images.pixels(torch.arange(len(images)), dtype=torch.float64)).argmax(dim=1) == images.labels
    assert torch.equal(right, found > 0)
    assert step_curve(found, len(found)).accuracy[0] == float(right.double().mean()) == pytest.approx(0.986, abs=1e-12)


def test_other_images_have_no_ordinary_network_beside_them(site: Site) -> None:
    assert site.ask(COLOURS).json["comparison"] is None
    image = base64.b64encode(encoded(noise_image((3, 8, 8)), "PNG")).decode()
    *_, line = site.ask(f"{COLOURS}/comparison", {"image": image, "eps": 0.1}).lines
    assert set(line) == {"message"}
