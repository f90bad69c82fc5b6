"""What runs inside a sandbox: process 1 and its parts.

It runs on a bare interpreter (`python -I -S`) from a compiled copy of this package, so it imports built-in
modules and its own only (`posix`, where others import `os`): each further import would be paid at every
start. The host imports `wire` from here.
"""
