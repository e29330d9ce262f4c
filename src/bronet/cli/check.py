"""`bronet check`: the proved bound of every layer of a run's network."""

from bronet.cli.options import RunArgument


def check(run: RunArgument) -> None:
    """Tell the Lipschitz bound of every layer of a trained network. The largest is set in bold.

    Example:  bronet check runs/quickstart

    Writes nothing. Models of your own: bronet.check(model, input_shape) in Python (docs/convert.md).
    """
    from bronet.cli.console import open_console
    from bronet.graph import check as check_model
    from bronet.pretrained import load_pretrained

    open_console().print(check_model(load_pretrained(run)))
