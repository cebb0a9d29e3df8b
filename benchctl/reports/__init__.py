"""Floor 5: tables, figures, Markdown and HTML. Draws what analysis found and computes nothing."""
