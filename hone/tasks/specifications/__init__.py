"""How the official harnesses install a repository and run its tests, by data set, repository and version.

The facts of each harness are in `data`, with the version of the package that they come from;
`scripts/update_specifications.py` writes them. Only Python repositories are included: not those of SWE-bench
Multimodal and Multilingual in other languages.
"""

from __future__ import annotations

from hone.tasks.specifications.lookup import (
    find_specification,
    image_name,
    is_other_language,
    parser_of,
)
from hone.tasks.specifications.record import ENVIRONMENT_FILE, REQUIREMENTS_FILE, Specification
from hone.tasks.specifications.script import evaluation_script, test_directives

__all__ = [
    "ENVIRONMENT_FILE",
    "REQUIREMENTS_FILE",
    "Specification",
    "evaluation_script",
    "find_specification",
    "image_name",
    "is_other_language",
    "parser_of",
    "test_directives",
]
