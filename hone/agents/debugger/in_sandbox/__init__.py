"""Files that run in the sandbox: standard library only, Python 3.6; Hone does not import them."""
