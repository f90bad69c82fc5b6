"""Tasks from the bug fixes in a project's history that changed tests.

history -> candidates -> parts (source, tests) -> runs before and after -> statement -> task -> proof
"""
