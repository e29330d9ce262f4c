"""The one exception a user's mistake raises.

Its message is one line that names the quantity, the constraint, the value that was given and, where it helps,
what to do. The command line prints that line alone and exits with status 2; it never shows a traceback for it.
"""


class BronetError(ValueError):
    """A mistake in what the user gave: an argument, a file, a recipe, a checkpoint."""
