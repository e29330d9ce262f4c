"""The page and its addresses: a request in, an answer of `bronet.web.answers` out, all through one worker.

The page is one file: style and scripts are inside, nothing is fetched from elsewhere. A browser runs only the script
and the style whose hashes are in the policy, so text from a run can never become code.

Attacks take seconds, so their answer is a stream of JSON lines: how far it is, again and again, and at the end the
result. Who leaves the page ends the attack.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from importlib.resources import files
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from bronet.errors import BronetError
from bronet.files import Json
from bronet.web import answers
from bronet.web.served import Gallery, Served

SCRIPTS = ("draw.js", "state.js", "choose.js", "proof.js", "attack.js", "draw_change.js", "compare.js", "page.js")
PLACES = 8
"""Questions that are worked on or wait."""
TICK_SECONDS = 0.05
"""Time between two lines that tell how far an attack is."""
MAX_CELLS = 64
"""Cells on either side of a change that is drawn."""
MAX_EPS = 1000.0
"""Distance beyond which no attack is asked for: the diagonal of a 3 x 577 x 577 image."""
Search = Callable[[Served, answers.OneImage, answers.Effort], Json]


def _source(*names: str) -> str:
    return "".join(files("bronet.web").joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


STYLE, SCRIPT = f"\n{_source('page.css')}", f"\n{_source(*SCRIPTS)}"
PAGE = (
    _source("page.html")
    .replace("<style></style>", f"<style>{STYLE}</style>")
    .replace("<script></script>", f"<script>{SCRIPT}</script>")
)
"""The page, the same for every run: what it shows, it asks for."""
POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PROTECTION = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
]
"""Headers of every answer: what a browser may do with it, and which style and script it may run."""
Eps = Annotated[float, Field(gt=0, le=MAX_EPS, allow_inf_nan=False)]
Cell = Annotated[float, Field(ge=-1, le=1)]


class Chosen(BaseModel):
    """One image: a sample by its number, or the base64 of an image file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sample: int | None = None
    image: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "Chosen":
        if (self.sample is None) == (self.image is None):
            raise ValueError("give either sample or image")
        return self


class AttackQuestion(Chosen):
    """An image and how hard to attack it."""

    eps: Eps
    restarts: Annotated[int, Field(ge=1, le=answers.MAX_RESTARTS)] = 1


class Drawing(Chosen):
    """An image, a change of it that was drawn in rows of cells between -1 and 1, and how long it is to be."""

    eps: Eps
    change: Annotated[list[list[Cell]], Field(min_length=1, max_length=MAX_CELLS)]

    @model_validator(mode="after")
    def _something_drawn(self) -> "Drawing":
        lengths = {len(row) for row in self.change}
        if len(lengths) != 1 or not 1 <= max(lengths) <= MAX_CELLS:
            raise ValueError(f"every row must have the same number of cells, 1 to {MAX_CELLS}")
        if not any(cell for row in self.change for cell in row):
            raise ValueError("draw something first")
        return self


class BusyError(BronetError):
    """There is no place in the queue, or no server any more."""


class Question(Future[Any]):
    """A piece of work in the queue and its answer: how far it is, and a way to give it up."""

    share = 0.0

    def report(self, done: int, total: int) -> None:
        """Note how far the work is; raise `CancelledError` if nobody waits for it. Called by the work."""
        if self.done():
            raise CancelledError
        self.share = done / total

    def give_up(self) -> None:
        """Let the work end at its next report, or never begin. Does nothing once there is an answer."""
        with contextlib.suppress(InvalidStateError):
            self.set_exception(BusyError("the server is stopping"))


Answering = Callable[[Question], Any]


class Worker:
    """One thread for all work with networks, and a queue with an end: questions are answered in turn.

    A network is never used by two threads at once. Who comes when all places are taken is told so, at once. Who leaves,
    or a server that stops, gives a question up: whoever waits for the answer goes on at once, and the work ends at its
    next report.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bronet-web")
        self._open: set[Question] = set()
        self._stopped = False

    def ask(self, work: Answering) -> Question:
        """Put a piece of work at the end of the queue; raise `BusyError` if there is no place."""
        if self._stopped:
            raise BusyError("the server is stopping")
        if len(self._open) >= PLACES:
            raise BusyError("too many requests are waiting; try again in a moment")
        question = Question()
        self._open.add(question)
        self._thread.submit(self._work_out, question, work)
        return question

    def stop(self) -> None:
        """Give up all work and take no more; the piece in progress ends at its next report."""
        self._stopped = True
        for question in list(self._open):
            question.give_up()
        self._thread.shutdown(wait=False)

    def _work_out(self, question: Question, work: Answering) -> None:
        # An answer that was given up takes no other.
        with contextlib.suppress(InvalidStateError):
            try:
                question.report(0, 1)
                question.set_result(work(question))
            except Exception as error:
                question.set_exception(error)
        self._open.discard(question)


def build_app(gallery: Gallery, worker: Worker) -> FastAPI:
    """Return the application, whose work the worker does."""
    cards = [answers.card_answer(card) for card in gallery.cards]
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for mistake in (BronetError, HTTPException, RequestValidationError):
        app.add_exception_handler(mistake, _refused)

    def ask(number: int, work: Callable[[Served, Question], Json]) -> Question:
        if not 0 <= number < len(gallery.cards):
            raise HTTPException(404, "there is no such run; reload the page")
        return worker.ask(lambda question: work(gallery.open(number), question))

    async def answer(number: int, work: Callable[[Served], Json]) -> JSONResponse:
        return JSONResponse(await asyncio.wrap_future(ask(number, lambda served, _: work(served))))

    def search(number: int, attack: AttackQuestion, find: Search) -> ProgressResponse:
        def work(served: Served, question: Question) -> Json:
            effort = answers.Effort(attack.eps, attack.restarts, question.report)
            return find(served, _pixels(served, attack), effort)

        return ProgressResponse(ask(number, work))

    @app.get("/")
    async def show_page() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @app.get("/api/runs")
    async def list_runs() -> JSONResponse:
        return JSONResponse({"runs": cards})

    @app.get("/api/runs/{number}")
    async def show_network(number: int) -> JSONResponse:
        return await answer(number, answers.network_answer)

    @app.post("/api/runs/{number}/proof")
    async def prove_image(number: int, chosen: Chosen) -> JSONResponse:
        return await answer(number, lambda served: answers.proof_answer(served, _pixels(served, chosen)))

    @app.post("/api/runs/{number}/upload")
    async def prove_upload(number: int, request: Request) -> JSONResponse:
        sent = await request.body()
        return await answer(number, lambda served: answers.proof_answer(served, answers.uploaded_pixels(served, sent)))

    @app.post("/api/runs/{number}/drawing")
    async def try_drawing(number: int, drawn: Drawing) -> JSONResponse:
        change = torch.tensor(drawn.change)
        return await answer(number, lambda own: answers.drawn_answer(own, _pixels(own, drawn), change, drawn.eps))

    @app.post("/api/runs/{number}/attack")
    async def attack_image(number: int, attack: AttackQuestion) -> ProgressResponse:
        return search(number, attack, answers.attack_answer)

    @app.post("/api/runs/{number}/comparison")
    async def attack_both(number: int, attack: AttackQuestion) -> ProgressResponse:
        return search(number, attack, answers.comparison_answer)

    return app


class ProgressResponse(StreamingResponse):
    """How far the work is, line by line, then its result. Whoever leaves, even before the first line, ends the work."""

    def __init__(self, question: Question) -> None:
        super().__init__(_lines(question), media_type="application/x-ndjson")
        self._question = question

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines until there is a result or the reader is gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._question.give_up()


async def _lines(question: Question) -> AsyncIterator[str]:
    while not question.done():
        yield json.dumps({"share": question.share}) + "\n"
        await asyncio.sleep(TICK_SECONDS)
    try:
        yield json.dumps({"result": question.result()}) + "\n"
    except BronetError as error:
        yield json.dumps({"message": str(error)}) + "\n"


def _pixels(served: Served, chosen: Chosen) -> answers.OneImage:
    if chosen.sample is not None:
        return answers.sample_pixels(served, chosen.sample)
    try:
        content = base64.b64decode(chosen.image or "", validate=True)
    except ValueError:
        raise BronetError("image must be the base64 of an image file") from None
    return answers.uploaded_pixels(served, content)


def refusal(status: int, message: str) -> JSONResponse:
    """Return an answer of one line that says what is wrong; where there was no place, it says when to try again."""
    return JSONResponse({"message": message}, status, {"retry-after": "1"} if status == 503 else {})


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """Answer a mistake with one line of JSON."""
    if isinstance(error, HTTPException):
        return refusal(error.status_code, error.detail)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return refusal(422, f"{where}: {first['msg']}")
    return refusal(503 if isinstance(error, BusyError) else 400, str(error))
