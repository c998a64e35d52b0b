"""Time of a schedule on edges of given rates and latencies; `recurrence.legs_ends`."""
