"""choice."""
