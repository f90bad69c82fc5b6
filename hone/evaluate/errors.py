"""The one error of the evaluate room."""


class EvaluateError(Exception):
    """An evaluation cannot be run, resumed or compared; the message says what to do."""
