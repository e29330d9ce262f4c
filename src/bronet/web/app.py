"""The page and its addresses: a request in, an answer of `bronet.web.answers` out, all through one worker.

The page is one file: style and scripts are inside, nothing is fetched from elsewhere. A browser runs only the script
and the style whose hashes are in the policy, so text from a run can never become code.

Attacks take seconds, so their answer is a stream of JSON lines: how far it is, again and again, and at the end the
result. Who leaves the page ends the attack.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import Annotated

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send
from torch import Tensor

from bronet.errors import BronetError
from bronet.files import Json
from bronet.web import answers
from bronet.web.guard import Guard, refusal
from bronet.web.served import Gallery, Served
from bronet.web.server import BusyError, Question, Worker

SCRIPTS = ("draw.js", "state.js", "choose.js", "proof.js", "attack.js", "draw_change.js", "compare.js", "page.js")
TICK_SECONDS = 0.05
"""Time between two lines that tell how far an attack is."""
MAX_CELLS = 64
"""Cells on either side of a change that is drawn."""
MAX_EPS = 1000.0
"""Distance beyond which no attack is asked for: the diagonal of a 3 x 577 x 577 image."""
Search = Callable[[Served, Float[Tensor, "1 c h w"], answers.Effort], Json]


@cache
def page_text() -> str:
    """Return the page, the same for every run: what it shows, it asks for."""
    text = _text("page.html").replace("<style></style>", f"<style>{_style()}</style>")
    return text.replace("<script></script>", f"<script>{_script()}</script>")


def protecting_headers() -> list[tuple[str, str]]:
    """Return the headers of every answer: what a browser may do with it, and which style and script it may run."""
    policy = (
        f"default-src 'none'; script-src {_hash(_script())}; style-src {_hash(_style())}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
    ]


def _style() -> str:
    return f"\n{_text('page.css')}"


def _script() -> str:
    return "\n" + "".join(_text(name) for name in SCRIPTS)


def _text(name: str) -> str:
    return files("bronet.web").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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


class Attack(Chosen):
    """An image and how hard to attack it."""

    eps: Annotated[float, Field(gt=0, le=MAX_EPS, allow_inf_nan=False)]
    restarts: Annotated[int, Field(ge=1, le=answers.MAX_RESTARTS)] = 1


class Drawing(Chosen):
    """An image, a change of it that was drawn in rows of cells between -1 and 1, and how long it is to be."""

    eps: Annotated[float, Field(gt=0, le=MAX_EPS, allow_inf_nan=False)]
    change: Annotated[list[list[Annotated[float, Field(ge=-1, le=1)]]], Field(min_length=1, max_length=MAX_CELLS)]

    @model_validator(mode="after")
    def _something_drawn(self) -> "Drawing":
        lengths = {len(row) for row in self.change}
        if len(lengths) != 1 or not 1 <= max(lengths) <= MAX_CELLS:
            raise ValueError(f"every row must have the same number of cells, 1 to {MAX_CELLS}")
        if not any(cell for row in self.change for cell in row):
            raise ValueError("draw something first")
        return self


def build_app(gallery: Gallery, worker: Worker, *, local: bool) -> FastAPI:
    """Return the application; `local` refuses requests that do not name this machine as their host."""
    cards = [answers.card_answer(card) for card in gallery.cards]
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for mistake in (BronetError, HTTPException, RequestValidationError):
        app.add_exception_handler(mistake, _refused)
    app.add_middleware(Guard, local=local)

    def ask(number: int, work: Callable[[Served, Question], Json]) -> Question:
        if not 0 <= number < len(gallery.cards):
            raise HTTPException(404, "there is no such run; reload the page")
        return worker.ask(lambda question: work(gallery.open(number), question))

    async def answer(number: int, work: Callable[[Served], Json]) -> JSONResponse:
        return JSONResponse(await asyncio.wrap_future(ask(number, lambda served, _: work(served)).answer))

    def search(number: int, attack: Attack, find: Search) -> ProgressResponse:
        def work(served: Served, question: Question) -> Json:
            effort = answers.Effort(attack.eps, attack.restarts, question.report)
            return find(served, _pixels(served, attack), effort)

        return ProgressResponse(ask(number, work))

    @app.get("/")
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page_text())

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
        return await answer(
            number, lambda served: answers.drawn_answer(served, _pixels(served, drawn), change, drawn.eps)
        )

    @app.post("/api/runs/{number}/attack")
    async def attack_image(number: int, attack: Attack) -> ProgressResponse:
        return search(number, attack, answers.attack_answer)

    @app.post("/api/runs/{number}/comparison")
    async def attack_both(number: int, attack: Attack) -> ProgressResponse:
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
    while not question.answer.done():
        yield json.dumps({"share": question.share}) + "\n"
        await asyncio.sleep(TICK_SECONDS)
    try:
        yield json.dumps({"result": question.answer.result()}) + "\n"
    except BronetError as error:
        yield json.dumps({"message": str(error)}) + "\n"


def _pixels(served: Served, chosen: Chosen) -> Float[Tensor, "1 c h w"]:
    if chosen.sample is not None:
        return answers.sample_pixels(served, chosen.sample)
    try:
        content = base64.b64decode(chosen.image or "", validate=True)
    except ValueError:
        raise BronetError("image must be the base64 of an image file") from None
    return answers.uploaded_pixels(served, content)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    """Answer a mistake with one line of JSON."""
    match error:
        case HTTPException():
            return refusal(error.status_code, error.detail)
        case RequestValidationError():
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
            return refusal(422, f"{where}: {first['msg']}")
        case BusyError():
            return refusal(503, str(error))
        case _:
            return refusal(400, str(error))
