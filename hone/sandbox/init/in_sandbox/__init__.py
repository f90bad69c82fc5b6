"""The code of process 1 of a sandbox.

It runs on a bare interpreter (`python -I -S`) from a compiled copy of this package. It imports only built-in
modules and this package (`posix` instead of `os`), because every import slows each start. The host imports
`wire`.
"""
