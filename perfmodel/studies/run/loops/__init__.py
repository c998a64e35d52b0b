"""Results of strategies whose workers loop on their own: parameter servers."""
