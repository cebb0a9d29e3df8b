"""Asking the target alone about forks, out of band."""
