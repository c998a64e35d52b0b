"""From traces to a scenario: an editable model file, the machine as recorded, and the replay."""
