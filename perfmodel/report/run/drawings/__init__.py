"""Pictures of one step: streams side by side, or the stages of a pipeline."""
