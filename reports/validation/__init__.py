"""Published and recorded rows beside predictions: ``python -m reports.validation``."""
