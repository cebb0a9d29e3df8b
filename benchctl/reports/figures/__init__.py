"""The figures of a report, and `benchctl.reports.figures.draw`, which draws them all."""
