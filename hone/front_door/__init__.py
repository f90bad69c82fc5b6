"""The Python front door: the functions of `import hone`, for scripts and notebooks.

`hone/__init__.py` loads each of them on its first use. They block, and work where an event loop runs already
(a notebook), because every call has a loop in a thread of its own. They raise Hone's errors (`HoneError`) and
never end the process.
"""
