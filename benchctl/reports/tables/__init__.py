"""The tables of a report, each declared once as columns."""
