"""`hone view`: the records of `hone.view` as pages, as JSON and as static files."""
