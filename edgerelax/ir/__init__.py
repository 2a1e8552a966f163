"""The three levels of IR and what all that work on them share (floor 1)."""
