"""Who asks, and what they may: API keys, tenants, budgets per minute, requests at once."""

from router.tenants.gate import Gate, KeyedGate, OpenGate, Visit
from router.tenants.keys import BadKeyFile, KeyFile, KeyRing, hash_key, new_key, read_keys
from router.tenants.ledger import Ask, Ledger, Refusal, Taken
from router.tenants.memory import MemoryLedger
from router.tenants.redis_ledger import RedisLedger
from router.tenants.tenant import Tenant

__all__ = [
    "Ask",
    "BadKeyFile",
    "Gate",
    "KeyFile",
    "KeyRing",
    "KeyedGate",
    "Ledger",
    "MemoryLedger",
    "OpenGate",
    "RedisLedger",
    "Refusal",
    "Taken",
    "Tenant",
    "Visit",
    "hash_key",
    "new_key",
    "read_keys",
]
