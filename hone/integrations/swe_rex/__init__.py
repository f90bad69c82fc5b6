"""SWE-ReX's runtime and deployment on Hone's sandboxes, for SWE-agent and mini-swe-agent."""

from hone.integrations.peer import require

require("swe-rex", ">=1.4,<2", "pip install 'hone-rl[swe-rex]'")
