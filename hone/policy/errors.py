"""The error for a policy that cannot be set up."""

from hone.utils.errors import HoneError


class PolicyError(HoneError):
    """The model, its tokenizer or its chat template cannot be used; the message says why and what to do."""
