"""Small helpers that every other layer may import."""
