"""The addresses of the page: a request in, an answer of `bronet.web.answers` out, all through one worker.

Attacks take seconds, so their answer is a stream of JSON lines: how far it is, again and again, and at the end the
result. Who leaves the page ends the attack.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException as AnyHTTPException
from torch import Tensor

from bronet.__about__ import __version__
from bronet.errors import BronetError
from bronet.files import Json
from bronet.web import answers
from bronet.web.guard import Guard
from bronet.web.page import build_page
from bronet.web.served import Gallery, Served
from bronet.web.upload import MOST_BYTES
from bronet.web.worker import BusyError, GivenUpError, Question, Ticket, Work, Worker

TICK_SECONDS = 0.1
"""Time between two lines that tell how far an attack is."""
FARTHEST = 1000.0
"""Distance beyond which no attack is asked for: the diagonal of a 3 x 577 x 577 image."""
PROTECTION = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


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

    eps: Annotated[float, Field(gt=0, le=FARTHEST, allow_inf_nan=False)]
    restarts: Annotated[int, Field(ge=1, le=answers.MOST_RESTARTS)] = 1


def build_app(gallery: Gallery, worker: Worker, *, local: bool) -> FastAPI:
    """Return the application; `local` refuses requests that do not name this machine as their host."""
    page = build_page()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    protection = PROTECTION | {"content-security-policy": page.policy}
    app.add_middleware(Guard, local=local, most_bytes=MOST_BYTES, headers=protection)
    _add_refusals(app)

    def opened(number: int) -> Served:
        """Return a network; called by the worker."""
        return gallery.open(number)

    def known(number: int) -> int:
        if not 0 <= number < len(gallery.cards):
            raise HTTPException(404, "there is no such run; reload the page")
        return number

    async def answered(work: Work) -> Any:
        return await asyncio.wrap_future(worker.ask(work).answer)

    @app.get("/")
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page.text)

    @app.get("/api/runs")
    async def list_runs() -> JSONResponse:
        return JSONResponse({"version": __version__, "runs": [answers.card_answer(card) for card in gallery.cards]})

    @app.get("/api/runs/{number}")
    async def show_network(number: int) -> JSONResponse:
        run = known(number)
        return JSONResponse(await answered(lambda _: answers.network_answer(opened(run))))

    @app.post("/api/runs/{number}/proof")
    async def prove_image(number: int, chosen: Chosen) -> JSONResponse:
        run = known(number)

        def work(_: Ticket) -> Json:
            served = opened(run)
            return answers.proof_answer(served, _pixels(served, chosen))

        return JSONResponse(await answered(work))

    @app.post("/api/runs/{number}/upload")
    async def prove_upload(number: int, request: Request) -> JSONResponse:
        run, content = known(number), await request.body()

        def work(_: Ticket) -> Json:
            served = opened(run)
            return answers.proof_answer(served, answers.uploaded_pixels(served, content))

        return JSONResponse(await answered(work))

    @app.post("/api/runs/{number}/attack")
    async def attack_image(number: int, attack: Attack) -> StreamingResponse:
        run = known(number)

        def work(ticket: Ticket) -> Json:
            served = opened(run)
            return answers.attack_answer(
                served, _pixels(served, attack), eps=attack.eps, restarts=attack.restarts, progress=ticket.report
            )

        return StreamingResponse(_lines(worker.ask(work)), media_type="application/x-ndjson")

    return app


async def _lines(question: Question) -> AsyncIterator[str]:
    """Yield how far the work is until it is done, then its result; if nobody reads on, the work is given up."""
    answer = asyncio.wrap_future(question.answer)
    try:
        while not (await asyncio.wait({answer}, timeout=TICK_SECONDS))[0]:
            yield json.dumps({"share": question.ticket.share}) + "\n"
        try:
            yield json.dumps({"result": answer.result()}) + "\n"
        except BronetError as error:
            yield json.dumps({"message": str(error)}) + "\n"
        except GivenUpError:
            yield json.dumps({"message": "the server is stopping"}) + "\n"
    finally:
        question.ticket.give_up()


def _pixels(served: Served, chosen: Chosen) -> Float[Tensor, "1 c h w"]:
    if chosen.sample is not None:
        return answers.sample_pixels(served, chosen.sample)
    try:
        content = base64.b64decode(chosen.image or "", validate=True)
    except ValueError:
        raise BronetError("image must be the base64 of an image file") from None
    return answers.uploaded_pixels(served, content)


def _add_refusals(app: FastAPI) -> None:
    """Answer every mistake with one line of JSON."""

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> JSONResponse:
        return JSONResponse({"message": str(error)}, status_code=503, headers={"retry-after": "1"})

    @app.exception_handler(BronetError)
    async def mistaken(_: Request, error: BronetError) -> JSONResponse:
        return JSONResponse({"message": str(error)}, status_code=400)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        return JSONResponse({"message": f"{where}: {first['msg']}"}, status_code=422)

    @app.exception_handler(AnyHTTPException)
    async def unknown(_: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"message": error.detail}, status_code=error.status_code)

    @app.exception_handler(GivenUpError)
    async def stopping(_: Request, error: GivenUpError) -> JSONResponse:
        return JSONResponse({"message": "the server is stopping"}, status_code=503)
