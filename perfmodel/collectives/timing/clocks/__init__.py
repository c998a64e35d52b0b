"""Sends over edges in progress, at rates that change."""
