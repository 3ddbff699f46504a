"""One index for several routers: the process that has it, and how routers ask it."""

from router.central.address import Address, BadAddress, parse_address
from router.central.client import AskLimits, CentralIndex
from router.central.desk import Desk
from router.central.memory import CAN_SHARE, Place, SharedMemory

__all__ = [
    "CAN_SHARE",
    "Address",
    "AskLimits",
    "BadAddress",
    "CentralIndex",
    "Desk",
    "Place",
    "SharedMemory",
    "parse_address",
]
