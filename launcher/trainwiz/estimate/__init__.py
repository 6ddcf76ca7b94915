"""Bytes by formula: what a plan needs of device memory, host memory and disk."""

from trainwiz.estimate.state import Estimate, estimate

__all__ = ["Estimate", "estimate"]
