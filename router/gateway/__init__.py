"""The HTTP edge: what clients and operators see."""
