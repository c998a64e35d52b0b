"""What Python users call: `functions` (run, tune ...) and `collectives`; results show themselves.

`questions` makes scenarios and machines of what people write; `results` adds to the results of
studies what shows them, so that studies need not know reports.
"""
