"""The error for a policy that cannot be set up."""


class PolicyError(Exception):
    """The model, its tokenizer or its chat template cannot be used; the message says why and what to do."""
