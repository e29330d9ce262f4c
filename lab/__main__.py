"""`python -m lab`, from a checkout."""

from lab.commands import app

app(prog_name="python -m lab")
