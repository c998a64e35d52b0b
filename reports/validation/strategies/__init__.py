"""Published steps of strategies beside predicted ones: `step_tables.strategy_tables`."""
