"""The mini-swe-agent package as the agent: its own loop, over Hone's sandboxes and policy."""

import os

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")  # it greets on stdout when it is imported
