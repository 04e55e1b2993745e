"""Training in several processes."""

from fastkeras.distribute._launcher import launch

__all__ = ["launch"]
