"""What-if sliders of a run's page; `section.explorer_section` builds them."""
