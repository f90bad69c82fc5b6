"""The one error of a policy that cannot be set up."""


class PolicyError(Exception):
    """The model, its tokenizer or its chat template cannot be used; one sentence says why and what to do."""
