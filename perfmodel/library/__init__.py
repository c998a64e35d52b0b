"""How communication libraries carry a collective: `machine.make_machine`, `lowering.lower`."""
