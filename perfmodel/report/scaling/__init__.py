"""The scaling curve in sentences and figures; `text.scaling_section` builds its section."""
