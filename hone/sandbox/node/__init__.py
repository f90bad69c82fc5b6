"""The node server: the sandboxes of one machine over HTTP."""
