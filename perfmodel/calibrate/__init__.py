"""From measurements to a Profile: link costs with intervals and their source."""
