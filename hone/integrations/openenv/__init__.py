"""Hone's rollouts as sessions of OpenEnv, which TRL's asynchronous GRPO trains on."""

from hone.integrations.peer import require

require("openenv", ">=0.10,<0.11", "pip install 'openenv>=0.10,<0.11'")

from hone.integrations.openenv.sessions import HoneSession, HoneSessionFactory  # noqa: E402

__all__ = ["HoneSession", "HoneSessionFactory"]
