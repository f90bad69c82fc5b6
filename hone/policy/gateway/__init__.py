"""An HTTP server in front of chats, so that an unmodified agent is captured token by token.

async with open_gateway(socket=path) as gateway:
    session = gateway.open(chat, limits=SessionLimits(calls=50))
    ...  # run a client with the base URL http://...{session.path}, or with session.key as its API key
    await gateway.close(session)
"""

from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.gateway import Admin, Gateway
from hone.policy.gateway.record import Exchange
from hone.policy.gateway.server import open_gateway
from hone.policy.gateway.session import Limit, Session
from hone.policy.gateway.settings import SessionLimits

__all__ = [
    "Admin",
    "Exchange",
    "Gateway",
    "GatewayError",
    "Limit",
    "Session",
    "SessionLimits",
    "open_gateway",
]
