"""The four figures of a report: a module each, and `benchctl.reports.figures.draw`, which draws them all."""
