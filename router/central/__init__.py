"""One index for several routers: the process that has it, and how routers ask it."""

from router.central.client import AskLimits, CentralIndex
from router.central.desk import Desk
from router.central.wire import Address, BadAddress, parse_address

__all__ = ["Address", "AskLimits", "BadAddress", "CentralIndex", "Desk", "parse_address"]
