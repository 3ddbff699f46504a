"""Routers and engines in virtual time: the real code that decides, no sockets, no sleeping.

The index, the reservations, the speeds and the policies are `router`'s; the block pool, the
scheduler and the timing profiles are the embedded engine's. What is replaced is only what waits.
"""
