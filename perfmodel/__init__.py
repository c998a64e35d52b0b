"""perfmodel: a discrete-event performance model of distributed training."""

__version__ = "0.1.0"
