"""trainwiz: an interactive config wizard and launcher for distributed PyTorch training."""

__version__ = "0.1.0"
