"""The kit on which every adapter stands."""
